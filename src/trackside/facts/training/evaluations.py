"""Evaluations as the log prints them, and a score that collapsed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from trackside.evidence import Evidence, Frame, Missing
from trackside.facts import maths
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import events

SCORE = re.compile(r"acc|dice|f1|iou|map\b|score|prec|recall|auc|bleu|rouge", re.IGNORECASE)
NOT_A_SCORE = re.compile(r"loss|ppl|perplexity|error|time|runtime", re.IGNORECASE)

MIN_RISE_SHARE = 0.1
"""Share by which an evaluation loss must rise to be called risen: those of classifiers rise a little while their scores
still improve."""
WORD, LABEL_WORDS = re.compile(r"[a-z]{3,}"), 3

SCORE_COLLAPSED = Sentence(
    "the metric {metric} reached {best} and ended at {last}",
    running="the metric {metric} reached {best} and is {last} now",
)
EVALUATION_LOSS_FELL = Sentence(
    "the evaluation loss fell from {first} to {last}",
    running="the evaluation loss fell from {first} to {last} so far",
)
EVALUATION_LOSS_ROSE = Sentence(
    "the evaluation loss rose from {first} to {last}; the lowest was {lowest}",
    running="the evaluation loss rose from {first} to {last} so far; the lowest was {lowest}",
)
EVALUATION_LOSS_CHANGED = Sentence("the evaluation loss went from {first} to {last}")
SCORE_ALWAYS_ZERO = Sentence("the metric {metric} was {last} at every evaluation, and the run stopped")


@dataclass(frozen=True, eq=False)
class Evaluations:
    """The evaluations of a run."""

    frame: Frame
    gave_up: bool
    """Whether the run itself called its end aborted."""
    trained: frozenset[str] = frozenset()
    """The logs with logged steps."""
    batches: Frame | None = None
    """How far evaluations had come."""

    @cached_property
    def losses(self) -> tuple[tuple[Event, float], ...]:
        """Evaluation losses with the same words before them, of one log: the one with logged steps, else the one with
        the most; empty if fewer than two."""
        logs: dict[tuple[str, ...], list[tuple[Event, float]]] = {}
        for row in _without_running_means(self.frame.events):
            if (loss := numeric_field(row, "loss")) is not None and math.isfinite(loss):
                logs.setdefault((row.at.path, *_label(row)), []).append((row, loss))
        rows = max(logs.items(), key=lambda log: (log[0][0] in self.trained, len(log[1])), default=((), []))[1]
        return tuple(rows) if len(rows) > 1 else ()

    @cached_property
    def fell(self) -> bool:
        """Whether the evaluation loss fell."""
        return maths.is_falling([loss for _, loss in self.losses])

    @cached_property
    def rose(self) -> bool:
        """Whether the evaluation loss rose clearly, from its head to its tail and from the first to the last."""
        losses = [loss for _, loss in self.losses]
        return maths.is_rising(losses, MIN_RISE_SHARE) and losses[-1] > (1 + MIN_RISE_SHARE) * losses[0]

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Claims about the evaluation loss."""
        if not self.losses:
            return ()
        first, last = (self.frame.value(self.losses[index][0], "loss") for index in (0, -1))
        if self.rose:
            lowest = min(self.losses, key=lambda pair: pair[1])[0]
            return (EVALUATION_LOSS_ROSE(first=first, last=last, lowest=self.frame.value(lowest, "loss")),)
        return ((EVALUATION_LOSS_FELL if self.fell else EVALUATION_LOSS_CHANGED)(first=first, last=last),)

    @cached_property
    def collapse(self) -> tuple[Event, Claim] | None:
        """A score that falls to zero and stays there, or is zero from the first evaluation of a run that aborted."""
        scores: dict[str, list[Event]] = {}
        for row in self.frame.events:
            name = str(row.get("metric") or "")
            if numeric_field(row, "value") is not None and SCORE.search(name) and not NOT_A_SCORE.search(name):
                scores.setdefault(name, []).append(row)
        for rows in scores.values():
            values = [numeric_field(row, "value") or 0.0 for row in rows]
            if abs(values[-1]) > 1e-6:
                continue
            best = max(range(len(values)), key=values.__getitem__)
            if values[best] >= 0.1:
                zero = next(i for i in range(best + 1, len(values)) if abs(values[i]) <= 1e-6)
                last, high = (self.frame.value(rows[i], "value") for i in (-1, best))
                return rows[zero], SCORE_COLLAPSED(metric=self.frame.value(rows[-1], "metric"), best=high, last=last)
            if self.gave_up and max(values) <= 1e-6:
                metric, last = self.frame.value(rows[0], "metric"), self.frame.value(rows[-1], "value")
                return rows[0], SCORE_ALWAYS_ZERO(metric=metric, last=last)
        return None


def _without_running_means(rows: Sequence[Event]) -> Iterator[Event]:
    """The evaluations, without the means of those that went on to a later batch."""
    for row, after in zip_longest(rows, rows[1:]):
        batch, later = row.get("batch"), None if after is None else after.get("batch")
        if isinstance(batch, int) and isinstance(later, int) and later > batch and after.at.path == row.at.path:
            continue
        yield row


def _label(row: Event) -> tuple[str, ...]:
    """The last words before the loss: they tell two losses of one evaluation apart."""
    return str(row.get("metric") or ""), *WORD.findall(row.text.lower().partition("loss")[0])[-LABEL_WORDS:]


@fact({"evaluations": events("evaluation"), "batches": events("evaluation_progress")})
def evaluations(evidence: Evidence, ending: Ending, trajectory: Maybe[Trajectory]) -> Evaluations:
    """Needs no particular input; empty if no evaluation was printed."""
    gave_up = any(row.get("status") == "aborted" for row in ending.ends.events)
    points = () if isinstance(trajectory, Missing) else trajectory.progress.events
    return Evaluations(evidence["evaluations"], gave_up, frozenset(row.at.path for row in points), evidence["batches"])
