"""Tracebacks of every shape: a file in tracebacks/ holds the expected events (JSON, one line), then the log."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trackside.facts.logs.fault_rules import classify
from trackside.logs import scan as scan_module
from trackside.logs.command_line import PARSER as COMMAND_LINE
from trackside.logs.line import FileContext
from trackside.logs.matcher import matcher
from trackside.logs.scan import PatternSet, scan_text
from trackside.logs.traceback import PARSER as PYTHON
from trackside.model import Event, EventRole

CASES = sorted((Path(__file__).parent / "tracebacks").glob("*.txt"))


PATTERNS = (*COMMAND_LINE.patterns, *PYTHON.patterns)
ONLY = PatternSet(
    PATTERNS,
    (COMMAND_LINE,) * len(COMMAND_LINE.patterns) + (PYTHON,) * len(PYTHON.patterns),
    matcher(PATTERNS),
)


@pytest.fixture(autouse=True)
def _only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "pattern_set", lambda plane, engine=None: ONLY)


def exceptions(log: str | bytes) -> list[Event]:
    return [event for event in scan_text(log) if event.kind == "exception"]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_exceptions_of_a_log(case: Path, ending: str) -> None:
    first, log = case.read_text().split("\n", 1)
    expected_exceptions = json.loads(first)
    actual = exceptions(log.replace("\n", ending))
    assert [event.get("type") for event in actual] == [row["type"] for row in expected_exceptions], actual
    for event, expected in zip(actual, expected_exceptions, strict=True):
        part = expected.pop("contains", "")
        assert part in str(event.get("message"))
        assert {name: event.get(name) for name in expected} == expected


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_log_cut_anywhere_gives_whole_exceptions(case: Path) -> None:
    log = case.read_text().split("\n", 1)[1].encode()
    for cut in range(0, len(log), 37):
        assert all(event.get("type") for part in (log[:cut], log[cut:]) for event in exceptions(part))


def test_many_headers_take_linear_time() -> None:
    log = "Traceback (most recent call last):\n" * 40_000
    assert exceptions(log) == []


def test_the_width_of_lines_is_looked_for_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0
    decode_line = FileContext.decode_line

    def count(context: FileContext, raw: bytes) -> str:
        nonlocal decoded
        decoded += 1
        return decode_line(context, raw)

    monkeypatch.setattr(FileContext, "decode_line", count)
    lines = 2_000
    scan_text("RuntimeError: it failed again\n" * lines)
    assert decoded < 20 * lines  # the text around each block of lines, not around each line


@pytest.mark.slow
def test_every_rank_of_a_large_job_is_read() -> None:
    lines = ["Traceback (most recent call last):", '  File "/home/u/a.py", line 1, in f', "    g()", "KeyError: 'x'"]
    log = "".join(f"[rank{rank}]: {line}\n" for line in lines for rank in range(512))
    assert {event.rank for event in exceptions(log)} == set(range(512))


FAILED_RUNS = Path(__file__).parents[3] / "shared" / "data" / "mlperf-training-logs"


@pytest.mark.corpus
@pytest.mark.skipif(not FAILED_RUNS.is_dir(), reason="the shared logs are not here")
def test_root_exceptions_of_real_failed_runs() -> None:
    labels = (FAILED_RUNS / "labels.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(labels) if row["path"].startswith("failed/")]
    assert rows
    for row in rows:
        root_events = [
            event for event in exceptions((FAILED_RUNS / row["path"]).read_bytes()) if event.role is EventRole.ROOT
        ]
        assert {classify(event) for event in root_events} == {row["fault_class"]}, row["path"]
