"""What the controller source sends, received and diagnosed: the history of a job from the store alone.

``slurm/history.jsonl`` contains the lines of one afternoon of a real Slurm 22.05: time, labels, text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import trackside
from tests.serve.receiving import T0_MS, flushed, lines, opened, push_lines
from trackside.logs.scan import scan_text
from trackside.model import Position, Record, Run
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.runs.attempts import attempts_of
from trackside.session import StoreRequest, open_session
from trackside.stores.embedded.snapshot import Snapshot

SentLine = tuple[int, dict[str, str], str]
SENT: list[SentLine] = [
    (time, labels, text)
    for line in (Path(__file__).parent / "slurm" / "history.jsonl").read_text().splitlines()
    for time, labels, text in [json.loads(line)]
]


def store_of(store: Path, sent_lines: Sequence[SentLine], controller: str = "ctl") -> Path:
    """A store that received these lines from an agent on the controller's node."""
    intake = opened(store)
    streams: dict[tuple[tuple[str, str], ...], list[tuple[int, str]]] = {}
    for time, labels, text in sent_lines:
        key = tuple(sorted({"node": controller, **labels}.items()))
        streams.setdefault(key, []).append((time - T0_MS * 1_000_000, text))
    for key, rows in streams.items():
        push_lines(intake, dict(key), rows).result(30)
    flushed(intake)
    intake.close()
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("history") / "store", SENT)


def run_of(store: Path, job: str) -> Run:
    return trackside.diagnose(store=store, job=job).run


def facts(run: Run) -> tuple[object, ...]:
    return run.disposition, run.exit_code, run.signal, run.nodes, run.time_limit_s, len(run.attempts)


def test_each_job_and_node_has_its_own_file(store: Path) -> None:
    paths = set(lines(store))
    assert {
        "job-24/slurm-24.scontrol@ctl.log",
        "job-25_1/slurm-25_1.scontrol@ctl.log",
        "nodes/n4/scontrol.log",
    } <= paths
    assert all(path.endswith(("/scontrol.log", ".scontrol@ctl.log")) for path in paths)
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(f"SELECT DISTINCT format, status, is_log, note FROM {snapshot.table('inputs')}")
    assert [row[:3] for row in rows] == [("slurm-history", "read", False)]


EXPECTED: dict[str, tuple[object, ...]] = {
    "24": ("FAILED", 3, None, ("n1", "n2"), 3600.0, 1),
    "25_0": ("COMPLETED", 0, None, ("n1",), 3600.0, 1),
    "25_2": ("FAILED", 2, None, ("n2",), 3600.0, 1),
    "26": ("COMPLETED", 0, None, ("n2",), 3600.0, 2),  # requeued
    "29": ("COMPLETED", 0, None, ("n1",), 3600.0, 1),  # suspended and resumed
    "32": ("PENDING", None, None, (), 1200.0, 0),  # its time limit was raised
    "33": ("TIMEOUT", 0, None, ("n2",), 60.0, 1),
    "34": ("OUT_OF_MEMORY", None, None, ("n3",), 3600.0, 1),
    "35": ("CANCELLED", 0, None, (), 3600.0, 0),  # while pending
    "36": ("FAILED", 0, 9, ("n3",), 3600.0, 1),  # its name contains JobState= and a line break
    "37": ("NODE_FAIL", 0, None, ("n4",), 3600.0, 1),
    "38+1": ("COMPLETED", 0, None, ("n2",), 3600.0, 1),
}


@pytest.mark.parametrize("job", EXPECTED)
def test_facts_of_a_run_come_from_the_store_alone(store: Path, job: str) -> None:
    run = run_of(store, job)
    assert facts(run) == EXPECTED[job]
    assert run.submit is not None
    if run.attempts:
        assert run.start is not None
        assert run.end is not None
        assert 0 <= run.end - run.start < 100
    assert run.id == job


def test_a_requeue_with_the_same_submit_time_is_a_second_attempt() -> None:
    """For example after a failed prolog: accounting overwrites its row, and only the controller knows the first start."""

    def row(state: str, start: float | None, line: int) -> Record:
        fields = {"state": state, "submit": 100.0, "start": start, "source": "scontrol", "name": "train"}
        position = Position("job-5/slurm-5.scontrol@ctl.log", line)
        return Record("job", position, "scheduler", {key: value for key, value in fields.items() if value is not None})

    attempts = attempts_of(
        [row("PENDING", None, 1), row("RUNNING", 110.0, 2), row("PENDING", None, 3), row("COMPLETED", 120.0, 4)]
    )
    assert [(attempt.state, attempt.time("start")) for attempt in attempts] == [
        ("RUNNING", 110.0),
        ("COMPLETED", 120.0),
    ]


def test_the_raw_job_id_finds_an_array_task(store: Path) -> None:
    run = run_of(store, "28")
    assert (run.id, run.disposition) == ("25_1", "FAILED")


VERDICTS = {"26": "F2", "33": "F3", "34": "A2", "37": "F1", "35": "H1"}


@pytest.mark.parametrize("job", VERDICTS)
def test_the_verdict_comes_from_the_store_alone(store: Path, job: str) -> None:
    verdict = trackside.diagnose(store=store, job=job)
    assert verdict.primary is not None
    assert verdict.primary.family == VERDICTS[job]


def test_lines_sent_twice_are_stored_once(store: Path, tmp_path: Path) -> None:
    """A restarted agent sends everything again that the controller still knows."""
    intake = opened(tmp_path / "again")
    for _ in range(2):
        for time, labels, text in SENT:
            push_lines(intake, {"node": "ctl", **labels}, [(time - T0_MS * 1_000_000, text)])
    flushed(intake)
    intake.close()
    assert {path: sorted(file_lines) for path, file_lines in lines(tmp_path / "again").items()} == {
        path: sorted(file_lines) for path, file_lines in lines(store).items()
    }


def test_a_running_job_has_no_end(tmp_path: Path) -> None:
    """The lines of the end are missing."""
    early_lines = [line for line in SENT if " ended " not in line[2] and " accounted for " not in line[2]]
    store = store_of(tmp_path / "store", early_lines)
    run = run_of(store, "24")
    assert facts(run) == ("RUNNING", None, None, ("n1", "n2"), 3600.0, 1)
    assert run.end is None
    assert run_of(store, "36").disposition == "RUNNING"


def test_steps_come_from_accounting(store: Path) -> None:
    with open_session(StoreRequest(store, "24")) as session:
        steps = {
            str(row.get("id")): row.get("exit_code")
            for row in session.loaded.store.all_rows()
            if getattr(row, "kind", "") == "step"
        }
    assert steps.keys() == {"24.batch", "24.extern", "24.0"}
    assert steps["24.batch"] == 3


def read(text: str, path: str = "job-7/slurm-7.scontrol@ctl.log") -> tuple[CollectingSink, str]:
    data = text.encode()
    sink = CollectingSink()
    row = read_source(InputSource(path, data[: 64 << 10], io.BufferedReader(io.BytesIO(data)), len(data)), sink)  # type: ignore[arg-type]
    return sink, f"{row.format}: {row.status}"


LINE_FORMATS: dict[str, Callable[[str], str]] = {
    "bare": lambda text: text,
    "collected": lambda text: f"2026-11-22T02:12:16.000000000Z stdout F {text}",
}


@pytest.mark.parametrize("line_format", LINE_FORMATS)
def test_lines_of_a_job_are_read_in_both_formats(line_format: str) -> None:
    texts = [text for _, labels, text in SENT if labels.get("slurm_job_id") == "26"]
    sink, row = read("".join(f"{LINE_FORMATS[line_format](text)}\n" for text in texts))
    assert row == "slurm-history: read"
    states = [str(event.get("state")) for event in sink.events]
    assert states == ["started", "requeued", "waiting", "started", "completed"]
    assert [event.text for event in sink.events][1] == "job 26 requeued, waits for BeginTime"
    assert len(sink.records) == len(texts)
    assert {record.get("as_of") for record in sink.records if record.kind == "job"} == (
        {None} if line_format == "bare" else {1795313536.0}
    )
    for record in sink.records:
        assert record.at.line in range(1, len(texts) + 1)


def test_lines_of_a_node_become_states() -> None:
    texts = [
        f"2026-11-22T02:12:16.000000000Z n4 scontrol: {text}" for _, labels, text in SENT if labels.get("node") == "n4"
    ]
    sink, row = read("".join(f"{line}\n" for line in texts), "nodes/n4/scontrol.log")
    assert row == "slurm-history: read"
    events = [(event.kind, event.node, event.get("state"), event.get("reason")) for event in sink.events]
    assert events == [
        ("node_state", "n4", "down", "Not responding"),
        ("node_state", "n4", "up", None),
    ]
    assert [event.text for event in sink.events][1] == "node n4 is IDLE"
    first = sink.records[0]
    assert (first.kind, first.get("name"), first.get("state"), first.get("reason")) == (
        "node",
        "n4",
        "down",
        "Not responding",
    )
    assert first.many("flags") == ("not_responding",)


def test_other_and_broken_lines_are_skipped() -> None:
    valid_line = SENT[0][2]
    sink, row = read(
        "\n".join([valid_line] * 8 + ["job 7 ended FAILED", "", "\t\t", valid_line[:60], "job 7 started\tJobID=\x00="])
        + "\n"
    )
    assert row == "slurm-history: partial"
    assert len(sink.records) >= 8
    sink, row = read("Training started\njob 7 started on n1\tthen it ended\n")
    assert row.startswith("job-log")
    assert not sink.records


def test_scanned_logs_find_job_states_of_the_controller() -> None:
    text = "\n".join(
        f"[2026-11-22T02:12:16.000] {text}" for _, _, text in SENT if not text.startswith(("step", "node"))
    )
    kinds = {event.kind for event in scan_text(text, plane="scheduler")}
    assert kinds <= {"log_activity", "job_state"}
