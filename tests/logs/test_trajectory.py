"""Logged steps are unique across ranks, redraws, restarts and files; memory is bounded."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any
from unittest import mock

from trackside.logs import trajectory
from trackside.logs.pattern import parsers
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Position


def point(step: float | None, loss: float | None = 1.0, *, path: str = "log", line: int = 0, **more: Any) -> Event:
    rank, time = more.pop("rank", None), more.pop("time", None)
    text, parser = more.pop("text", f"step {step} loss {loss}"), more.pop("parser", "custom")
    fields = {"step": step, "loss": loss, **more}
    return Event(
        "progress",
        Position(path, line, more.get("offset", line * 40), 40),
        "log",
        text,
        time,
        rank,
        parser=parser,
        fields={name: value for name, value in fields.items() if value is not None and name != "offset"},
    )


def distinct_points(events: Iterable[Event], paths: frozenset[str] | None = None) -> list[tuple[Any, Any]]:
    trajectories = Trajectories()
    for event in events:
        trajectories.add(event)
    return [(p.fields.get("step"), p.fields.get("loss")) for p in trajectories.points(paths)]


def run_parts(events: Iterable[Event]) -> list[int]:
    trajectories = Trajectories()
    for event in events:
        trajectories.add(event)
    return [int(p.fields.get("run_part", 0)) for p in trajectories.points()]  # type: ignore[arg-type]


def test_a_step_printed_by_all_ranks_counts_once_from_the_lowest() -> None:
    events = [point(s, s + r / 10, rank=r, line=10 * s + r) for s in (1, 2, 3) for r in (2, 0, 1)]
    assert distinct_points(events) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_unlabeled_ranks_may_lag_a_step() -> None:
    assert distinct_points(point(s, line=i) for i, s in enumerate((1, 1, 2, 1, 2, 3, 2, 3, 4))) == [
        (s, 1.0) for s in (1, 2, 3, 4)
    ]


def test_a_redraw_replaces_a_bar_but_not_a_printed_line() -> None:
    twice = [(1, 5.0), (2, 5.0), (2, 4.0)]
    assert distinct_points(point(s, x, parser="tqdm") for s, x in twice) == [(1, 5.0), (2, 4.0)]
    assert distinct_points(point(s, x) for s, x in twice) == [(1, 5.0), (2, 5.0)]


def test_a_second_print_of_a_step_adds_missing_fields() -> None:
    trajectories = Trajectories()
    trajectories.add(point(5, 1.5))
    trajectories.add(point(5, 1.5, grad_norm=0.25))
    assert [p.fields["grad_norm"] for p in trajectories.points()] == [0.25]


def test_steps_that_start_over_begin_a_new_part() -> None:
    steps = (1, 2, 3, 4, 5, 1, 2, 3)
    assert distinct_points(point(s, float(s), line=i) for i, s in enumerate(steps)) == [(s, float(s)) for s in steps]
    assert run_parts(point(s, float(s), line=i) for i, s in enumerate(steps)) == [0] * 5 + [1] * 3


def test_a_short_run_that_starts_over_is_recognized_by_the_lines_between() -> None:
    lines = [(1, 6.0, 1), (2, 5.0, 2), (1, 6.1, 200), (2, 5.1, 201)]
    assert distinct_points(point(s, x, line=n) for s, x, n in lines) == [(1, 6.0), (2, 5.0), (1, 6.1), (2, 5.1)]


def test_all_ranks_of_a_restarted_run_make_one_new_part() -> None:
    events = [point(s, rank=r, line=i) for i, s in enumerate((1, 2, 3, 4, 5, 2, 3, 4)) for r in (0, 1, 2)]
    assert run_parts(events) == [0] * 5 + [1] * 3


def test_steps_within_an_epoch_are_made_global() -> None:
    events = [point(s, epoch=e, epoch_steps=100) for e in (0, 1, 2) for s in (50, 100)]
    assert [s for s, _ in distinct_points(events)] == [50, 100, 150, 200, 250, 300]
    without_length = [point(s, epoch=e) for e in (0, 1) for s in (0, 10, 20)]
    assert [s for s, _ in distinct_points(without_length)] == [0, 10, 20, 30, 40, 50]


def test_steps_that_start_over_behind_the_summary_of_an_epoch_are_made_global() -> None:
    laps = [[*(point(s) for s in (10, 20, 30, 40)), point(None, epoch=e)] for e in (1, 2, 3)]
    assert [s for s, _ in distinct_points(event for lap in laps for event in lap)] == [10 * i for i in range(1, 13)]
    # a run that counts over its epochs, and then another run
    runs = [
        *(point(s) for s in (10, 20)),
        point(None, epoch=1),
        *(point(s) for s in (30, 40, 50, 60)),
        point(None, epoch=2),
    ]
    assert max(s or 0 for s, _ in distinct_points([*runs, *(point(s, line=900 + s) for s in (10, 20))])) == 60
    # the last step of a slower rank is no new epoch
    assert len(distinct_points([point(10), point(20), point(None, epoch=1), point(20)])) == 2


def test_many_points_of_custom_lines_describe_the_run_better_than_the_few_of_bars() -> None:
    lines = [point(None, 2 - i / 100, epoch=i) for i in range(100)]
    assert len(distinct_points([point(30, 2.0, parser="tqdm"), *lines])) == 100
    bars = [point(s, parser="tqdm") for s in range(1, 20)]
    assert len(distinct_points([*bars, *lines])) == 19


def test_global_steps_printed_with_an_epoch_stay_as_printed() -> None:
    assert [s for s, _ in distinct_points(point(10 * i, epoch=i // 3) for i in range(1, 9))] == [
        10 * i for i in range(1, 9)
    ]


def test_points_without_a_step_stay_separate() -> None:
    assert len(distinct_points(point(None, math.nan) for _ in range(5))) == 5
    assert len(distinct_points(point(None, 1.5, grad_norm=1.4612085819244385) for _ in range(2))) == 1


def test_missing_steps_are_interpolated_if_the_gap_divides_evenly() -> None:
    assert [
        s for s, _ in distinct_points(point(s, 2.0 - i / 8) for i, s in enumerate((10, None, None, 40, None, 45)))
    ] == [
        10,
        20,
        30,
        40,
        None,
        45,
    ]


def test_points_come_from_the_most_specific_parser() -> None:
    events = [point(s, parser=p) for s in (1, 2) for p in ("custom", "hf-trainer", "tqdm")] + [
        point(3, None, parser="megatron")
    ]
    assert distinct_points(events) == [(1, 1.0), (2, 1.0)]
    assert distinct_points([point(1, None, parser="deepspeed"), point(1, 2.0)]) == [(1, 2.0)]
    # statistics do not count as the run's progress, however many there are
    statistics = [point(s, None, parser="mlperf-stats") for s in (1, 2, 3)]
    assert distinct_points([*statistics, point(7, None, parser="deepspeed")]) == [(7, None)]
    precedence = {parser.id: parser.precedence for parser in parsers()}
    for outer, inner in (
        ("hf-trainer", "lightning"),
        ("nemo", "lightning"),
        ("megatron", "deepspeed"),
        ("keras", "tqdm"),
    ):
        assert precedence[outer] < precedence[inner]


def test_copies_in_other_files_count_once() -> None:
    events = [
        point(s, path=path, rank=rank)
        for path, rank in (("job.out", None), ("logs/0.log", 0), ("logs/1.log", 1))
        for s in (1, 2, 3)
    ]
    assert distinct_points(events) == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert len(distinct_points(events, frozenset({"logs/1.log"}))) == 3
    assert distinct_points(events, frozenset({"elsewhere"})) == []


def test_files_that_continue_one_another_are_joined_in_order() -> None:
    events = [point(s, path=path) for path, steps in (("b.log", (30, 40)), ("a.log", (10, 20))) for s in steps]
    assert [s for s, _ in distinct_points(events)] == [10, 20, 30, 40]


def test_attempts_follow_each_other() -> None:
    events = [
        point(s, path=f"run/attempt_{a}/{r}/stdout.log", rank=r) for a in (1, 0) for r in (0, 1) for s in (1, 2, 3)
    ]
    assert [s for s, _ in distinct_points(events)] == [1, 2, 3, 1, 2, 3]
    assert run_parts(events) == [0] * 3 + [1] * 3


def test_thinning_keeps_ends_extremes_and_the_first_nan() -> None:
    losses = [2.0 + math.sin(i) / 4 for i in range(5_000)]
    losses[1_777], losses[2_111], losses[3_333] = 90.0, -5.0, math.nan
    with mock.patch.object(trajectory, "MAX_POINTS_PER_SERIES", 500):
        trajectories = Trajectories()
        for step, loss in enumerate(losses, 1):
            trajectories.add(point(step, loss, line=step))
        points = trajectories.points()
    steps = [p.fields["step"] for p in points]
    assert len(points) < 700
    assert steps == sorted(steps)  # type: ignore[type-var]
    assert {1, 1_778, 2_112, 3_334, 5_000} <= set(steps)


def test_any_values_in_any_order_are_accepted() -> None:
    rng = random.Random(7)
    values = [None, 0, 1, 2, 3, 10**15, -1, 2.5, math.nan, math.inf, 10**30]
    for _ in range(200):
        trajectories = Trajectories()
        for line in range(rng.randrange(40)):
            trajectories.add(
                point(
                    rng.choice(values),
                    rng.choice(values),
                    line=line,
                    epoch=rng.choice(values),
                    epoch_steps=rng.choice(values),
                    path=rng.choice("ab"),
                    parser=rng.choice(("custom", "tqdm", "hf-trainer")),
                )
            )
        assert all(point.kind == "progress" for point in trajectories.points())
