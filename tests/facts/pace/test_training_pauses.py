"""Gaps between training points, and what was reported in them."""

from __future__ import annotations

import pytest

from tests.families.rows import Row, event, store
from trackside.facts.fact import Facts
from trackside.facts.pace.training_pauses import TrainingPauses
from trackside.model import Event, Run

BEFORE, AFTER = 1190.0, 2190.0


def pauses(*rows: Row | list[Row], nodes: tuple[str, ...] = ()) -> TrainingPauses:
    fact = Facts(store(*rows, planes=("log", "kernel")), Run(nodes=nodes), lambda query, answer: answer)
    pauses = fact.get(TrainingPauses)
    assert isinstance(pauses, TrainingPauses)
    return pauses


def points(**skipped: int) -> list[Row]:
    """Twenty steps of 10 s, a pause of 1,000 s after them, and twenty more; ``steps``: steps done in the pause."""
    late = [1000.0 if i >= 20 else 0.0 for i in range(40)]
    steps = [skipped.get("steps", 0) if i >= 20 else 0 for i in range(40)]
    return [event("progress", i + 1, step=i + steps[i], time=1000.0 + 10 * i + late[i]) for i in range(40)]


def test_the_longest_gap_has_the_most_time_beyond_its_steps() -> None:
    fact = pauses(points())
    gap = fact.longest
    assert gap is not None
    assert (gap.since, gap.until, gap.excess_s) == (BEFORE, AFTER + 10, pytest.approx(1000.0))
    assert (fact.usual_s, fact.next_excess_s) == (10.0, 0.0)
    assert fact.seconds(gap).value == 1010.0
    thinned = pauses(points(steps=100)).longest
    assert thinned is not None
    assert thinned.excess_s == pytest.approx(0.0), "a hundred steps took that time"


@pytest.mark.parametrize("kind", ["launcher_restart", "checkpoint_loaded", "training_start"])
def test_a_restart_is_no_pause(kind: str) -> None:
    gap = pauses(points(), event(kind, 100, time=1500.0)).longest
    assert gap is not None
    assert gap.excess_s == pytest.approx(0.0)


def test_planned_events_and_kernel_reports_in_a_gap() -> None:
    saved = event("checkpoint_saved", 100, time=2000.0)
    tasks = [event("hung_task", 1, time=1500.0, plane="kernel", path="dmesg", node=node) for node in ("n1", "n9")]
    fact = pauses(points(), saved, tasks, nodes=("n1",))
    assert fact.longest is not None
    assert fact.is_planned(fact.longest)
    assert [row.node for row in fact.events_during(fact.tasks, BEFORE, AFTER)] == ["n1"]
    assert fact.events_during(fact.tasks, AFTER, AFTER + 100) == ()


def test_unstamped_points_give_no_gap() -> None:
    rows = [row for row in points() if isinstance(row, Event)]
    fact = pauses([event("progress", row.at.line, step=row.get("step")) for row in rows])
    assert (fact.has_times, fact.longest, fact.usual_s) == (False, None, None)
