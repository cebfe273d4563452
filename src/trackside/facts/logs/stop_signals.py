"""Signals that asked the run to stop (SIGTERM, SIGHUP, a time limiter), and what else accounts for its end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending, exit_signal
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import first, followed_by, follows
from trackside.facts.training.learning import Trajectory
from trackside.model import Event, Role
from trackside.query import events

SIGTERM = 15
STOPPING = (SIGTERM, 1)
"""Signals that ask a process to end: SIGTERM, and SIGHUP when the session that started it goes away."""
TIMED_OUT = 124
"""Exit code of coreutils' timeout."""
NAMED = re.compile(r"\b(?:15|1)$")
"""The number of such a signal at the end of an exception's message."""


@dataclass(frozen=True, eq=False)
class StopSignals:
    """Signs that the run was asked to stop, after which no training point came."""

    frame: Frame
    """The signals that processes say they received."""
    sign: Event | None
    """The first sign."""
    line: Value | None
    """Its line."""
    other_causes: tuple[Frame, ...]
    """Deaths of workers, kills for memory, time-outs and interrupts: any accounts for the end."""
    ending: Ending
    exceptions: Maybe[Exceptions]

    @cached_property
    def accounted(self) -> Value | None:
        """Another failure that explains the signal as teardown: anything of the run's own, unless known to be later."""
        if self.sign is None:
            return None
        for frame in (self.ending.launchers, self.ending.exits):
            for row in frame.events:
                if self._failed(row) and (row.role is Role.ROOT or not self._escalated(row)):
                    return frame.value(row, "text")
        if not isinstance(self.exceptions, Missing):
            for row in self.exceptions.unhandled:
                if follows(row, self.sign) is not True:
                    return self.exceptions.frame.value(row, "type")
        cause = next((frame for frame in self.other_causes if frame), None)
        return None if cause is None else cause.value(cause.events[0], "text")

    def _failed(self, row: Event) -> bool:
        """Whether a process ended otherwise than by being asked to."""
        number, code = exit_signal(row), row.get("exit_code")
        if code in (1, TIMED_OUT):
            return False
        return number not in (None, SIGTERM, 1, 2) or (number is None and code not in (None, 0))

    def _escalated(self, row: Event) -> bool:
        """SIGKILL that follows SIGTERM is its escalation."""
        return self.sign is not None and exit_signal(row) == 9 and follows(row, self.sign) is True


@fact(
    {
        "signals": events("signal_received"),
        "deaths": events("dataloader_death"),
        "oom_kills": events("oom_kill"),
        "timeouts": events("collective_timeout"),
    },
    needs=("signals",),
)
def stop_signals(
    evidence: Evidence, ending: Ending, exceptions: Maybe[Exceptions], trajectory: Maybe[Trajectory]
) -> StopSignals:
    """Of what processes and launchers report; missing if no log was given."""
    frame = evidence["signals"]
    rows = [(row, frame) for row in frame.events if row.get("signal") in STOPPING]
    for other in (ending.exits, ending.launchers):
        ended = (row for row in other.events if exit_signal(row) == SIGTERM or row.get("exit_code") == TIMED_OUT)
        rows += [(row, other) for row in ended]
    if not isinstance(exceptions, Missing):
        raised = (row for row in exceptions.frame.events if row.get("about") == "signal")
        rows += [(row, exceptions.frame) for row in raised if NAMED.search(str(row.get("message")))]
    points = () if isinstance(trajectory, Missing) else trajectory.points
    last = [(row, of) for row, of in rows if followed_by(row, points) is None]
    sign = first([row for row, _ in last])
    line = next((of.value(row, "text") for row, of in last if row is sign), None)
    causes = (*(evidence[name] for name in ("deaths", "oom_kills", "timeouts")), ending.interrupts)
    return StopSignals(frame, sign, line, causes, ending, exceptions)
