"""How far a run had come before a given event: startup, or training, which a logged step or GPU work shows."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.startup import StartupUse
from trackside.facts.logs.order import points_before
from trackside.facts.training.learning import Trajectory, last_logged, place_of
from trackside.finding import Claim, Sentence
from trackside.model import Event

GPUS_HAD_COMPUTED = Sentence("the GPUs had computed for {seconds} before the failure")
NO_STEP_BEFORE = Sentence("no training step was recognized in the log before the failure")


@dataclass(frozen=True, eq=False)
class Phase:
    """How far the run had come."""

    trajectory: Maybe[Trajectory]
    use: StartupUse

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


@fact()
def phase(trajectory: Maybe[Trajectory], use: StartupUse) -> Phase:
    """Needs no particular input: without a logged step or GPU work, it is startup."""
    return Phase(trajectory, use)
