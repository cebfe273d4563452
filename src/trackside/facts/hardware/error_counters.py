"""Counters of uncorrectable memory errors and remapped rows: unchanged on the run's GPUs, or risen while it was there.

A value that was there before is old; a restart of the exporter is no rise. What rose before the run began or after its
end can be set aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpus import name_of
from trackside.facts.hardware.counters import Change, rises
from trackside.facts.hardware.memory import during
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import Query, metric

RISES: Mapping[str, Query] = {
    "ecc_rise": metric("gpu_ecc_uncorrectable_total").over("around", "increase"),
    "lifetime_rise": metric("gpu_ecc_uncorrectable_lifetime_total").over("around", "increase"),
    "remap_rise": metric("gpu_rows_remapped_uncorrectable_total").over("around", "increase"),
}
"""How far each counter rose."""
LEVELS: Mapping[str, Query] = {
    "ecc": metric("gpu_ecc_uncorrectable_total").over("around", "last"),
    "lifetime": metric("gpu_ecc_uncorrectable_lifetime_total").over("around", "last"),
    "remaps": metric("gpu_rows_remapped_uncorrectable_total").over("around", "last"),
}
"""The same counters as they stood, which tell when one rose."""
MAX_GPUS_NAMED = 3
"""GPUs that are named of those whose counters rose."""

CLEAN_ECC = Sentence("no uncorrectable ECC error was added on {count}")
CLEAN_REMAPS = Sentence("no row was remapped for uncorrectable errors on {count}")
CLEAN_ECC_MEANWHILE = Sentence("no uncorrectable ECC error was added on {count} while the run was there")
CLEAN_REMAPS_MEANWHILE = Sentence("no row was remapped for uncorrectable errors on {count} while the run was there")
ROSE: Mapping[str, Sentence] = {
    "ecc": Sentence("uncorrectable ECC errors of GPU {gpu} rose by {by}, from {before} to {after}, by {when}"),
    "lifetime": Sentence(
        "the lifetime count of uncorrectable ECC errors of GPU {gpu} rose by {by}, from {before} to {after}, by {when}"
    ),
    "remaps": Sentence(
        "rows of GPU {gpu} remapped for uncorrectable errors rose by {by}, from {before} to {after}, by {when}"
    ),
    "remap_failed": Sentence(
        "GPU {gpu} could not remap a failed memory row: the flag went from {before} to {after} by {when}"
    ),
    "pages": Sentence(
        "memory pages of GPU {gpu} retired for double-bit errors rose by {by}, from {before} to {after}, by {when}"
    ),
}
"""That a counter rose, by the name of its question."""


@dataclass(frozen=True, eq=False)
class ErrorCounters:
    """The counters of the run's GPUs that were sampled, by the names of :data:`RISES` and :data:`LEVELS`."""

    grids: Mapping[str, Grid]
    run: Run

    @cached_property
    def unchanged(self) -> tuple[Claim, ...]:
        """What shows that nothing was added as long as it was watched; none if something was."""
        return tuple(_unchanged(self.grids))

    @cached_property
    def unchanged_meanwhile(self) -> tuple[Claim, ...]:
        """The same while the run was there."""
        return tuple(_unchanged(self.grids, self.run))

    @cached_property
    def risen(self) -> tuple[Claim, ...]:
        """The counters that rose while the run was there, GPU by GPU; a few of many."""
        if not any(self.grids[name].value("sum").value for name in RISES if name in self.grids):
            return ()
        claims: list[Claim] = []
        for name in ("ecc", "remaps"):
            changes = rises(self.grids.get(name)) or (rises(self.grids.get("lifetime")) if name == "ecc" else [])
            inside = [change for change in changes if _meets(change, self.run)]
            claims += [rose(name, change) for change in inside[:MAX_GPUS_NAMED]]
        return tuple(claims)


@fact({**RISES, **LEVELS})
def error_counters(evidence: Evidence, run: Run) -> ErrorCounters:
    """Of what was sampled; empty if nothing was."""
    grids = {name: grid for name in (*RISES, *LEVELS) if (grid := evidence.grid(name)) is not None}
    return ErrorCounters(grids, run)


def _unchanged(grids: Mapping[str, Grid], run: Run | None = None) -> list[Claim]:
    claims: list[Claim] = []
    for sentences, names in (
        ((CLEAN_ECC, CLEAN_ECC_MEANWHILE), ("ecc_rise", "lifetime_rise")),
        ((CLEAN_REMAPS, CLEAN_REMAPS_MEANWHILE), ("remap_rise",)),
    ):
        sums = [(grids[name], grids[name].value("sum", unit="")) for name in names if name in grids]
        sums = [(grid, value) for grid, value in sums if value.value is not None]
        sentence = sentences[0]
        if run is not None and any(value.value for _, value in sums):
            sentence = sentences[1]
            inside = [(grid, during(grid, run).value("sum", unit="")) for grid, _ in sums]
            sums = [(grid, value) for grid, value in inside if value.value is not None]
        if any(value.value for _, value in sums):
            return []
        claims += [sentence(rise=value, count=gpus_of(grid, value)) for grid, value in sums[:1]]
    return claims


def _meets(change: Change, run: Run) -> bool:
    """Whether a change can have come while the run was there."""
    return (run.start is None or change.until >= run.start) and (run.end is None or change.since <= run.end)


def rose(name: str, change: Change) -> Claim:
    """That the counter of a question rose."""
    gpu, when = derived(name_of(change.series), change.after), derived(change.until, change.after, unit="time")
    return ROSE[name](gpu=gpu, by=change.by, before=change.before, after=change.after, when=when)


def gpus_of(grid: Grid, source: Value) -> Value:
    """How many GPUs a grid holds."""
    count = len({name_of(series) for series in grid.series})
    return derived(count, source, unit="GPU" if count == 1 else "GPUs")
