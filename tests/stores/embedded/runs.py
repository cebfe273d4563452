"""Shared by the tests of the embedded store: small runs on disk, and verdicts to compare."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trackside
from trackside.finding import Verdict
from trackside.ingest import ingest
from trackside.show.document import document, encode

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/train/train.py", line 3, in <module>\n'
    "    main()\n"
    '  File "/home/user/train/model.py", line 12, in main\n'
    "    import {module}\n"
    "ModuleNotFoundError: No module named '{module}'\n"
)
STORED_TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/train/train.py", line 3, in <module>\n'
    "    main()\n"
    "ModuleNotFoundError: No module named '{module}'\n"
)
"""The text in the stores of earlier versions, which never change."""
SACCT = "JobID|JobName|State|ExitCode|Submit|Start|End|NodeList|WorkDir\n"
T0 = 1_772_438_400
"""2026-03-02T08:00:00Z"""


def sacct(
    job: str, state: str = "FAILED", day: int = 2, name: str = "lm", node: str = "gpu017", folder: str = ""
) -> str:
    """One job's row; ten minutes from eight o'clock."""
    moment = f"2026-03-{day:02}T08:"
    code = "0:0" if state == "COMPLETED" else "1:0"
    return f"{job}|{name}|{state}|{code}|{moment}00:00|{moment}00:10|{moment}10:00|{node}|{folder}\n"


def steps(count: int, first: int = 1) -> str:
    """Lines of a training log."""
    return "".join(f"step {n} loss {10 / n:.4f}\n" for n in range(first, first + count))


def scrape(node: str, seconds: int, value: float, gpus: int = 2, metric: str = "DCGM_FI_DEV_GPU_UTIL") -> str:
    """One scrape of an exporter, ``seconds`` after T0."""
    lines = [f"# TYPE {metric} gauge"]
    lines += [f'{metric}{{gpu="{gpu}",Hostname="{node}"}} {value + gpu} {(T0 + seconds) * 1000}' for gpu in range(gpus)]
    return "\n".join(lines) + "\n"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files into a folder; returns the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def verdict_document(verdict: Verdict, without: Sequence[str] = ()) -> Any:
    """The document of a verdict, with the words ``without`` removed from its text."""
    text = encode(document(verdict, ["x"])).decode()
    for word in without:
        text = text.replace(word, "")
    return json.loads(text)


def verdict_of_files(*paths: str | os.PathLike[str], job: str | None = None) -> Any:
    """The verdict on files."""
    return verdict_document(trackside.diagnose(list(paths), job=job))


def verdict_of_store(store: str | os.PathLike[str], job: str | None = None, without: Sequence[str] = ()) -> Any:
    """The verdict on a job of a store."""
    return verdict_document(trackside.diagnose(store=store, job=job), without)


def segment_names(store: Path) -> set[str]:
    """The names of the segment files in a store's folder."""
    return set(os.listdir(store / "segments"))


__all__ = [
    "SACCT",
    "T0",
    "TRACEBACK",
    "ingest",
    "sacct",
    "scrape",
    "segment_names",
    "steps",
    "verdict_document",
    "verdict_of_files",
    "verdict_of_store",
    "write",
]
