"""Deaths by a fatal signal: which processes died of their own signal, and which were ended by something else.

A report is dropped if training continued after it, if the run had been ended before, if a launcher sent the signal to
the remaining ranks, if the runtime aborted because of another rank, or if a traceback explains it. srun may report a
death only after it ended the step; it counts if the connection of that rank to a peer had closed before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.catalog.signals import DESCRIPTIONS, signal_name, signal_number
from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import CUT_SHORT, FATAL_SIGNALS, Ending, exit_signal
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import follows, last_after
from trackside.facts.logs.restarts import LauncherRestarts
from trackside.facts.ranks import rank_of, ranks_of
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole
from trackside.query import events, metric, record

ABORT, KILL = 6, 9
HARDWARE_ERRORS = ("uncorrectable ECC error", "uncorrectable NVLink error", "device lost")
"""CUDA errors caused by hardware: they explain the run's end better than the abort that follows them."""
SOURCES = ("launchers", "exits", "signals", "fatals", "workers")
"""Reporters of a death: a launcher, a shell or srun, the process's own handler, Python, its parent."""

RELIABLE_SOURCES = ("launchers", "workers", "fatals")
"""Sources that waited for the process that died, or its own Python."""

DIED = Sentence("a process was killed by {signal}: {line}")
DIED_ON = Sentence("{signal} killed {ranks}")
WORKER_DIED = Sentence("a data-loader worker was killed by {signal}: {line}")
WORKER_DIED_ON = Sentence("{signal} killed a data-loader worker of {ranks}")
ALSO_REPORTED = Sentence("also reported: {line}")
CONNECTION_CLOSED = Sentence("its connection to another rank had closed before Slurm ended the step: {line}")
PEER_CLOSED = re.compile(r"Connection (?:closed|reset) by peer|Broken pipe")
"""What the kernel of a peer reports after a process ended; a failed network or a rank that hangs gives other errors."""


@dataclass(frozen=True)
class Limits:
    """When a signal is the launcher's."""

    forced_after_s: float = 15.0
    """A SIGKILL this long after the first failure is a launcher's: torchrun waits 30 s for SIGTERM to take effect,
    Slurm's KillWait is 30 s; peers that die of the same cause do so within seconds."""
    max_report_delay_s: float = 60.0
    """A launcher sees that a process died up to this much later: it checks every few seconds, at most every 30 s."""


@dataclass(frozen=True, slots=True)
class Death:
    """One report that a process died of fatal signal ``number``; ``line`` cites it."""

    number: int
    row: Event
    line: Value
    rank: int | None
    source: str
    """One of :data:`SOURCES`."""

    @property
    def first(self) -> bool:
        """Whether a launcher calls it the first failure."""
        return self.row.get("first") is True


@dataclass(frozen=True, slots=True)
class DeathReport:
    """The summary of the unexplained deaths: the most informative one, and those that agree with it."""

    main: Death
    ranks: tuple[int, ...]
    """All ranks that died of that signal."""
    claims: tuple[Claim, ...]
    strong: bool
    """Whether several sources report deaths, or one reliable source does. An abort says why, above its report: without
    that, or anything else of the run, its log is not whole."""
    exception: tuple[str, str] | None
    """The exception of the main process whose DataLoader worker was killed."""


@dataclass(frozen=True, eq=False)
class Deaths:
    """Reports of deaths by a fatal signal."""

    evidence: Evidence
    ending: Ending
    restarts: LauncherRestarts
    exceptions: Exceptions
    points: tuple[Event, ...]
    """Logged steps."""
    limits: Limits

    @property
    def frames(self) -> Mapping[str, Frame]:
        """The reports, by source."""
        return {"launchers": self.ending.launchers, **{source: self.evidence[source] for source in SOURCES[1:]}}

    @property
    def own_exceptions(self) -> tuple[Event, ...]:
        """The job's own unhandled exceptions."""
        return self.exceptions.unhandled

    @property
    def memory(self) -> Frame:
        """CUDA errors about exhausted GPU memory."""
        return self.evidence["memory"]

    @property
    def missing_log(self) -> Missing | None:
        """Why no log was read; None if one was."""
        return self.evidence.missing("exceptions")

    @cached_property
    def reports(self) -> tuple[Death, ...]:
        """Every report, source by source."""
        return tuple(death for source in SOURCES for death in self._reports(source))

    @cached_property
    def unexplained(self) -> tuple[Death, ...]:
        """The deaths that no launcher, scheduler, watchdog or traceback explains; the most informative first."""
        rules = (self._ended_before, self._is_forced_kill, self._aborted_for_others, self._has_traceback)
        left = (death for death in self.reports if not self.restarts.has_recovered(death.row))
        deaths = [death for death in left if not any(rule(death) for rule in rules)]
        return tuple(
            sorted(deaths, key=lambda death: (not death.first, death.source != "launchers", death.rank is None))
        )

    @cached_property
    def report(self) -> DeathReport | None:
        """The summary of the unexplained deaths, if there are any."""
        if not self.unexplained:
            return None
        main = self.unexplained[0]
        same = [death for death in self.unexplained if death.number == main.number]
        sources = {death.source for death in self.unexplained}
        ranks = ranks_of([death.row for death in same], self.ending.launchers)
        values = {"signal": derived(signal_name(main.number), main.line), "line": main.line}
        worker = main.source == "workers"  # the parent lives, and reports the death
        sentence = WORKER_DIED if worker else DIED
        if ranks:
            sentence = WORKER_DIED_ON if worker else DIED_ON
            values["ranks"] = derived(ranks, *(death.line for death in same if death.rank is not None))
        firsts = {death.source: death for death in reversed(same) if death.source != main.source}
        also = [ALSO_REPORTED(line=death.line) for death in same if firsts.get(death.source) is death]
        if main.row.role is not EventRole.ROOT and self._closed_connection is not None:
            also.append(CONNECTION_CLOSED(line=self._closed_connection[1]))
        strong = len(sources) > 1 or main.source in RELIABLE_SOURCES
        strong = strong and (main.number != ABORT or "fatals" in sources or bool(self.points))
        return DeathReport(
            main, ranks, (sentence(**values), *also), strong, self._parent if "workers" in sources else None
        )

    def since(self, row: Event) -> float | None:
        """When the process died, POSIX seconds: a launcher reports it later than the process or its peers do."""
        if row.time is None:
            return None
        signs = [*(death.row for death in self.unexplained), *self.evidence["lost"].events]
        earliest = row.time - self.limits.max_report_delay_s
        return min([row.time, *(sign.time for sign in signs if sign.time is not None and sign.time >= earliest)])

    @property
    def _parent(self) -> tuple[str, str] | None:
        """The exception of a process whose DataLoader worker was killed."""
        row = next((row for row in self.exceptions.frame.events if row.get("about") == "dataloader"), None)
        return None if row is None else (str(row.get("type")), str(row.get("message") or ""))

    @cached_property
    def recovered_death(self) -> tuple[Death, tuple[Claim, ...]] | None:
        """The first death after which the launcher restarted its workers, and the evidence for that."""
        restarts = ((death, self.restarts.restart_claims(death.row)) for death in self.reports)
        return next(((death, claims) for death, claims in restarts if claims), None)

    def _reports(self, source: str) -> Iterator[Death]:
        frame = self.frames[source]
        for row in frame.events:
            if row.role is not EventRole.ROOT and not self._is_reported_late(row, source):
                continue
            number = _named_signal(str(row.get("what") or "")) if source == "fatals" else exit_signal(row)
            if number in FATAL_SIGNALS:
                yield Death(number, row, frame.value(row, "text"), rank_of(row, self.ending.launchers), source)

    def _is_reported_late(self, row: Event, source: str) -> bool:
        """Whether srun, having ended the step, reports a SIGKILL that the rank had died of before: it is the only rank
        killed, and a peer had seen its connection close."""
        if source != "exits" or exit_signal(row) != KILL or self._closed_connection is None:
            return False
        killed_ranks = {end.rank for end in self.evidence["exits"].events if exit_signal(end) == KILL}
        if killed_ranks != {row.rank} or row.rank is None:
            return False
        notices = [notice for notice in self.ending.notices.events if follows(notice, row) is not True]
        closed, _ = self._closed_connection
        return row.rank != closed.rank and all(
            notice.get("reason") == "step_ended" and follows(notice, closed) for notice in notices
        )

    @cached_property
    def _closed_connection(self) -> tuple[Event, Value] | None:
        """The first rank's report that a peer closed its connection, if no rank has an error of its own."""
        if self.own_exceptions or self.evidence["timeouts"] or self.memory:
            return None
        frame = self.evidence["lost"]
        row = next((row for row in frame.events if row.rank is not None and PEER_CLOSED.search(row.text)), None)
        return None if row is None else (row, frame.value(row, "text"))

    def _ended_before(self, death: Death) -> bool:
        """Whether the run had been ended before: an earlier notice, or, without notices, the record."""
        notices = (row for row in self.ending.notices.events if row.role is EventRole.ROOT)
        own_reasons = ("out_of_memory", "launch_failure")
        order = [follows(notice, death.row) for notice in notices if notice.get("reason") not in own_reasons]
        if any(after is False for after in order):
            return True
        job = self.ending.job
        if job is None or job.get("state") not in CUT_SHORT or any(order):
            return False
        return death.number == KILL

    def _is_forced_kill(self, death: Death) -> bool:
        """Whether a SIGKILL came so long after the first failure that the launcher must have sent it."""
        if death.number != KILL or death.source != "launchers" or death.row.time is None:
            return False
        first = min(row.time for row in self.ending.launchers.events if row.time is not None)
        return death.row.time - first >= self.limits.forced_after_s

    def _aborted_for_others(self, death: Death) -> bool:
        """Whether it is the SIGABRT with which the runtime aborts after a collective timeout or a CUDA error on that
        rank.

        A CUDA error without an exception leaves the abort as the best evidence, unless hardware caused it.
        """
        if death.number != ABORT:
            return False
        accounted = any(row.get("about") in ("cuda", "collective") for row in self.exceptions.frame.events)
        device = [row for row in self.evidence["device"].events if row.role in (EventRole.ROOT, EventRole.CASCADE)]
        causes = [*self.evidence["timeouts"].events, *self.evidence["heartbeats"].events]
        causes += [row for row in device if accounted or row.get("name") in HARDWARE_ERRORS]
        return any(row.rank is None or death.rank is None or row.rank == death.rank for row in causes)

    def _has_traceback(self, death: Death) -> bool:
        """Whether an exception explains the death: the rank's own, or an earlier one if ranks are unknown."""
        if death.source == "workers":
            return False
        for row in self._tracebacks:
            if death.rank is not None and row.rank is not None:
                if death.rank == row.rank or (not death.first and follows(death.row, row)):
                    return True
            elif not death.first and follows(death.row, row) is not False:
                return True
        return False

    @cached_property
    def _tracebacks(self) -> tuple[Event, ...]:
        """Exceptions and GPU memory errors that can explain a death."""
        rows = [row for row in self.own_exceptions if not row.get("logged")]
        rows += [
            row for row in self.memory.events if row.role is EventRole.ROOT and last_after(row, self.points) is None
        ]
        return tuple(row for row in rows if row.get("about") not in ("dataloader", "host_memory"))


@fact(
    {
        "exceptions": events("exception"),
        "jobs": record("job"),
        "kills": events("oom_kill"),
        "counts": metric("host_oom_kills_total").over("around", "last"),
        "exits": events("process_exit"),
        "signals": events("signal_received"),
        "fatals": events("python_fatal"),
        "workers": events("dataloader_death"),
        "timeouts": events("collective_timeout"),
        "heartbeats": events("heartbeat_lost"),
        "device": events("cuda_error"),
        "memory": events("cuda_oom"),
        "lost": events("peer_lost"),
    },
    needs=(("exceptions", "jobs", "kills", "counts"),),
    limits=Limits(),
)
def deaths(
    evidence: Evidence,
    ending: Ending,
    restarts: LauncherRestarts,
    exceptions: Exceptions,
    trajectory: Maybe[Trajectory],
    limits: Limits,
) -> Deaths:
    """Needs a job log, a job record, a kernel log or a counter of OOM kills; otherwise missing."""
    points = () if isinstance(trajectory, Missing) else trajectory.points
    return Deaths(evidence, ending, restarts, exceptions, points, limits)


def _named_signal(what: str) -> int:
    """The signal behind a 'Fatal Python error' or a crash handler's report; SIGABRT if none is named."""
    text = what.lower().replace("-", " ")
    return signal_number(what.partition(" ")[0]) or next(
        (number for name, number in DESCRIPTIONS.items() if text.startswith(name)), ABORT
    )
