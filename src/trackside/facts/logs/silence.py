"""Silence before the end: how long the run printed nothing, compared with its usual interval.

If its lines carry no time, the completed steps at their printed pace are compared with the run's elapsed time instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import Trajectory, logged_steps, numeric_field
from trackside.model import Event, Run
from trackside.query import Query, events

_ERROR_OUTPUT = re.compile(r"(?:\.|[._-])(?:std)?err(?:or)?(?:\.(?:txt|log))?$|\.e\d{3,}(?:[.-]\d+)?$")
SIGNS_OF_LIFE: Mapping[str, Query] = {
    "progress": events("progress"),
    "starts": events("training_start"),
    "saves": events("checkpoint_saved"),
    "evaluations": events("evaluation"),
    "inits": events("distributed_init"),
    "ready": events("distributed_ready"),
    "communicators": events("nccl_init"),
    "logs": events("log_activity"),
}
"""Signs that the job was active at a time."""


@dataclass(frozen=True)
class Limits:
    """When silence exceeds the usual interval of the run."""

    min_intervals: float = 10.0
    """Number of printed intervals without output; evaluation and saves take a few."""
    min_silence_s: float = 600.0
    """PyTorch's default timeout of an NCCL process group; evaluations and saves of healthy runs stay below it."""
    min_share: float = 0.25
    """Share of the run's duration, for runs too short for ``min_silence_s``."""
    unstamped_share: float = 0.6
    """Share of the run's duration that its steps do not explain, if lines carry no time: startup and saves may take
    the remainder."""
    max_unstamped_lines: int = 20
    """Number of lines without a time after the last stamped one that a run prints in a moment: warnings, a summary."""
    collector_delay_s: float = 2.0
    """How much later a collector's time of a line may be than the line's own."""
    open_share: float = 0.35
    """It is unclear what the run did if its steps do not explain at least this share: startup, saves and evaluations
    take at most a third of healthy runs."""


@dataclass(frozen=True, eq=False)
class Silence:
    """Signs of life in the log, and the silence after the last of them."""

    signs: Mapping[str, Frame]
    """The frames of :data:`SIGNS_OF_LIFE`, by name; empty if there is no answer."""
    hosts: Frame
    ending: Ending
    trajectory: Maybe[Trajectory]
    run: Run
    limits: Limits
    missing_log: Missing | None = None
    """Why no log was read; None if one was."""

    def last_sign(self, names: Iterable[str] = tuple(SIGNS_OF_LIFE)) -> Value | None:
        """Time of the last stamped sign of life of these kinds, POSIX seconds; the scheduler's lines do not count."""
        best: tuple[float, Frame, Event, str] | None = None
        for name in names:
            frame = self.signs[name]
            for row in frame.events:
                fields = ("time", "last_own_time", "first_time") if row.kind == "log_activity" else ("time",)
                for field in fields:
                    time = row.get(field)
                    if len(fields) > 1 and self._is_notice(row.at.path, time):
                        continue
                    if isinstance(time, (int, float)) and (best is None or time > best[0]):
                        best = (float(time), frame, row, field)
                    break
        return None if best is None else best[1].value(best[2], best[3], "time")

    def _is_notice(self, path: str, time: object) -> bool:
        """Whether a time in this file is that of a scheduler's notice: a collector dates it a moment later."""
        if not isinstance(time, (int, float)):
            return False
        notices = (row.time for row in self.ending.notices.events if row.at.path == path and row.time is not None)
        return any(abs(time - other) <= self.limits.collector_delay_s for other in notices)

    def seconds(self, names: Iterable[str] = tuple(SIGNS_OF_LIFE)) -> Value | None:
        """Seconds from the last stamped sign of life to the run's end (or to now, if it still runs); None if
        unknown."""
        sign, end = self.last_sign(names), self.ending.time
        last = self.run.end if end is None else end.value
        if sign is None or not isinstance(last, (int, float)) or not isinstance(sign.value, (int, float)):
            return None
        return derived(max(0.0, last - sign.value), *([] if end is None else [end]), sign, unit="s")

    def sign_after(self, time: float) -> Value | None:
        """The last stamped sign of life, if it came after ``time``: the job continued by itself."""
        sign = self.last_sign()
        return sign if sign is not None and isinstance(sign.value, (int, float)) and sign.value > time else None

    def first_line(self, *names: str) -> Value | None:
        """The first line of the first of these kinds that has any."""
        frames = (self.signs[name] for name in names)
        return next((frame.value(frame.events[0], "text") for frame in frames if frame.events), None)

    @cached_property
    def points(self) -> tuple[Event, ...]:
        """The printed logged steps, without evaluations."""
        return tuple(logged_steps(self.signs["progress"]))

    @cached_property
    def formed(self) -> tuple[Event, ...]:
        """Evidence that a process group formed."""
        done = (row for row in self.signs["communicators"].events if row.get("complete"))
        return (*self.signs["ready"].events, *done)

    @cached_property
    def starts(self) -> tuple[Event, ...]:
        """Evidence that several ranks were started: their initialization lines, else the launcher's."""
        launched = tuple(row for row in self.hosts.events if row.get("command") == "torchrun")
        return self.signs["inits"].events or launched

    @cached_property
    def own_lines(self) -> Value | None:
        """Lines written by the job itself: those of its logs minus the scheduler's closing lines."""
        logs, notices = self.signs["logs"], self.ending.notices
        rows = [row for row in logs.events if isinstance(row.get("lines"), int)]
        if not rows:
            return None
        paths = {row.at.path for row in rows}
        closing = [row for row in notices.events if row.at.path in paths]
        sources = [logs.value(row, "lines") for row in rows] + [notices.value(row, "text") for row in closing]
        exits = self.ending.exits.events
        closing += [row for row in exits if row.at.path in paths and row.get("source") == "srun"]
        count = sum(int(str(row.get("lines"))) for row in rows) - len({(row.at.path, row.at.line) for row in closing})
        return derived(max(0, count), *sources, unit="lines")

    @cached_property
    def only_error_output(self) -> bool:
        """Whether all logs are, by their names, what the job wrote to its standard error, without a logged step: its
        standard output may have gone on."""
        paths = {row.at.path for row in self.signs["logs"].events}
        return bool(paths) and not self.points and all(_ERROR_OUTPUT.search(path) for path in paths)

    @cached_property
    def stall(self) -> tuple[Value, bool] | None:
        """(seconds without activity before the end, whether timestamps prove it); None if it stayed active or nothing
        shows it."""
        trajectory, limits, elapsed = self.trajectory, self.limits, self.ending.elapsed
        if not isinstance(trajectory, Missing) and trajectory.points and not trajectory.has_times:
            left = self._left
            if left is None or elapsed is None or left.number < limits.unstamped_share * elapsed.number:
                return None
            return left, False
        quiet = self.seconds()
        if quiet is None or self.only_error_output or self._prints_without_time:
            return None
        interval_s = 0.0 if isinstance(trajectory, Missing) else trajectory.interval_s
        length = quiet.number
        long = length >= limits.min_silence_s or (elapsed is not None and length >= limits.min_share * elapsed.number)
        return (quiet, True) if long and length >= limits.min_intervals * interval_s else None

    @property
    def _prints_without_time(self) -> bool:
        """Whether a log goes on after its last stamped line, without times or with times in an unknown form: then it
        may have been active."""
        logs = self.signs["logs"].events
        counts = (row.get("unstamped_lines") for row in logs)
        many = any(isinstance(count, int) and count > self.limits.max_unstamped_lines for count in counts)
        return many or any(row.get("unread_times") for row in logs)

    @cached_property
    def unaccounted(self) -> Value | None:
        """Seconds that the completed steps, at their printed pace, do not explain, if lines carry no time and the
        remainder is more than saves and startup usually take: it is unclear what the run did then."""
        trajectory, elapsed = self.trajectory, self.ending.elapsed
        if isinstance(trajectory, Missing) or not trajectory.points or trajectory.has_times or elapsed is None:
            return None
        left, limits = self._left, self.limits
        enough = left is not None and left.number >= max(limits.min_silence_s, limits.open_share * elapsed.number)
        return left if enough else None

    @cached_property
    def _left(self) -> Value | None:
        """Seconds of the run that the completed steps, at their printed pace, do not explain."""
        trajectory, elapsed = self.trajectory, self.ending.elapsed
        if isinstance(trajectory, Missing) or trajectory.last is None or elapsed is None:
            return None
        elapsed_s = numeric_field(trajectory.last, "elapsed_s")
        if elapsed_s is not None:
            printed = trajectory.progress.value(trajectory.last, "elapsed_s", "s")
            return derived(round(elapsed.number - elapsed_s, 1), elapsed, printed, unit="s")
        pace, done = trajectory.step_seconds, trajectory.done
        if pace is None or done is None:
            return None
        return derived(round(elapsed.number - done.number * pace.number, 1), elapsed, done, pace, unit="s")

    @cached_property
    def several_ranks(self) -> bool:
        """Whether more than one process took part, as far as known: training scripts run one per GPU."""
        run = self.run
        if len(run.nodes) > 1 or (run.n_ranks or 0) > 1 or (run.n_ranks is None and (run.n_gpus or 0) > 1):
            return True
        for frame in (self.hosts, *(self.signs[name] for name in ("inits", "ready", "communicators"))):
            for row in frame.events:
                sizes = (row.get("world_size"), row.get("nranks"), row.get("nnodes"))
                if any(isinstance(size, int) and size > 1 for size in sizes) or row.get("command") == "torchrun":
                    return True
        return False


@fact({**SIGNS_OF_LIFE, "hosts": events("host")}, limits=Limits())
def silence(evidence: Evidence, ending: Ending, trajectory: Maybe[Trajectory], run: Run, limits: Limits) -> Silence:
    """Needs no particular input; shows no silence without times on the lines of a log or completed steps."""
    signs = {name: evidence[name] for name in SIGNS_OF_LIFE}
    return Silence(signs, evidence["hosts"], ending, trajectory, run, limits, evidence.missing("logs"))
