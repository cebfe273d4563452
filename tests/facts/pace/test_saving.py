"""What counts as one checkpoint, and when saves are a storm."""

from __future__ import annotations

import pytest

from tests.families.rows import FALLING, STEPS, Row, curve, event, store
from trackside.facts.fact import Facts
from trackside.facts.pace.saving import Saving
from trackside.finding import Claim
from trackside.model import Run


def saving(*rows: Row | list[Row], n_ranks: int = 1) -> Saving:
    fact = Facts(store(*rows), Run(n_ranks=n_ranks), lambda query, answer: answer).get(Saving)
    assert isinstance(fact, Saving)
    return fact


def saves(count: int, **fields: float) -> list[Row]:
    return [event("checkpoint_saved", 600 + i, step=i + 1, path=f"out/{i}", **fields) for i in range(count)]


def texts(claims: tuple[Claim, ...]) -> list[set[str]]:
    return [set(claim.values) for claim in claims]


def test_shards_and_ranks_are_one_checkpoint() -> None:
    shards = [event("checkpoint_saved", 600 + i, step=10 * (i // 4), path=f"shard-{i}") for i in range(12)]
    assert len(saving(shards).checkpoints) == 3
    unnamed = [event("checkpoint_saved", 600 + i, path="out") for i in range(8)]
    assert len(saving(unnamed).checkpoints) == 8
    assert len(saving(unnamed, n_ranks=8).checkpoints) == 1, "as many messages as there are ranks"


@pytest.mark.parametrize(("count", "seconds", "values"), [
    (30, 0.0, [{"saves", "steps"}]),  # at every step
    (3, 0.0, None),
    (3, 60.0, [{"share"}]),  # three minutes of five
    (30, 9.0, [{"saves", "steps"}, {"share"}]),
])  # fmt: skip
def test_frequent_or_long_saves_are_a_storm(count: int, seconds: float, values: list[set[str]] | None) -> None:
    points = curve(FALLING, time=lambda i: 1000.0 + 10 * i, **STEPS)
    storm = saving(points, saves(count, seconds=seconds)).storm
    assert (None if storm is None else texts(storm.claims)) == values
    assert storm is None or (storm.count.value == count and (storm.steps is None) == (count == 3))


def timed_steps(seconds: dict[bool, float], stamps: dict[bool, float] | None = None) -> list[Row]:
    """Points of steps, with a save before two of three of them. ``seconds``: what is printed as the time of steps with
    and without one; ``stamps``: their time by the clock."""
    rows: list[Row] = []
    time = None if stamps is None else 1000.0
    for index in range(60):
        saved = index % 3 != 0
        if saved:
            rows.append(event("checkpoint_saved", 10 * index + 9))
        if time is not None and stamps is not None:
            time += stamps[saved]
        fields = {"step": index, "loss": 9 - index / 10, "step_time_s": seconds[saved]}
        rows.append(event("progress", 10 * index + 10, time=time, **fields))
    return rows


def test_saves_that_make_no_step_longer_are_no_storm() -> None:
    slow = saving(timed_steps({True: 5.0, False: 2.0})).storm
    assert slow is not None
    assert slow.is_timed
    assert texts(slow.claims) == [{"saves", "steps"}, {"with_save", "without"}]
    quick = saving(timed_steps({True: 2.1, False: 2.0}))
    assert quick.storm is None
    assert quick.no_slowdown is not None
    assert [quick.no_slowdown.values[name].value for name in ("saves", "with_save", "without")] == [40, 2.1, 2.0]


def test_step_times_by_stamps_count_before_the_printed_ones() -> None:
    saves_not_timed = timed_steps({True: 6.0, False: 6.0}, stamps={True: 9.0, False: 6.0})
    storm = saving(saves_not_timed).storm
    assert storm is not None
    assert [storm.claims[1].values[name].value for name in ("with_save", "without")] == [9.0, 6.0]
    coarse = timed_steps({True: 0.4, False: 0.4}, stamps={True: 1.0, False: 0.0})  # whole seconds say nothing
    assert saving(coarse).storm is None


def test_planned_saves_count_until_a_checkpoint_is_seen() -> None:
    plan = event("training_plan", 1, save_steps=1)
    planned = saving(curve(FALLING, **STEPS), plan).storm
    assert planned is not None
    assert texts(planned.claims) == [{"every", "steps"}]
    assert saving(curve(FALLING, **STEPS), plan, saves(2)).storm is None


def test_too_few_steps_are_no_storm() -> None:
    assert saving(curve(FALLING[:9], **STEPS), saves(9)).storm is None
    assert saving(curve(FALLING[:10], **STEPS), saves(9)).storm is not None
