"""Signals that asked the run to stop (SIGTERM, SIGHUP, a time limiter), and other explanations for its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending, exit_signal
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import first, follows, last_after
from trackside.facts.training.learning import Trajectory
from trackside.model import Event, EventRole
from trackside.query import events

SIGTERM, SIGHUP = 15, 1
STOP_SIGNALS = (SIGTERM, SIGHUP)
"""Signals that ask a process to end: SIGTERM, and SIGHUP when its session ends."""
TIMEOUT_EXIT_CODE = 124
"""Exit code of coreutils' timeout."""
NAMED_SIGNAL = re.compile(r"\b(?:15|1)$")
"""The number of such a signal at the end of an exception's message."""


@dataclass(frozen=True)
class StopRequest:
    """The first sign that the run was asked to stop, without a later logged step."""

    frame: Frame
    """Signals that processes report to have received."""
    sign: Event | None = None
    line: Value | None = None
    """The line of the sign."""
    accounted: Value | None = None
    """Another failure that explains the signal as teardown: any failure of the run's own, unless it is known to be
    later."""
    hangup: Value | None = None
    """The line of a SIGHUP that followed another signal."""


@fact(
    {
        "signals": events("signal_received"),
        "deaths": events("dataloader_death"),
        "oom_kills": events("oom_kill"),
        "timeouts": events("collective_timeout"),
    },
    needs=("signals",),
)
def stop_request(
    evidence: Evidence, ending: Ending, exceptions: Exceptions, trajectory: Maybe[Trajectory]
) -> StopRequest:
    """Needs a job log; otherwise missing."""
    frame = evidence["signals"]
    reports = (frame, evidence["deaths"])
    rows = [(row, of) for of in reports for row in of.events if row.get("signal") in STOP_SIGNALS]
    for other in (ending.exits, ending.launchers):
        ended = (
            row for row in other.events if exit_signal(row) == SIGTERM or row.get("exit_code") == TIMEOUT_EXIT_CODE
        )
        rows += [(row, other) for row in ended]
    signals = (row for row in exceptions.frame.events if row.get("about") == "signal")
    rows += [(row, exceptions.frame) for row in signals if NAMED_SIGNAL.search(str(row.get("message")))]
    points = () if isinstance(trajectory, Missing) else trajectory.points
    final = [(row, source) for row, source in rows if last_after(row, points) is None]
    sign = first([row for row, _ in final])
    if sign is None:
        return StopRequest(frame)
    line = next(source.value(row, "text") for row, source in final if row is sign)
    hangups = (source.value(row, "text") for row, source in final if row is not sign and _number(row) == SIGHUP)
    hangup = next(hangups, None) if _number(sign) != SIGHUP else None
    accounted = next(_other_causes(sign, evidence, ending, exceptions), None)
    if accounted is None and all(_is_sent(row) for row, _ in final):
        accounted = next(_failed_workers(ending), None)
    return StopRequest(frame, sign, line, accounted, hangup)


def _number(row: Event) -> int | None:
    """The number of the signal that a row reports."""
    named = NAMED_SIGNAL.search(str(row.get("message"))) if row.kind == "exception" else None
    return exit_signal(row) if named is None else int(named[0])


def _is_sent(row: Event) -> bool:
    """Whether a launcher reports that it sent the signal to one of its workers."""
    return row.kind == "signal_received" and row.get("pid") is not None and row.get("by") != "job"


def _failed_workers(ending: Ending) -> Iterator[Value]:
    """The launcher's reports of workers that failed with an exit code: it ended the others because of them."""
    for row in ending.launchers.events:
        if row.get("exit_code") not in (None, 0, TIMEOUT_EXIT_CODE) and exit_signal(row) is None:
            yield ending.launchers.value(row, "text")


def _other_causes(sign: Event, evidence: Evidence, ending: Ending, exceptions: Exceptions) -> Iterator[Value]:
    """Other explanations for the end."""
    for frame in (ending.launchers, ending.exits):
        for row in frame.events:
            escalated = exit_signal(row) == 9 and follows(row, sign) is True  # SIGKILL after SIGTERM
            if _is_failure(row) and (row.role is EventRole.ROOT or not escalated):
                yield frame.value(row, "text")
    for row in reversed(exceptions.unhandled):  # the last one is the nearest to the signal
        if follows(row, sign) is not True:
            yield exceptions.frame.value(row, "type")
    for frame in (evidence["deaths"], evidence["oom_kills"], evidence["timeouts"], ending.interrupts):
        for row in (row for row in frame.events if row.get("signal") not in STOP_SIGNALS):
            # a worker whose signal is not named, and that ended after the request to stop, was stopped too
            if row.kind != "dataloader_death" or row.get("signal") is not None or follows(row, sign) is not True:
                yield frame.value(row, "text")


def _is_failure(row: Event) -> bool:
    """Whether a process ended for another reason than a request to stop."""
    number, code = exit_signal(row), row.get("exit_code")
    if code in (1, TIMEOUT_EXIT_CODE):
        return False
    return number not in (None, SIGTERM, 1, 2) or (number is None and code not in (None, 0))
