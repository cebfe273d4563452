"""Reports of jobs' ends in their output: which job of an appended file is the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trackside.logs.scan import scan_text
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Position, Record
from trackside.runs.appended import runs_by_file
from trackside.runs.resolve import ResolvedRun, resolve
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
    ("log", "job", "state", "raised"),
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
def test_the_last_job_of_a_file_is_the_run(log: str, job: str | None, state: str | None, raised: bool) -> None:
    run = resolved(log)
    assert (run.run.id, run.run.disposition, "exception" in kinds(run)) == (job, state, raised)


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
