"""Which processes died of a fatal signal of their own, and which were only ended by somebody. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trackside.catalog.signals import DESCRIPTIONS, signal_number
from trackside.evidence import Evidence, Frame, Value
from trackside.facts.logs.ending import CUT_SHORT, ENDING, FATAL_SIGNALS, abnormal_end, exit_signal, last_job
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.logs.order import followed_by, follows
from trackside.facts.logs.restarts import RESTARTS, lived_on
from trackside.facts.ranks import rank_of
from trackside.finding import Claim
from trackside.model import Event, Record, Role, Run
from trackside.query import Query, events, record

DEATHS: Mapping[str, Query] = {
    **ENDING,
    **RESTARTS,
    "signals": events("signal_received"),
    "fatals": events("python_fatal"),
    "workers": events("dataloader_death"),
    "kills": events("oom_kill"),
    "steps": record("step"),
    "exceptions": events("exception"),
    "progress": events("progress"),
    "timeouts": events("collective_timeout"),
    "heartbeats": events("heartbeat_lost"),
    "device": events("cuda_error"),
    "memory": events("cuda_oom"),
}
"""What tells of deaths, and of what may have brought them about."""

ABORT, KILL = 6, 9
FORCED_AFTER_S = 15.0
"""A SIGKILL that long after the first failure is a launcher's: torchrun waits 30 s for SIGTERM to be obeyed,
Slurm's KillWait is 30 s; peers that die of one cause go within seconds."""
BROKEN = ("uncorrectable ECC error", "uncorrectable NVLink error", "device lost")
"""CUDA errors that hardware brings about: they say more of the run's end than the abort that follows them."""
_ABRUPT = re.compile(r"has abruptly died|was terminated abruptly|terminated abruptly")
AMBIGUOUS = (4, 6, 7, 8, 9, 11)
"""Exit codes that sacct before 25.11 also writes for 128 + n (139 becomes 11:0)."""


@dataclass(frozen=True, slots=True)
class Death:
    """One report that a process died of fatal signal ``number``; ``line`` cites it."""

    number: int
    row: Event
    line: Value
    rank: int | None
    source: str
    """launchers, exits, signals, fatals or workers: the ask that it came from."""

    @property
    def first(self) -> bool:
        """A launcher calls it the first failure that it saw."""
        return self.row.get("first") is True


def deaths(evidence: Evidence, progress: Sequence[Event]) -> list[Death]:
    """The fatal signals that no launcher, scheduler, watchdog or traceback accounts for; the telling ones first."""
    found = [
        death for name in ("launchers", "exits", "signals", "fatals", "workers") for death in _told(evidence, name)
    ]
    found = [death for death in found if not _recovered(death.row, evidence, progress)]
    found = [death for death in found if not _ended(death, evidence)]
    found = _without_forced(found, evidence["launchers"].events)
    found = [death for death in found if not _aborted_for_others(death, evidence)]
    own = [row for row in unhandled(evidence["exceptions"].events, progress) if not row.get("logged")]
    own += [row for row in evidence["memory"].events if row.role is Role.ROOT and followed_by(row, progress) is None]
    found = [death for death in found if not _has_traceback(death, own)]
    return sorted(found, key=lambda death: (not death.first, death.source != "launchers", death.rank is None))


def survived(evidence: Evidence, progress: Sequence[Event]) -> tuple[Death, list[Claim]] | None:
    """The first death after which the launcher started its workers again, and what shows that."""
    for name in ("launchers", "exits", "signals", "fatals", "workers"):
        for death in _told(evidence, name):
            if told := lived_on(evidence, death.row, progress):
                return death, told
    return None


def host_oom(evidence: Evidence, run: Run, progress: Sequence[Event]) -> tuple[Value, Event | Record] | None:
    """What shows that the kernel, Slurm or Ray killed for host memory in this run, if anything does."""
    kills = evidence["kills"]
    for row in kills.events:
        if row.role is Role.ROOT and of_run(row, run) and not _recovered(row, evidence, progress):
            return kills.value(row, "text"), row
    job, jobs, steps = last_job(evidence["jobs"]), evidence["jobs"], evidence["steps"]
    if job is not None and job.get("state") == "OUT_OF_MEMORY":
        return jobs.value(job, "state"), job
    for step in steps.records:
        if step.get("state") == "OUT_OF_MEMORY":
            return steps.value(step, "state"), step
    return None


def lost_workers(evidence: Evidence, progress: Sequence[Event]) -> list[tuple[Event, Value]]:
    """What tells of workers of Ray or of a pool that went without a word, where nothing accounts for it."""
    if unhandled(evidence["exceptions"].events, progress) or evidence["timeouts"] or evidence["memory"]:
        return []
    exits, raised = evidence["exits"], evidence["exceptions"]
    told = [(row, exits) for row in exits.events if row.get("source") == "ray" and exit_signal(row) is None]
    told = [(row, frame) for row, frame in told if row.role is Role.ROOT]
    told += [(row, raised) for row in raised.events if _ABRUPT.search(str(row.get("message") or ""))]
    return [(row, frame.value(row, "text")) for row, frame in told if not _recovered(row, evidence, progress)]


def recorded_signal(evidence: Evidence) -> tuple[int, Value, bool] | None:
    """(number, where it is recorded, whether it may be a plain exit code) from the scheduler's records alone."""
    job = last_job(evidence["jobs"])
    if job is None or job.get("state") in CUT_SHORT or job.get("state") == "COMPLETED":
        return None
    rows: list[tuple[Frame, Record]] = [(evidence["jobs"], job)]
    rows += [(evidence["steps"], row) for row in evidence["steps"].records if row.get("state") not in CUT_SHORT]
    for frame, row in rows:
        number = exit_signal(row)
        if number in FATAL_SIGNALS:
            return number, frame.value(row, "signal" if row.get("signal") else "exit_code"), False
    code = job.get("exit_code")
    # A shell or srun names the signal in the output; where that was read and names none, it is an exit code.
    if code in AMBIGUOUS and isinstance(code, int) and not evidence.has("exits"):
        return code, evidence["jobs"].value(job, "exit_code"), True
    return None


def _told(evidence: Evidence, name: str) -> Iterable[Death]:
    frame = evidence[name]
    for row in frame.events:
        if row.role is not Role.ROOT:
            continue
        number = _number(str(row.get("what") or "")) if name == "fatals" else exit_signal(row)
        if number in FATAL_SIGNALS:
            yield Death(number, row, frame.value(row, "text"), rank_of(row, evidence["launchers"]), name)


def _number(what: str) -> int:
    """The signal behind a 'Fatal Python error' or a crash handler's report; those that name none abort."""
    text = what.lower().replace("-", " ")
    return signal_number(what.partition(" ")[0]) or next(
        (number for name, number in DESCRIPTIONS.items() if text.startswith(name)), ABORT
    )


def of_run(row: Event, run: Run) -> bool:
    """Whether a kill belongs to the run, where its cgroup or step names a job."""
    ids = {str(name) for name in (run.id, *run.aliases) if name}
    step, cgroup = str(row.get("step") or ""), str(row.get("cgroup") or "")
    if "job_" in cgroup:
        return not ids or cgroup.split("job_", 1)[1].split("/")[0] in ids
    return not ids or not step[:1].isdigit() or step.split(".")[0].split("+")[0] in ids


def _recovered(row: Event, evidence: Evidence, progress: Sequence[Event]) -> bool:
    """Whether training went on after it. In a log that several writers share, points may be written late: behind a
    run that ended badly they count only with a time of their own, or after a launcher's restart."""
    after = [point for point in progress if follows(point, row)]
    if any(row.time is not None and point.time is not None and point.time > row.time for point in after):
        return True
    return bool(after) and (bool(evidence["restarts"]) or abnormal_end(evidence) is None)


def _ended(death: Death, evidence: Evidence) -> bool:
    """Whether somebody had ended the run before: the notice stands earlier, or the record says so and none does."""
    notices = [row for row in evidence["notices"].events if row.get("reason") != "out_of_memory"]
    notices = [row for row in notices if row.role is Role.ROOT and row.get("reason") != "launch_failure"]
    order = [follows(notice, death.row) for notice in notices]
    if any(after is False for after in order):
        return True
    job = last_job(evidence["jobs"])
    if job is None or job.get("state") not in CUT_SHORT or any(order):
        return False
    return death.number == KILL


def _without_forced(found: list[Death], launchers: Sequence[Event]) -> list[Death]:
    """Leave out SIGKILLs that came so long after the first failure that the launcher must have sent them."""
    times = [row.time for row in launchers if row.time is not None]
    start = min(times) if times else None
    return [
        death
        for death in found
        if start is None
        or death.number != KILL
        or death.source != "launchers"
        or death.row.time is None
        or death.row.time - start < FORCED_AFTER_S
    ]


def _aborted_for_others(death: Death, evidence: Evidence) -> bool:
    """SIGABRT after a collective's time-out or a CUDA error on that rank: the runtime's own way to give up.

    A CUDA error that no exception tells of leaves the abort as the best witness, unless it is the hardware's."""
    if death.number != ABORT:
        return False
    causes = [*evidence["timeouts"].events, *evidence["heartbeats"].events]
    told = [row for row in evidence["exceptions"].events if row.get("about") in ("cuda", "collective")]
    device = [row for row in evidence["device"].events if row.role in (Role.ROOT, Role.CASCADE)]
    causes += [row for row in device if told or row.get("name") in BROKEN]
    return any(row.rank is None or death.rank is None or row.rank == death.rank for row in causes)


def _has_traceback(death: Death, own: Sequence[Event]) -> bool:
    """Whether an exception accounts for the death: the rank's own, or an earlier one where ranks aren't told."""
    if death.source == "workers":
        return False
    for row in own:
        if row.get("about") in ("dataloader", "host_memory"):
            continue
        if death.rank is not None and row.rank is not None:
            if death.rank == row.rank or (not death.first and follows(death.row, row)):
                return True
        elif not death.first and follows(death.row, row) is not False:
            return True
    return False
