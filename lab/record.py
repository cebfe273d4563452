"""Plays a case and writes its scenario: inputs, expected verdict and story."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from lab.case import LabCase
from lab.points import dumps, progress
from lab.sanitize import Sanitizer
from lab.stage import RunFailed, Stage

SIZE_LIMIT = 200_000


def record(case: LabCase, scenarios: Path, slurm_tools: Path | None) -> Path:
    """Play the case in its own folder and put the scenario in place."""
    work = Path(tempfile.mkdtemp(prefix="lab-"))
    work.chmod(0o755)
    try:
        stage = Stage(work, slurm_tools)
        case.play(stage)
        made = work / "scenario"
        _write(case, stage, made)
        target = scenarios / case.folder
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write(case: LabCase, stage: Stage, made: Path) -> None:
    inputs = made / "inputs"
    sanitizer = Sanitizer(stage.work, stage.node, stage.names)
    for path in stage.kept_files:
        sanitizer.copy(path, inputs / path.relative_to(stage.work))
    _check(case, inputs)
    expected = {**case.expected, **stage.results}
    if case.reader:
        expected["progress"] = progress(case.reader.read(inputs), case.progress_keys)
    elif case.no_progress:
        expected["progress"] = None
    (made / "expected.json").write_text(dumps(expected))
    (made / "story.md").write_text(case.story.strip() + "\n")


def _check(case: LabCase, inputs: Path) -> None:
    files = [path for path in inputs.rglob("*") if path.is_file()]
    text = "\n".join(path.read_text(errors="replace") for path in files)
    for mark in case.marks:
        if not re.search(mark, text):
            raise RunFailed(f"the inputs do not hold {mark!r}:\n{text[-1500:]}")
    size = sum(path.stat().st_size for path in files)
    if size > SIZE_LIMIT:
        raise RunFailed(f"the inputs hold {size} bytes, more than {SIZE_LIMIT}")
