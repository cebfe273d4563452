"""How did the run end: the scheduler's last word, exits and signals, success, silence. Pure.

Every answer is a cited :class:`Value`, or None where the evidence does not tell. A family spreads
:data:`ENDING` (and :data:`LIFE`, for silence) into its asks and hands the :class:`Evidence` over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trackside.catalog.job_states import ALIVE, CLEARING
from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.logs.order import followed_by
from trackside.finding import Claim, claim
from trackside.model import Event, Record, Role, Run
from trackside.query import Query, events, record

ENDING: Mapping[str, Query] = {
    "jobs": record("job"),
    "ends": events("training_end"),
    "launchers": events("launcher_failure"),
    "exits": events("process_exit"),
    "notices": events("scheduler_notice"),
}
"""What tells how a run ended."""

LIFE: Mapping[str, Query] = {
    "progress": events("progress"),
    "starts": events("training_start"),
    "saves": events("checkpoint_saved"),
    "evaluations": events("evaluation"),
    "inits": events("distributed_init"),
    "ready": events("distributed_ready"),
    "communicators": events("nccl_init"),
    "logs": events("log_activity"),
}
"""What shows that the job was doing something at a moment."""

OWN_END_SAYS: Mapping[str, str] = {
    "ended_itself": "the run came to its own end: {line}",
    "aborted_itself": "the run ended by itself and called that end aborted: {line}",
}
"""Sentences of :func:`own_end`."""

BAD_STATES = frozenset(
    ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED", "PREEMPTED", "DEADLINE", "BOOT_FAIL", "REVOKED")
)
LIVE_STATES = ALIVE | CLEARING
CUT_SHORT = frozenset(
    ("TIMEOUT", "CANCELLED", "PREEMPTED", "DEADLINE", "NODE_FAIL", "REQUEUED", "REVOKED", "BOOT_FAIL")
)
"""States in which somebody else ended the run: its last exit code and signals say nothing of its own."""

FATAL_SIGNALS = frozenset({3, 4, 5, 6, 7, 8, 9, 11, 31})
"""Signals of crashes and kills; SIGTERM, SIGINT and the user signals are requests to stop."""


def exit_signal(row: Event | Record) -> int | None:
    """The signal that ended a process: as recorded, or out of a shell's 128+n or a launcher's -n.

    A Python launcher that hands on -n exits with 256-n (247 for SIGKILL); only fatal signals are read so.
    """
    number, code = row.get("signal"), row.get("exit_code")
    if isinstance(number, int) and number > 0:
        return number & 0x7F
    if not isinstance(code, int):
        return None
    if code < 0:
        return -code
    if 128 < code < 128 + 65:
        return code - 128
    return 256 - code if 256 - code in FATAL_SIGNALS and code < 254 else None


def last_job(jobs: Frame) -> Record | None:
    """The record of the job's last attempt, one that is final before one seen while it was still ending."""
    rows = [row for row in jobs.records if row.get("state") is not None]

    def late(row: Record) -> tuple[float, bool, float]:
        start, end = row.get("start"), row.get("end")
        final = row.get("state") not in LIVE_STATES
        began = float(start) if isinstance(start, (int, float)) else 0.0
        return began, final, float(end) if isinstance(end, (int, float)) else 0.0

    return max(rows, key=late) if rows else None


def disposition(evidence: Evidence) -> Value | None:
    """The scheduler's state of the last attempt."""
    jobs = evidence["jobs"]
    row = last_job(jobs)
    return None if row is None else jobs.value(row, "state")


def still_running(evidence: Evidence) -> bool:
    """Whether the scheduler says that the job is not over."""
    state = disposition(evidence)
    return state is not None and state.value in LIVE_STATES


def completed(evidence: Evidence) -> Value | None:
    """What shows that the run ended well: COMPLETED with exit code 0, or the job's own word if none contradicts."""
    state = disposition(evidence)
    if state is not None:
        return state if state.value == "COMPLETED" else None
    ends = evidence["ends"]
    good = [row for row in ends.events if row.get("status") != "aborted"]
    if not good or abnormal_end(evidence) is not None:
        return None
    return ends.value(good[-1], "text" if good[-1].get("status") is None else "status")


def own_end(evidence: Evidence) -> Claim | None:
    """The run's own closing line, and whether it calls that end aborted; None where there is none."""
    ends = evidence["ends"]
    if not ends:
        return None
    row = ends.events[-1]
    key = "aborted_itself" if row.get("status") == "aborted" else "ended_itself"
    return claim(key, line=ends.value(row, "text"))


def abnormal_end(evidence: Evidence) -> Value | None:
    """What shows that the run ended badly: the scheduler's state, else a launcher's or a shell's report."""
    state = disposition(evidence)
    if state is not None:
        return state if state.value in BAD_STATES else None
    for name in ("launchers", "exits"):
        frame = evidence[name]
        for row in frame.events:
            failed = exit_signal(row) is not None or row.get("exit_code") not in (None, 0)
            if failed and followed_by(row, evidence["ends"].events) is None:  # else a helper's, before training ended
                return frame.value(row, "text")
    notices = evidence["notices"]
    return notices.value(notices.events[-1], "reason") if notices.events else None


def last_sign(evidence: Evidence, names: Iterable[str] = tuple(LIFE)) -> Value | None:
    """Time of the last stamped sign of life; a closing line by the scheduler is none of the job's own."""
    notices = {(row.at.path, row.time) for row in evidence["notices"].events}
    best: tuple[float, Frame, Event, str] | None = None
    for name in names:
        frame = evidence[name]
        for row in frame.events:
            field = "time"
            if row.kind == "log_activity" and (row.at.path, row.time) in notices:
                field = "first_time"
            time = row.get(field)
            if isinstance(time, (int, float)) and (best is None or time > best[0]):
                closing = field == "first_time" and (row.at.path, time) in notices
                best = best if closing else (float(time), frame, row, field)
    return None if best is None else best[1].value(best[2], best[3], "time")


def silence_s(evidence: Evidence, run: Run, names: Iterable[str] = tuple(LIFE)) -> Value | None:
    """Seconds from the last stamped sign of life to the run's end (now, for one still going); None if unknown."""
    sign, end = last_sign(evidence, names), ended_at(evidence)
    last = run.end if end is None else end.value
    if sign is None or not isinstance(last, (int, float)) or not isinstance(sign.value, (int, float)):
        return None
    return derived(max(0.0, last - sign.value), *([] if end is None else [end]), sign, unit="s")


def ended_at(evidence: Evidence) -> Value | None:
    """When the run ended: by the scheduler's record, else by its closing words in the output."""
    jobs, notices = evidence["jobs"], evidence["notices"]
    row = last_job(jobs)
    if row is not None and row.get("end") is not None:
        return jobs.value(row, "end", "time")
    closing = [each for each in notices.events if each.time is not None and each.role is Role.ROOT]
    return notices.value(closing[-1], "time", "time") if closing else None
