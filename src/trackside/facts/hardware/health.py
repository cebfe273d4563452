"""What metrics tell of a GPU's health, as asks, sentences and answers; the array work is in
:mod:`trackside.facts.hardware.hardware`, which only runs with metrics need. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpus import name_of
from trackside.facts.hardware.memory import during
from trackside.finding import Certainty, Claim, claim
from trackside.model import Event, Plane, Position, Record, Run
from trackside.query import Query, metric

if TYPE_CHECKING:  # arrays: only runs with metrics need them
    from trackside.facts.hardware.counters import Change

CLEAN: Mapping[str, Query] = {
    "ecc_rise": metric("gpu_ecc_uncorrectable_total").over("around", "increase"),
    "lifetime_rise": metric("gpu_ecc_uncorrectable_lifetime_total").over("around", "increase"),
    "remap_rise": metric("gpu_rows_remapped_uncorrectable_total").over("around", "increase"),
}
"""What shows that the hardware was clean; any family may spread it into its asks, with :data:`CLEAN_SAYS`."""
CLEAN_SAYS: Mapping[str, str] = {
    "clean_ecc": "no uncorrectable ECC error was added on {count}",
    "clean_remaps": "no row was remapped for uncorrectable errors on {count}",
    "clean_ecc_meanwhile": "no uncorrectable ECC error was added on {count} while the run was there",
    "clean_remaps_meanwhile": "no row was remapped for uncorrectable errors on {count} while the run was there",
}
COUNTED: Mapping[str, Query] = {
    "ecc": metric("gpu_ecc_uncorrectable_total").over("around", "last"),
    "lifetime": metric("gpu_ecc_uncorrectable_lifetime_total").over("around", "last"),
    "remaps": metric("gpu_rows_remapped_uncorrectable_total").over("around", "last"),
}
"""The counters of :data:`CLEAN` as they stood, which tell when one rose."""
COUNTERS: Mapping[str, Query] = {
    **COUNTED,
    "remap_failed": metric("gpu_row_remap_failed").over("around", "last"),
    "pages": metric("gpu_pages_retired_total").where(cause="double_bit").over("around", "last"),
}
"""What only rises when a GPU's memory fails."""
HEALTH: Mapping[str, Query] = {
    **CLEAN,
    **COUNTERS,
    "xid_last": metric("gpu_xid_last").over("around", "last"),
    "flags": metric("gpu_health").over("around", "last"),
    "seen_memory": metric("gpu_memory_used_bytes").over("around", "count"),
    "seen_temperature": metric("gpu_temperature_celsius").over("around", "count"),
}
"""All that metrics tell of a GPU's health."""
MEASURED = ("ecc", "lifetime", "remaps", "xid_last")
"""Asks any one of which can rule a fault out."""
SAYS: Mapping[str, str] = {
    **CLEAN_SAYS,
    "rose_ecc": "uncorrectable ECC errors of GPU {gpu} rose by {by}, from {before} to {after}, by {when}",
    "rose_lifetime": "the lifetime count of uncorrectable ECC errors of GPU {gpu} rose by {by}, from {before} "
    "to {after}, by {when}",
    "rose_remaps": "rows of GPU {gpu} remapped for uncorrectable errors rose by {by}, from {before} to {after}, by "
    "{when}",
    "rose_remap_failed": "GPU {gpu} could not remap a failed memory row: the flag went from {before} to {after} by "
    "{when}",
    "rose_pages": "memory pages of GPU {gpu} retired for double-bit errors rose by {by}, from {before} to {after}, by "
    "{when}",
    "gauge": "the monitor saw GPU {gpu} report Xid {xid} ({name}) by {when}",
    "vanished": "GPU {gpu} was not sampled any more from {since} on, while other GPUs of its node gave {witness:plain} "
    "samples",
    "old_ecc": "uncorrectable ECC errors stood at up to {level} on GPU {gpus} and did not rise",
    "old_lifetime": "the lifetime count of uncorrectable ECC errors stood at up to {level} on GPU {gpus} "
    "and did not rise",
    "old_remaps": "rows remapped for uncorrectable errors stood at up to {level} on GPU {gpus} and did not rise",
    "old_remap_failed": "the flag of a failed row remap was set on GPU {gpus} all the while",
    "old_pages": "memory pages retired for double-bit errors stood at up to {level} on GPU {gpus} and did not rise",
    "old_gauge": "the last Xid of GPU {gpus} was {level} from the first sample on: it may be older than the run",
    "application_gauge": "the monitor saw only Xids that usually blame the application, such as {xid} on GPU {gpu}",
    "flag_only": "the health flag of GPU {gpu} was {level}, with no counter that rose beside it: incidental",
    "quiet_gauge": "no Xid came: the gauge of the last one stayed where it was, at most {level}, on {count}",
    "foreign": "GPU {gpus} reported errors, but did no work while the run's GPUs did: they are another's",
    "restarted": "the counters were restarted and came back to what they had been, at most {level}",
}
"""Sentences of the claims that are made here."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One witness of broken hardware, from whatever plane."""

    claim: Claim
    certainty: Certainty
    plane: Plane
    at: Position
    time: float | None
    """The earliest that it can have been."""
    until: float | None = None
    """The latest, where it isn't known to the second."""
    node: str | None = None
    gpu: str | None = None
    """``node:index``, else a PCI address."""
    number: int | None = None
    """An Xid."""
    row: Event | Record | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """All that was measured of the run's GPUs."""

    faults: tuple[Fault, ...] = ()
    """Counters that rose, flags that were set, Xids of the hardware and GPUs that vanished, while the run was there."""
    application: tuple[Claim, ...] = ()
    """Xids that usually blame the application."""
    old: tuple[tuple[Claim, tuple[str, ...]], ...] = ()
    """What stood before the run and did not move: each with its GPUs."""
    clean: tuple[Claim, ...] = ()
    """What shows that nothing failed."""


def health(evidence: Evidence, run: Run) -> Health:
    """What was measured; nothing where nothing was."""
    if not any(evidence.has(name) for name in HEALTH):
        return Health()
    from trackside.facts.hardware.hardware import examined  # arrays: only where something was measured

    return examined(evidence, run)


def clean(evidence: Evidence, run: Run | None = None) -> list[Claim]:
    """What shows that nothing failed: counters of uncorrectable errors that rose by nothing; none where one rose.

    With ``run``, what rose before it began or after its end doesn't count.
    """
    found: list[Claim] = []
    for key, names in (("clean_ecc", ("ecc_rise", "lifetime_rise")), ("clean_remaps", ("remap_rise",))):
        grids = [grid for name in names if (grid := evidence.grid(name)) is not None]
        sums = [(grid, value) for grid in grids if (value := grid.value("sum", unit="")).value is not None]
        said = key
        if run is not None and any(value.value for _, value in sums):
            said = f"{key}_meanwhile"
            inside = [(grid, during(grid, run).value("sum", unit="")) for grid, _ in sums]
            sums = [(grid, value) for grid, value in inside if value.value is not None]
        if any(value.value for _, value in sums):
            return []
        found += [claim(said, rise=value, count=gpus_of(grid, value)) for grid, value in sums[:1]]
    return found


def unclean(evidence: Evidence, run: Run) -> list[Claim]:
    """The counters of uncorrectable errors that rose while the run was there, GPU by GPU; a few of many."""
    if not any(grid.value("sum").value for name in CLEAN if (grid := evidence.grid(name)) is not None):
        return []
    from trackside.facts.hardware.counters import rises  # arrays: only where something rose

    found = []
    for name in ("ecc", "remaps"):
        changes = rises(evidence.grid(name)) or (rises(evidence.grid("lifetime")) if name == "ecc" else [])
        inside = [
            change
            for change in changes
            if (run.start is None or change.until >= run.start) and (run.end is None or change.since <= run.end)
        ]
        found += [rose(name, change) for change in inside[:MOST]]
    return found


MOST = 3
"""GPUs that are named of those whose counters rose."""


def rose(name: str, change: Change) -> Claim:
    """That the counter of an ask of :data:`COUNTERS` rose."""
    gpu, when = derived(name_of(change.series), change.after), derived(change.until, change.after, unit="time")
    return claim(f"rose_{name}", gpu=gpu, by=change.by, before=change.before, after=change.after, when=when)


def gpus_of(grid: Grid, source: Value) -> Value:
    """How many GPUs a grid holds."""
    count = len({name_of(each) for each in grid.series})
    return derived(count, source, unit="GPU" if count == 1 else "GPUs")


@dataclass(frozen=True)
class CleanCounters:
    """What shows that no GPU's memory failed."""

    claims: tuple[Claim, ...]


@fact(CLEAN)
def clean_counters(evidence: Evidence) -> CleanCounters:
    """Of counters of uncorrectable errors; nothing is needed."""
    return CleanCounters(tuple(clean(evidence)))
