"""Reports of jobs' ends in their output: which job of an appended file is the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trackside.logs.scan import scan_text
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Position, Record
from trackside.runs.appended import runs_by_file
from trackside.runs.resolve import ResolvedRun, resolve
from trackside.session.inputs import LoadedInputs
from trackside.session.session import Session
from trackside.stores.memory import MemoryStore


def report(job: int, result: str, layout: str = "The output (if any) is above this job summary.") -> str:
    """LSF's report of a job."""
    word = "Done" if result.startswith("Succ") else "Exited"
    return f"Subject: Job {job}: <tune> in cluster <hub> {word}\n\n{result}\n\n{layout}\n"


FAILED, DONE, LIMIT = (
    "Exited with exit code 1.",
    "Successfully completed.",
    "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.",
)
ERROR = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\nKeyError: 'x'\n"


def resolved(*logs: str, records: tuple[Record, ...] = ()) -> ResolvedRun:
    events = [event for index, log in enumerate(logs) for event in scan_text(log, f"out{index}.txt")]
    return resolve(MemoryStore(events, records))


def kinds(run: ResolvedRun) -> set[str]:
    return {row.kind for row in run.store.all_rows() if isinstance(row, Event)}


@pytest.mark.parametrize(
    ("log", "job", "state", "has_exception"),
    [
        (ERROR + report(7, FAILED), "7", "FAILED", True),
        (ERROR + report(7, FAILED) + "ok\n" + report(8, DONE), "8", "COMPLETED", False),
        ("ok\n" + report(7, DONE) + ERROR + report(8, FAILED), "8", "FAILED", True),
        (ERROR + report(7, LIMIT) + "ok\n" + report(8, LIMIT), "8", "TIMEOUT", False),
        # The output stands below its report.
        (report(7, FAILED, "The output (if any) follows:") + ERROR, "7", "FAILED", True),
        (report(7, FAILED, "The output (if any) follows:") + ERROR + report(8, DONE, "The output (if any) follows:"), "8", "COMPLETED", False),
        # The last job has no report: an earlier one's is not about it.
        ("ok\n" + report(7, DONE) + ERROR, None, None, True),
        (ERROR + report(7, FAILED) + "step without a report\n" * 60, None, None, False),
        ("ok\n" + report(7, DONE) + "a note of the site\n", "7", "COMPLETED", False),
    ],
)  # fmt: skip
def test_the_last_job_of_a_file_is_the_run(log: str, job: str | None, state: str | None, has_exception: bool) -> None:
    run = resolved(log)
    assert (run.run.id, run.run.disposition, "exception" in kinds(run)) == (job, state, has_exception)


def test_a_record_of_the_job_overrides_the_report() -> None:
    record = Record(
        "job", Position("bjobs.txt", 1), "scheduler", {"id": "7", "state": "CANCELLED", "source": "lsf"}, ""
    )
    assert resolved("ok\n" + report(7, FAILED), records=(record,)).run.disposition == "CANCELLED"


def test_a_record_without_an_id_is_about_the_only_job() -> None:
    record = Record("job", Position("scontrol.txt", 1), "scheduler", {"state": "TIMEOUT", "source": "scontrol"}, "")
    assert resolved("ok\n", records=(record,)).run.disposition == "TIMEOUT"
    named = resolve(MemoryStore(scan_text("ok\n", "slurm-55.out"), (record,)))
    assert (named.run.id, named.run.disposition) == ("55", "TIMEOUT")
    other = replace(record, fields={"id": "9", "state": "FAILED", "source": "scontrol"})
    assert resolved("ok\n", records=(record, other)).run.id == "9"


def test_lines_of_other_files_are_not_cut() -> None:
    files = runs_by_file(scan_text(ERROR + report(7, FAILED) + report(8, DONE), "a.out"), Trajectories())
    assert set(files) == {"a.out"}
    assert files["a.out"].first > 1


START = "Namespace(batch_size=32, lr=0.0003, seed=1)\nreading the corpus\nbuilding the model\n"
"""What the program prints first."""
CRASH = 'Traceback (most recent call last):\n  File "/w/t.py", line 9, in <module>\n    main()\nValueError: bad shard\n'
HANDLED = 'Traceback (most recent call last):\n  File "/w/t.py", line 5, in read\n    f()\nValueError: bad row\n'
RESTART = (
    "[2026-01-01 10:00:00,000] torch.distributed.elastic.agent.server.api: [INFO] [default] Worker group FAILED. "
    "3/3 attempts left; will restart worker group\n"
)
SWEEP = "2026-01-01 10:00:00,000 - wandb.wandb_agent - INFO - About to run command: /usr/bin/env python t.py --lr=0.1\n"
TRIAL = "wandb: Tracking run with wandb version 0.17.0\n"
QUIET = "a line that nothing reads\n"


def steps(first: int, last: int) -> str:
    """Logged steps, ten apart, with as much text between two as a program prints that starts."""
    return "".join(f"step {step} | loss {5 - step / 100:.3f} | lr 1e-4\n" for step in range(first, last + 1, 10))


def firsts(text: str) -> list[int]:
    """First lines of the runs in a file."""
    trajectories, events = Trajectories(), scan_text(text, "a.out")
    for event in events:
        if event.kind == "progress":
            trajectories.add(event)
    files = runs_by_file((event for event in events if event.kind != "progress"), trajectories)
    return [run.first for run in files["a.out"].runs] if files else [1]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (START + steps(0, 50) + CRASH, [1]),
        # What a program prints first comes again after its end, or with steps that start over.
        (START + CRASH + START + steps(0, 50), [1, 8]),
        (START + CRASH + START + CRASH + START + CRASH, [1, 8, 15]),
        (START + steps(0, 50) + START + QUIET * 100 + steps(0, 20), [1, 10]),
        # ... also if the run goes on from a checkpoint, once the one before had died.
        (START + steps(0, 50) + CRASH + START + steps(60, 90), [1, 14]),
        # A program that prints it again while it trains is one run: its workers import it, or it evaluates.
        (START + steps(0, 50) + START + steps(60, 90), [1]),
        (START + steps(0, 50) + START + steps(60, 90) + START + CRASH, [1]),
        # Several processes print it at once.
        (START + START + steps(0, 50) + CRASH, [1]),
        # From a buffer, it comes after the traceback of the same program.
        (CRASH + START + steps(0, 50), [1]),
        (CRASH + START + steps(0, 50) + CRASH + START + steps(0, 50), [1]),
        (CRASH + steps(0, 50) + CRASH + QUIET * 100 + steps(0, 50), [1]),
        # A handled exception is no end.
        (START + HANDLED + START + steps(0, 50), [1]),
        # A launcher's banner.
        ("nohup: ignoring input\n" + steps(0, 20) + "nohup: ignoring input\n" + CRASH, [1, 5]),
        ("nohup: ignoring input\n" + QUIET + "nohup: ignoring input\n" + CRASH, [1]),
        # Nothing is known of the last start yet.
        (START + CRASH + START + QUIET, [1]),
        (START + CRASH + START + QUIET * 100, [1, 8]),
        # Steps start over after an end, without a word between.
        (steps(0, 50) + CRASH + QUIET * 100 + steps(0, 20), [1, 11]),
        (steps(0, 50) + QUIET * 100 + steps(0, 20), [1]),
        # One program that restarts its workers, and one that runs trials.
        (START + CRASH + RESTART + START + steps(0, 50), [1]),
        (steps(0, 50) + CRASH + RESTART + QUIET * 100 + steps(0, 20), [1]),
        (SWEEP + TRIAL + CRASH + SWEEP + TRIAL + CRASH, [1]),
        (TRIAL + CRASH + TRIAL + CRASH, [1, 6]),
    ],
)  # fmt: skip
def test_runs_are_told_apart(text: str, runs: list[int]) -> None:
    assert firsts(text) == runs


def test_another_job_s_lines_begin_after_the_first_job_s_end() -> None:
    cancelled = "slurmstepd: error: *** JOB {} ON n1 CANCELLED AT 2026-01-01T10:00:00 ***\n"
    two = steps(0, 20) + cancelled.format(7) + steps(0, 20) + CRASH + cancelled.format(8)
    assert firsts(two) == [1, 5]
    assert firsts(steps(0, 20) + cancelled.format(7) + cancelled.format(8)) == [1]


def test_the_job_is_one_that_the_last_run_names() -> None:
    cancelled = "slurmstepd: error: *** JOB {} ON n1 CANCELLED AT 2026-01-01T10:00:00 ***\n"
    banner = "nohup: ignoring input\n"
    log = banner + steps(0, 20) + "".join(map(cancelled.format, (7, 8, 8))) + banner + QUIET + cancelled.format(10)
    run = resolved(log + cancelled.format(9)).run
    assert (run.id, run.other_jobs, run.appended and run.appended.runs[-1].first) == ("10", ("9",), 8)
    assert resolved(steps(0, 20) + cancelled.format(7)).run.other_jobs == ()


def test_the_last_run_alone_is_judged_and_the_others_are_listed() -> None:
    log = START + steps(0, 90) + CRASH + START + CRASH.replace("ValueError", "KeyError") + START + steps(0, 40) + CRASH
    loaded = LoadedInputs()
    for event in scan_text(log, "a.out"):
        loaded.event(event)
    verdict = Session.of(loaded).verdict()
    assert verdict.family == "H2"
    assert verdict.run.appended is not None
    assert [(run.first, run.last) for run in verdict.run.appended.runs] == [(1, 17), (18, 24), (25, 36)]
    assert [(run.first, run.last, run.finding.family) for run in verdict.earlier] == [(1, 17, "H2"), (18, 24, "A1")]
    assert verdict.progress is not None
    assert verdict.progress.last_run is not None
    assert (verdict.progress.points, verdict.progress.last_run.points) == (15, 5)


def test_thousands_of_runs_are_bounded() -> None:
    verdict_runs = firsts((START + steps(0, 20) + CRASH) * 5_000)
    assert 1_000 <= len(verdict_runs) <= 2_000
    assert verdict_runs[-1] == 4_999 * 10 + 1
