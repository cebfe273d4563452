"""Pending and running jobs: wording that fits them, and wording only for ended runs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import trackside
from tools.cases import scenarios
from trackside.catalog.job_states import state_in_words
from trackside.catalog.pending_reasons import REASONS, pending_reason
from trackside.finding import Verdict
from trackside.model import Event, Record
from trackside.session.choice import choose_run
from trackside.session.inputs import LoadedInputs
from trackside.session.paths import load
from trackside.show.document import VerdictDoc, document
from trackside.show.text import render
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine
from trackside.verify import check

OVER = re.compile(r"\b(?:it|run|job) ended\b|\bits end\b|\bto the end\b|run's end|in the whole run|\bwill have\b")
NOT_YET = ("end", "exit_code", "signal", "derived_exit_code", "cancelled_by", "reason")
ENDING = ("scheduler_notice", "process_exit", "launcher_failure", "training_end", "job_state")
LIVE = (
    "c1/four-nodes-silent-to-the-limit",
    "c2/no-watchdog-silent-to-the-limit",
    "c2/sim-metrics-and-scheduler-only",
    "c3/sim-metrics-only",
    "d2/sim-save-storm",
    "e1/megatron-drops-the-loss",
    "f3/slow-but-learning",
    "f3/sim-working-to-the-wall",
)
CASES = [case for case in scenarios() if case.name in LIVE]


def inputs_before_the_end(folder: Path) -> tuple[LoadedInputs, float]:
    """The inputs of a run as they were just before its end, with the job still running; and that time."""
    loaded = load([folder])
    rows = list(loaded.store.all_rows())
    events = [row for row in rows if isinstance(row, Event)]
    records = [row for row in rows if isinstance(row, Record)]
    now = max(float(end) for row in records if isinstance(end := row.get("end"), (int, float)))
    closing = {(row.at.path, row.time) for row in events if row.kind in ENDING}
    signs = [*loaded.trajectories.points(), *(row for row in events if row.kind not in (*ENDING, "log_activity"))]
    last = max((row.time for row in signs if row.time is not None and row.plane == "log"), default=None)
    loaded.store = MemoryStore(
        [
            replace(row, time=last, fields={**row.fields, "last_time": last})
            if row.kind == "log_activity" and (row.at.path, row.time) in closing
            else row
            for row in events
            if row.kind not in ENDING
        ],
        [
            replace(
                row,
                fields={**{name: row.fields[name] for name in row.fields if name not in NOT_YET}, "state": "RUNNING"},
            )
            if row.kind in ("job", "step")
            else row
            for row in records
        ],
        loaded.store.planes,
    )
    return loaded, now


def judged(loaded: LoadedInputs, now: float) -> Verdict:
    run, rows = choose_run(loaded, now)
    return engine.verdict_of(engine.facts_of(rows, run), loaded.inputs)


def sentences(doc: VerdictDoc) -> list[str]:
    """All sentences of a verdict."""
    texts: list[str] = []

    def look(value: object) -> None:
        if isinstance(value, dict):
            texts.extend(str(value[name]) for name in ("text", "because") if name in value and "query" not in value)
            for part in value.values():
                look(part)
        elif isinstance(value, list):
            for part in value:
                look(part)

    look(msgspec.to_builtins(doc))
    return texts


def printed(doc: VerdictDoc) -> str:
    out = io.StringIO()
    render(doc, Console(file=out, width=200, highlight=False))
    return out.getvalue()


def test_all_live_cases_exist() -> None:
    assert sorted(case.name for case in CASES) == sorted(LIVE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_running_job_is_not_reported_as_over(case: object) -> None:
    with case.inputs() as folder:  # type: ignore[attr-defined]
        loaded, now = inputs_before_the_end(folder)
    verdict = judged(loaded, now)
    doc = document(verdict)
    assert (doc.run.disposition, doc.run.end, doc.run.as_of) == ("RUNNING", None, now)
    assert not [text for text in sentences(doc) if OVER.search(text)]
    output = printed(doc)
    assert "still running (RUNNING)" in output
    assert " so far" in output.split("\n\n")[0]
    _, rows = choose_run(loaded, doc.run.as_of)
    assert all(result.holds for result in check(doc.cites, rows))


def test_the_hang_of_a_running_job_has_a_start_time() -> None:
    case = next(case for case in CASES if case.name == "c2/sim-metrics-and-scheduler-only")
    with case.inputs() as folder:
        doc = document(judged(*inputs_before_the_end(folder)))
    assert doc.primary.family == "C2"
    assert "in this state for 32 min, since 2026-03-02 08:13:00 UTC" in printed(doc)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("RUNNING", "still running (RUNNING)"),
        ("SUSPENDED", "not over (SUSPENDED)"),
        ("PENDING", "not started (PENDING)"),
        ("COMPLETING", "ending (COMPLETING)"),
        ("FAILED", "FAILED"),
    ],
)
def test_states_in_words(state: str, words: str) -> None:
    assert state_in_words(state) == words


def test_a_pending_job_is_no_failure() -> None:
    [folder] = [case.folder for case in scenarios() if case.name == "u0/waits-for-gpus-of-its-qos"]
    doc = document(trackside.diagnose([folder / "inputs"]))
    claims = [claim.text for claim in doc.shows]
    assert doc.primary.title == "Pending: the job has not begun"
    assert claims == [
        "The job has not started: PENDING, reason QOSMaxGRESPerUser",
        "Meaning: this user's jobs have reached the limit of GPUs or other generic resources that its QOS allows at once",
        "Waiting since 2026-03-02 07:12:40 UTC",
    ]
    assert doc.implies[0].text.startswith("Nothing has failed")
    assert doc.actions[0].command == "squeue --start -j 5521; scontrol show job -d 5521"
    assert "not started (PENDING)" in printed(doc)


@pytest.mark.parametrize(
    ("name", "remedy", "word"),
    [
        ("Priority", "wait", "higher priority"),
        ("(Resources)", "wait", "not enough"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "wait", "down, drained or reserved"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "wait", "down"),
        ("DependencyNeverSatisfied", "change", "never starts"),
        ("QOSMaxGRESPerUser", "wait", "GPUs"),
        ("QOSGrpCpuLimit", "wait", "the jobs of its QOS together have reached the limit of CPUs"),
        ("AssocGrpGRESMinutes", "wait", "minutes of GPUs"),
        ("QOSMaxWallDurationPerJobLimit", "change", "more time than its QOS allows per job"),
        ("QOSMaxJobsPerUserLimit", "wait", "have reached the limit of jobs"),
        ("AssocMaxJobsLimit", "wait", "have reached the limit of jobs"),
        ("MaxNodePerAccount", "wait", "this account's jobs"),
        ("QOSMinGRES", "change", "fewer GPUs"),
        ("JobHeldAdmin", "ask", "administrator"),
        ("launch failed requeued held", "ask", "is held"),
    ],
)
def test_a_pending_reason_is_explained(name: str, remedy: str, word: str) -> None:
    known = pending_reason(name)
    assert known is not None
    assert known.remedy == remedy
    assert word in known.meaning


def test_an_unknown_pending_reason_is_not_explained() -> None:
    assert pending_reason("SomethingNew") is None
    assert all(len(reason.meaning) <= 150 for reason in REASONS.values())  # a sentence holds no more of a value
