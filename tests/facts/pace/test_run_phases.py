"""Phases of a run, by its training points or by the work of its GPUs."""

from __future__ import annotations

from tests.families.grids import Cluster
from tests.families.rows import END, START, event, job, points
from trackside.facts.fact import Facts
from trackside.facts.pace.run_phases import RunPhases
from trackside.model import Run
from trackside.stores.memory import MemoryStore


def phases(run: Run, store: MemoryStore) -> RunPhases:
    fact = Facts(store, run).get(RunPhases)
    assert isinstance(fact, RunPhases)
    return fact


def test_phases_are_startup_training_gap_and_end() -> None:
    late = [event("progress", 500 + i, step=30 + i, loss=2.0, time=4000.0 + 60 * i) for i in range(5)]
    rows = [*points(20), *late, job("FAILED")]
    fact = phases(
        Run(start=START, end=END), MemoryStore([row for row in rows if row.kind == "progress"], [job("FAILED")])
    )  # type: ignore[misc]
    assert fact.window == (START, END)
    assert [phase.name for phase in fact.phases] == [
        "startup",
        "training",
        "no step",
        "training",
        "after the last step",
    ]
    assert [phase.start for phase in fact.phases if phase.training] == [START + 60, 4000.0]


def test_phases_come_from_the_gpus_without_training_points() -> None:
    cluster = Cluster()
    run, store = cluster.per_gpu("gpu_sm_active_ratio", cluster.between(2000, 4000, 0.9)).store()
    assert [phase.name for phase in phases(run, store).phases] == ["no work", "GPUs at work", "no work"]


def test_rows_without_times_give_no_window() -> None:
    fact = phases(Run(), MemoryStore())
    assert (fact.window, fact.phases) == (None, ())
