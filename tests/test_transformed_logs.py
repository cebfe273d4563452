"""The job logs of every scenario, transformed: the verdict may become weaker, never another one that is certain."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import trackside
from tests.log_transformations import ALL, CUTS, ENCODINGS, LAYOUTS, PREFIXES, TIMED
from tools.cases import Case, scenarios
from trackside.errors import TracksideError
from trackside.finding import Certainty, Outcome
from trackside.logs.stamp import find_time
from trackside.session.paths import load

MAX_BYTES = 3_000_000
"""Larger logs are not transformed."""
SAMPLE = (
    "a1/lab-one-node-lacks-package",
    "a2/lab-segv-midrun",
    "b1/fragmented-in-mid-training",
    "g1/lab-custom-json-lines",
)
"""Scenarios that are transformed in each run of the tests."""
ONE_FILE = frozenset({"behind_an_earlier_attempt"})
"""Transformations of a run's largest log only."""
TAKES_THE_CAUSE = frozenset(
    {
        ("h1/clean-up-after-ctrl-c-fails", "in_two_halves"),
        ("a1/last-of-several-attempts", "without_head"),
        ("a1/last-of-several-attempts", "half_a_first_line"),
        ("h2/powershell-appends-utf-16", "quoted_journal_in_color"),
    }
)
"""Cuts that happen to take out the line that shows the cause, or where a program begins; and color codes put into
UTF-16."""
CASES = {case.name: case for case in scenarios()}


@cache
def logs_of(name: str) -> Mapping[str, str]:
    """The texts of a scenario's job logs, by path."""
    texts = {}
    with CASES[name].inputs() as folder:
        for row in load([folder]).inputs:
            path = folder / row.path
            if row.format == "job-log" and row.rows and path.is_file() and path.stat().st_size <= MAX_BYTES:
                texts[row.path] = path.read_bytes().decode("utf-8", "replace")
    return texts


def judged(files: Mapping[str, bytes]) -> tuple[str | None, Certainty | None]:
    """(family, certainty) of the verdict on these files; (None, None) if nothing can be judged."""
    with tempfile.TemporaryDirectory(prefix="case") as temporary:
        for name, data in files.items():
            path = Path(temporary) / "run" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            primary = trackside.diagnose(Path(temporary) / "run").primary
        except TracksideError:
            return None, None
    return (primary.family, primary.certainty) if primary.outcome is not Outcome.UNKNOWN else (None, None)


@cache
def plain(name: str) -> str | None:
    """The family that the logs show as they are."""
    return judged({path: text.encode() for path, text in logs_of(name).items()})[0]


def transformed(name: str, transformation: str) -> dict[str, bytes]:
    """A scenario's logs, transformed. A log without times next to one with times gets none: they would contradict."""
    logs = logs_of(name)
    has_times = {path: any(find_time(line, 2026) for line in text.splitlines()) for path, text in logs.items()}
    mixed = transformation in TIMED and len(set(has_times.values())) > 1
    left = {path for path in logs if mixed and not has_times[path]}
    left |= logs.keys() - {max(logs, key=lambda path: len(logs[path]))} if transformation in ONE_FILE else set()
    return {path: text.encode() if path in left else ALL[transformation](text) for path, text in logs.items()}


def wrong(case: Case, transformation: str) -> str:
    """The wrong but certain verdict on the transformed logs of a scenario; empty if there is none."""
    if not logs_of(case.name) or (case.name, transformation) in TAKES_THE_CAUSE:
        return ""
    family, certainty = judged(transformed(case.name, transformation))
    right = {None, plain(case.name), *case.accepted, *case.expected.get("less", ())}
    certain = {Certainty.ESTABLISHED} if transformation in CUTS else {Certainty.ESTABLISHED, Certainty.SUPPORTED}
    return f"{case.name}: {family} {certainty}" if family not in right and certainty in certain else ""


@pytest.mark.parametrize("transformation", ALL)
def test_a_few_scenarios_after_every_transformation(transformation: str) -> None:
    assert not [text for name in SAMPLE if (text := wrong(CASES[name], transformation))]


@pytest.mark.slow
@pytest.mark.parametrize("transformation", ALL)
def test_every_scenario_after_every_transformation(transformation: str) -> None:
    assert not [text for case in CASES.values() if (text := wrong(case, transformation))]


def test_every_transformation_is_in_one_table() -> None:
    assert len(ALL) == len(PREFIXES) + len(LAYOUTS) + len(CUTS) + len(ENCODINGS) >= 28
    assert set(PREFIXES) >= TIMED
