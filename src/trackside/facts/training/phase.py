"""How far a run had come before a given event: startup, or work, which a logged step, GPU work, a progress bar or an
evaluation shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.startup import StartupUse
from trackside.facts.logs.order import follows, points_before
from trackside.facts.training.learning import Trajectory, last_logged, place_of
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import events

GPUS_HAD_COMPUTED = Sentence("the GPUs had computed for {seconds} before the failure")
NO_STEP_BEFORE = Sentence("no training step was recognized in the log before the failure")
BAR_BEFORE = Sentence("the progress bar above the error had reached {count} of {total} after {elapsed}")
AFTER_EVALUATION = Sentence("the error was raised after an evaluation, in {function}")
_AFTER_EVALUATION = re.compile(
    r"(?:after_|on_)?(?:eval(?:uation)?|validation|test)(?:_epoch)?_end|after_eval(?:uation)?|_?compute_metrics"
    r"|_?report_metrics"
)
"""Functions that run when an evaluation is over."""


@dataclass(frozen=True, eq=False)
class Phase:
    """How far the run had come."""

    trajectory: Maybe[Trajectory]
    use: StartupUse
    bars: Frame
    """The progress bars right above tracebacks."""

    def work_before(self, row: Event, frame: Frame, min_s: float) -> Claim | None:
        """Evidence that a program without a logged step had worked before it raised an exception of ``frame``: a
        progress bar of at least ``min_s`` seconds, or an evaluation that was over; Lightning has one at its start."""
        for bar in reversed(self.bars.events):
            if bar.at.path == row.at.path and follows(row, bar) and self._seconds(bar) >= min_s:
                elapsed = self.bars.value(bar, "elapsed_s", "s")
                values = {name: self.bars.value(bar, name) for name in ("count", "total")}
                return BAR_BEFORE(elapsed=elapsed, **values)
        functions = [part.rpartition(" in ")[2] for part in str(row.get("frames") or "").split(";")]
        ended = next((name for name in functions if _AFTER_EVALUATION.fullmatch(name)), None)
        if ended is None or any("sanity" in name for name in functions):
            return None
        return AFTER_EVALUATION(function=derived(ended, frame.value(row, "frames")))

    @staticmethod
    def _seconds(bar: Event) -> float:
        elapsed = bar.get("elapsed_s")
        return float(elapsed) if isinstance(elapsed, (int, float)) else 0.0

    def points(self, row: Event | None = None) -> list[Event]:
        """The logged steps before an event, or all of them."""
        return [] if isinstance(self.trajectory, Missing) else points_before(self.trajectory.points, row)

    def last_position(self, row: Event | None) -> Value | None:
        """The last logged step or epoch before an event."""
        points = self.points(row)
        if isinstance(self.trajectory, Missing) or not points:
            return None
        return place_of(self.trajectory.progress, points[-1])

    def last_progress_claim(self, row: Event | None) -> Claim | None:
        """The last training progress before an event, if training had begun."""
        points = self.points(row)
        if isinstance(self.trajectory, Missing) or not points:
            return None
        return last_logged(self.trajectory.progress, points[-1])

    def claims(self, row: Event | None, training_s: float) -> tuple[Claim, ...]:
        """Evidence for the phase; ``training_s`` seconds of GPU work count as training even without printed points."""
        if (claim := self.last_progress_claim(row)) is not None:
            return (claim,)
        if (work_s := self.use.trained(training_s)) is not None:
            return GPUS_HAD_COMPUTED(seconds=work_s), *self.use.untouched
        if isinstance(self.trajectory, Missing):
            return self.use.untouched
        return NO_STEP_BEFORE(count=self.trajectory.count), *self.use.untouched


@fact({"bars": events("work_bar")})
def phase(evidence: Evidence, trajectory: Maybe[Trajectory], use: StartupUse) -> Phase:
    """Needs no particular input: without a logged step, GPU work, a long loop or an evaluation, it is startup."""
    return Phase(trajectory, use, evidence["bars"])
