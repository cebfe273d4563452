"""What shows that a model learned: its training loss, its evaluation loss and its scores, together."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.facts.training.evaluations import Evaluations
from trackside.facts.training.loss_curve import LossCurve
from trackside.facts.training.scores import Scores


@dataclass(frozen=True)
class LearningEvidence:
    """Training loss, evaluation loss and scores."""

    loss: LossCurve | None
    evaluations: Evaluations
    scores: Scores

    @property
    def readable(self) -> bool:
        """Whether any learning progress could be read."""
        points = self.loss is not None and bool(self.loss.curve.points)
        return points or bool(self.evaluations.losses or self.scores.series)

    @property
    def learned(self) -> bool:
        """Whether there is enough data to judge the learning."""
        has_losses = self.loss is not None and len(self.loss.curve.finite) > 1
        return self.evaluations.fell or has_losses or self.scores.improved

    @property
    def right_way(self) -> bool:
        """Whether learning went the right way: a loss fell, or a score improved while no loss rose."""
        curve = None if self.loss is None else self.loss.curve
        rose = curve is not None and curve.level_has_meaning and curve.has_risen
        return self.loss_fell or self.evaluations.fell or (self.scores.improved and not rose)

    @property
    def overfits(self) -> bool:
        """Whether the training loss fell while the evaluation loss rose, and no score improved."""
        return self.loss_fell and self.evaluations.rose and not self.scores.improved

    @property
    def only_scores(self) -> bool:
        """Whether scores are all that shows learning."""
        has_loss = self.loss is not None and bool(self.loss.curve.finite)
        return bool(self.scores.series) and not has_loss and not self.evaluations.losses

    @property
    def score_values(self) -> int:
        """Values of the score that shows learning best."""
        return 0 if self.scores.best is None else len(self.scores.best.rows)

    @property
    def loss_fell(self) -> bool:
        """Whether the training loss fell, and that shows something: in reinforcement learning it does not."""
        return self.loss is not None and self.loss.curve.has_fallen and not self.loss.curve.is_of_reinforcement
