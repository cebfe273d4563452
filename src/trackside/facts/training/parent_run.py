"""The training that this run resumes: its parent's points, else those of the run's previous part.

A launcher that restarts its workers, or a scheduler that requeues the job, begins another part of the same run;
if a checkpoint was saved before, it should continue from there. The parent's points do not show what it saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame
from trackside.facts.fact import fact
from trackside.facts.training.learning import TrainingCurve, Trajectory, numeric_field, training_curve
from trackside.model import Run
from trackside.query import events


@dataclass(frozen=True, eq=False)
class ParentRun:
    """What came before the last run part."""

    points: Frame
    """The points printed by its parent."""
    curve: TrainingCurve | None
    """The points and losses of the parent, or of the previous run part; None if there is none."""

    @property
    def has_learned(self) -> bool:
        """Whether its loss fell."""
        losses = [] if self.curve is None else self.curve.finite
        return len(losses) > 1 and losses[-1] < losses[0]


@fact({"points": events("parent_progress"), "restarts": events("launcher_restart")})
def parent_run(evidence: Evidence, trajectory: Trajectory, run: Run) -> ParentRun:
    """Needs a job log; without a curve if neither the parent's output nor the run's own shows an earlier run part."""
    points = evidence["points"]
    if run.parent is not None and points:
        return ParentRun(points, training_curve(points))
    progress = trajectory.progress
    parts = {numeric_field(row, "run_part") or 0.0 for row in progress.events}
    if len(parts) < 2 or not (evidence["restarts"] or len(run.attempts) > 1) or not trajectory.saves:
        return ParentRun(points, None)
    return ParentRun(points, training_curve(progress.filtered(lambda row: row.get("run_part") != max(parts))))
