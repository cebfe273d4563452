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
OTHER_CRASH = (
    'Traceback (most recent call last):\n  File "/w/t.py", line 9, in <module>\n    main()\n'
    "  File \"/w/t.py\", line 4, in main\n    batch['mask']\nKeyError: 'mask'\n"
)
EDITED_CRASH = CRASH.replace("main()", "main(shards)")
REJECTED = "usage: t.py [-h] [--lr LR]\nt.py: error: unrecognized arguments: --rate\n"
TERMINATED = "FatalError: `Termination signal` is detected by the operating system.\n"
ANSWER = CRASH + "\nDuring handling of the above exception, another exception occurred:\n\n" + OTHER_CRASH
LAUNCHER_REPORT = (
    "[2026-01-01 10:00:00,000] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 0 "
    "(pid: 4711) of binary: /usr/bin/python\n"
)
STARTED_AND_FAILED = "Starting the pipeline of poses\nAn error occurred: JointLoss.__init__() missing 1 required positional argument: 'joints'\n"
FAILED_AT = "2026-01-01 {},000 - fit - ERROR - Training failed: {}\n"
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
        # One process has one error at its end: another one of the same program is of another start ...
        (CRASH + OTHER_CRASH, [1, 5]),
        (CRASH + QUIET + OTHER_CRASH + CRASH, [1, 5, 12]),
        (CRASH + EDITED_CRASH, [1, 5]),
        (CRASH + REJECTED, [1, 5]),
        (CRASH + "Cannot find primary config 'fit.yaml'. Check that it's in your config search path.\n", [1, 5]),
        (CRASH + TERMINATED + OTHER_CRASH, [1, 6]),
        # ... but an equal one may be another process's, as may one in a log that names ranks or a launcher.
        (CRASH + CRASH, [1]),
        (CRASH + CRASH.replace("bad shard", "shard 7 is bad"), [1]),
        ("".join(f"[rank0]: {line}\n" for line in CRASH.splitlines()) + OTHER_CRASH, [1]),
        (CRASH + LAUNCHER_REPORT + OTHER_CRASH, [1]),
        # Another program's error may follow from the first one.
        (CRASH + OTHER_CRASH.replace("t.py", "evaluate.py"), [1]),
        # Steps that go on show that the error was caught.
        (steps(0, 50) + CRASH + steps(60, 90) + OTHER_CRASH, [1]),
        # A rank that hung after another one's error is interrupted.
        (CRASH + OTHER_CRASH.replace("KeyError: 'mask'", "KeyboardInterrupt"), [1]),
        # The answer to an error is no error of another start.
        (CRASH + ANSWER, [1]),
        # The first line again, if an error follows it at once.
        (STARTED_AND_FAILED * 3, [1, 3, 5]),
        (STARTED_AND_FAILED + "Starting the pipeline of poses\n" * 2 + CRASH, [1, 3]),
        ("Starting epoch of the long run\nAn error occurred: bad row\n" * 3, [1]),
        # The program's own words that its training failed, minutes later and for another reason.
        (FAILED_AT.format("10:00:00", "no GPU") + FAILED_AT.format("10:09:00", "no file"), [1, 2]),
        (FAILED_AT.format("10:00:00", "fold 1") + FAILED_AT.format("10:09:00", "fold 2"), [1]),
        (FAILED_AT.format("10:00:00", "no GPU") + FAILED_AT.format("10:00:20", "no file"), [1]),
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
