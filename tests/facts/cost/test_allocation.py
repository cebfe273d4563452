"""The allocation of a run, its work, and its earlier attempts, on rows and curves built by hand."""

from __future__ import annotations

from typing import TypeVar

import pytest

from tests.families.grids import Cluster
from tests.families.rows import END, START, Row, activity, event, job, points, store
from trackside.evidence import Missing
from trackside.facts.cost.allocation import (
    BY_LOG,
    BY_METRICS,
    BY_SCHEDULER,
    MEASURED_TOO_BRIEFLY,
    NO_DURATION,
    NO_GPUS,
    STEPS_AFTER_STAMPS,
    STEPS_OUTLAST_STAMPS,
    Allocation,
)
from trackside.facts.cost.earlier_attempts import EarlierAttempts
from trackside.facts.cost.last_work import LastWork
from trackside.facts.cost.training_work import TrainingWork
from trackside.facts.fact import Facts
from trackside.finding import WastedTime
from trackside.model import Attempt, Run

T = TypeVar("T")


def fact_of(facts: Facts, kind: type[T]) -> T:
    """A fact; fails if it is missing."""
    result = facts.get(kind)
    assert not isinstance(result, Missing), result.reason
    return result


def logged(*rows: Row | list[Row], **run: object) -> Facts:
    return Facts(store(*rows), Run(**run))  # type: ignore[arg-type]


def test_the_scheduler_outweighs_metrics_and_log() -> None:
    allocation = fact_of(
        logged(job("FAILED", n_gpus=8), activity(9, first_time=1.0, last_time=2.0), n_ranks=2), Allocation
    )
    assert (allocation.gpus.value, allocation.seconds, allocation.assumption.sentence) == (8, END - START, BY_SCHEDULER)
    assert allocation.hours.number == pytest.approx(8 * (END - START) / 3600, abs=1e-3)


def test_metrics_then_the_log_replace_a_missing_scheduler() -> None:
    run, measured_store = Cluster().per_gpu("gpu_utilization_ratio", 0.9).store()
    allocation = fact_of(Facts(measured_store, Run(start=run.start, end=run.end, gpus=run.gpus, n_gpus=16)), Allocation)
    assert (allocation.gpus.value, allocation.assumption.sentence) == (16, BY_METRICS)
    world = event("distributed_init", world_size=4)
    allocation = fact_of(logged(world, activity(9, first_time=100.0, last_time=460.0), n_ranks=4), Allocation)
    assert (allocation.gpus.value, allocation.seconds, allocation.assumption.sentence) == (4, 360.0, BY_LOG)


@pytest.mark.parametrize(
    ("line", "fields", "reason"),
    [
        (9, {}, STEPS_AFTER_STAMPS),  # below the last line with a time
        (5, {"elapsed_s": 600.0}, STEPS_OUTLAST_STAMPS),
        (5, {"step_time_s": 10.0}, STEPS_OUTLAST_STAMPS),
        (5, {"step_time_s": 3.0}, None),
    ],
)
def test_a_log_whose_steps_contradict_its_timestamps_shows_no_duration(
    line: int, fields: dict[str, float], reason: str | None
) -> None:
    world = event("distributed_init", world_size=4)
    steps = [event("progress", at, step=10 * at, **fields) for at in (2, line)]
    log = activity(9, first_time=100.0, last_time=200.0, unstamped_lines=2)
    allocation = logged(world, *steps, log, n_ranks=4).get(Allocation)
    assert (allocation.reason if isinstance(allocation, Missing) else None) == reason


def test_an_unknown_allocation_is_missing_with_a_reason() -> None:
    none, endless = logged(activity(9)).get(Allocation), logged(job("RUNNING", n_gpus=8, start=None)).get(Allocation)
    assert isinstance(none, Missing)
    assert isinstance(endless, Missing)
    assert (none.reason, endless.reason) == (NO_GPUS, NO_DURATION)


def test_gpus_that_were_sampled_once_show_no_duration() -> None:
    """The length of the only window is that of the query."""
    run, measured_store = Cluster(start=100, end=100, interval=30.0).per_gpu("gpu_utilization_ratio", 0.9).store()
    once = Run(start=run.start, end=run.end, gpus=run.gpus, n_gpus=16)
    allocation = Facts(measured_store, once).get(Allocation)
    assert isinstance(allocation, Missing)
    assert allocation.reason == MEASURED_TOO_BRIEFLY


def test_the_last_checkpoint_before_a_time() -> None:
    saves = [
        event("checkpoint_saved", 100 + line, step=step, time=time)
        for line, step, time in ((0, 5, 1400.0), (9, 9, 1700.0))
    ]
    work = fact_of(logged(job("FAILED", n_gpus=8), points(20), saves), TrainingWork)
    saved = [work.saved(moment) for moment in (1300.0, 1500.0, 4000.0)]
    assert saved[0] is None
    assert [None if save is None or save.time is None else save.time.value for save in saved[1:]] == [1400.0, 1700.0]


def test_last_work_is_the_last_window_with_gpu_activity() -> None:
    cluster = Cluster()
    run, measured_store = cluster.per_gpu("gpu_sm_active_ratio", cluster.until(3000, 0.9)).store(
        job("FAILED", n_gpus=16)
    )
    time = fact_of(Facts(measured_store, run), LastWork).time
    assert time is not None
    assert time.number == pytest.approx(3000, abs=60)
    steady = Cluster().per_gpu("gpu_sm_active_ratio", 0.9)
    run, measured_store = steady.store(job("FAILED", n_gpus=16))
    assert fact_of(Facts(measured_store, run), LastWork).time is None


def test_an_attempt_that_was_not_resumed_is_wasted() -> None:
    first, second = job("PREEMPTED", n_gpus=8, end=2000.0), job("FAILED", 3, n_gpus=8, start=3000.0)
    attempts = Attempt(1, start=START, end=2000.0), Attempt(2, start=3000.0, end=END)
    rows = [*points(10), *(event("progress", 500 + i, step=i + 1, loss=3.0, time=3060.0 + 60 * i) for i in range(10))]
    (part,) = fact_of(logged(first, second, rows, attempts=attempts), EarlierAttempts).parts
    assert isinstance(part, WastedTime)
    assert (part.kind, part.at_most) == ("attempt", False)
    assert part.gpu_hours.number == pytest.approx(8 * 1000 / 3600, abs=1e-3)
    assert fact_of(logged(second, rows), EarlierAttempts) == EarlierAttempts()
