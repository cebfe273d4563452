"""Scores over a training, and the ones that show nothing."""

from __future__ import annotations

from tests.families.rows import event, store
from trackside.facts.fact import Facts
from trackside.facts.training.scores import Scores
from trackside.model import Event, Run


def scores(*rows: Event) -> Scores:
    fact = Facts(store(*rows), Run(), lambda query, answer: answer).get(Scores)
    assert isinstance(fact, Scores)
    return fact


def values(metric: str, *figures: float, first_line: int = 1, **fields: float) -> list[Event]:
    return [
        event("score", first_line + i, metric=metric, value=figure, epoch=i, **fields)
        for i, figure in enumerate(figures)
    ]


def test_each_score_has_its_own_direction() -> None:
    assert scores(*values("val accuracy", 0.1, 0.4, 0.6)).improved
    assert scores(*values("val perplexity", 90.0, 60.0, 40.0)).improved
    assert not scores(*values("val accuracy", 0.6, 0.4, 0.1)).improved
    assert not scores(*values("val perplexity", 40.0, 60.0, 90.0)).improved


def test_scores_alone_show_no_learning() -> None:
    rows = [event("score", line, metric="accuracy", value=line / 10) for line in (1, 2, 3, 4)]
    assert not scores(*rows).series
    assert scores(*rows, event("training_start", 1)).improved


def test_a_training_that_started_over_is_judged_by_its_last_part() -> None:
    first, second = values("accuracy", 0.1, 0.5, 0.9), values("accuracy", 0.1, 0.2, 0.3, first_line=10)
    assert scores(*first, *second).series[0].values == [0.1, 0.2, 0.3]


def test_a_score_that_is_rarely_printed_does_not_count() -> None:
    often, rarely = values("accuracy", *(0.5,) * 20), values("test f1", 0.1, 0.2, 0.3, first_line=30)
    assert not scores(*often, *rarely).improved


def test_rewards_of_logged_steps_are_a_score() -> None:
    rows = [event("progress", step, step=step, loss=0.1, reward=float(step)) for step in range(1, 7)]
    best = scores(*rows).best
    assert best is not None
    assert best.improved
    assert best.name.value == "reward"
