"""Hardware health of the run's GPUs, by metrics: new faults, old ones, and clean counters.

New faults are counters that rose and flags that were set during the run, Xids that the monitor's gauge changed to, and
GPUs that vanished while others on their node were sampled. A value that was there before and did not change is not a
fault of this run; an exporter restart is not a rise. Rises before the run began or after its end can be excluded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import GpuActivity
from trackside.facts.gpus import count_of, gpu_name, gpu_names, value_or_none
from trackside.facts.hardware.counters import Change, onsets, rises, unchanged_above_zero
from trackside.facts.hardware.memory import during
from trackside.facts.hardware.node_presence import nodes_with_gaps, silent_entities
from trackside.finding import Certainty, Claim, Sentence
from trackside.model import Event, Plane, Position, Record, Run, Series
from trackside.query import Query, metric

RISES: Mapping[str, Query] = {
    "ecc_rise": metric("gpu_ecc_uncorrectable_total").over("around", "increase"),
    "lifetime_rise": metric("gpu_ecc_uncorrectable_lifetime_total").over("around", "increase"),
    "remap_rise": metric("gpu_rows_remapped_uncorrectable_total").over("around", "increase"),
}
"""The increase of each counter."""
LEVELS: Mapping[str, Query] = {
    "ecc": metric("gpu_ecc_uncorrectable_total").over("around", "last"),
    "lifetime": metric("gpu_ecc_uncorrectable_lifetime_total").over("around", "last"),
    "remaps": metric("gpu_rows_remapped_uncorrectable_total").over("around", "last"),
}
"""The values of the same counters, which show when one rose."""
COUNTERS: Mapping[str, Query] = {
    **LEVELS,
    "remap_failed": metric("gpu_row_remap_failed").over("around", "last"),
    "pages": metric("gpu_pages_retired_total").where(cause="double_bit").over("around", "last"),
}
"""Counters that rise only when a GPU's memory fails."""
HEALTH: Mapping[str, Query] = {
    **RISES,
    **COUNTERS,
    "xid_last": metric("gpu_xid_last").over("around", "last"),
    "flags": metric("gpu_health").over("around", "last"),
    "seen_memory": metric("gpu_memory_used_bytes").over("around", "count"),
    "seen_temperature": metric("gpu_temperature_celsius").over("around", "count"),
}
"""The queries behind :class:`HardwareHealth`."""
MAX_GPUS_NAMED = 3
"""Maximum number of GPUs named whose counters rose."""
MEASURED = ("ecc", "lifetime", "remaps", "xid_last")
"""Queries any one of which can rule a fault out."""

NO_ECC_ERRORS = Sentence("no new uncorrectable ECC errors on {count}")
NO_REMAPS = Sentence("no rows remapped for uncorrectable errors on {count}")
NO_MEMORY_ERRORS = Sentence("no new GPU memory errors on {count}: no uncorrectable ECC error, no remapped row")
NO_ECC_ERRORS_DURING_RUN = Sentence("no new uncorrectable ECC errors on {count} during the run")
NO_REMAPS_DURING_RUN = Sentence("no rows remapped for uncorrectable errors on {count} during the run")
COUNTER_ROSE: Mapping[str, Sentence] = {
    "ecc": Sentence("uncorrectable ECC errors of GPU {gpu} rose from {before} to {after} between {since} and {until}"),
    "lifetime": Sentence(
        "the lifetime count of uncorrectable ECC errors of GPU {gpu} rose from {before} to {after} between {since} "
        "and {until}"
    ),
    "remaps": Sentence(
        "remapped memory rows (uncorrectable errors) of GPU {gpu} rose from {before} to {after} between "
        "{since} and {until}"
    ),
    "remap_failed": Sentence(
        "GPU {gpu} failed to remap a bad memory row: the flag went from {before} to {after} between {since} and {until}"
    ),
    "pages": Sentence(
        "memory pages of GPU {gpu} retired for double-bit errors rose from {before} to {after} between {since} "
        "and {until}"
    ),
}
"""A counter rose; by the name of its query."""
GAUGE_XID = Sentence("the monitor saw GPU {gpu} report Xid {xid} ({name}) before {when}")
VANISHED = Sentence("GPU {gpu} has no samples after {since}, while other GPUs of its node were still sampled")
OLD_LEVELS: Mapping[str, Sentence] = {
    "ecc": Sentence("GPU {gpus} had up to {level} uncorrectable ECC errors from before the run, and no new ones"),
    "lifetime": Sentence(
        "GPU {gpus} had up to {level} lifetime uncorrectable ECC errors from before the run, and no new ones"
    ),
    "remaps": Sentence(
        "GPU {gpus} had up to {level} rows remapped for uncorrectable errors before the run, and no new ones"
    ),
    "remap_failed": Sentence("the flag of a failed row remap was set on GPU {gpus} during the whole run"),
    "pages": Sentence(
        "GPU {gpus} had up to {level} memory pages retired for double-bit errors before the run, and no new ones"
    ),
}
"""A counter was above zero and unchanged; by the name of its query."""
OLD_GAUGE = Sentence("the last Xid of GPU {gpus} was {level} from the first sample: it may be older than the run")
APPLICATION_GAUGE = Sentence("the monitor saw only Xids that usually blame the application, such as {xid} on GPU {gpu}")
ONLY_HEALTH_FLAG = Sentence("the health flag of GPU {gpu} was {level}, but no error counter rose")
NO_NEW_XID = Sentence("no new Xid on {count}: the last-Xid metric did not change")
OTHER_JOBS_GPU = Sentence("{gpus} reported errors, but did not compute with the run's GPUs: another job's")
COUNTERS_RESTARTED = Sentence("the counters restarted and returned to their earlier values, at most {level}")


@dataclass(frozen=True, slots=True)
class HardwareFault:
    """One piece of evidence of broken hardware, from any plane."""

    sign: str
    """The kind of evidence: the name of a counter, or gauge, vanished, xid, switch, lost, cuda or drained."""
    claim: Claim
    certainty: Certainty
    plane: Plane
    at: Position
    time: float | None
    """The earliest possible time."""
    until: float | None = None
    """The latest possible time, if it is not known to the second."""
    node: str | None = None
    gpu: str | None = None
    """``node:index``, else a PCI address."""
    number: int | None = None
    """An Xid."""
    row: Event | Record | None = None


@dataclass(frozen=True, eq=False)
class HardwareHealth:
    """All hardware measurements of the run's GPUs."""

    faults: tuple[HardwareFault, ...]
    """Counters that rose, flags that were set, hardware Xids and vanished GPUs during the run."""
    application: tuple[Claim, ...]
    """Xids that usually blame the application."""
    old: tuple[tuple[Claim, tuple[str, ...]], ...]
    """Values above zero that did not change during the run, each with its GPUs."""
    clean: tuple[Claim, ...]
    """The evidence that nothing failed."""
    addressed: tuple[Grid, ...]
    """Series that carry the PCI addresses of GPUs."""
    measured: bool
    """Whether anything was sampled that can rule a fault out."""
    counters: Mapping[str, Grid]
    """Counters of uncorrectable memory errors and remapped rows that were sampled: :data:`RISES`, :data:`LEVELS`."""
    run: Run

    @cached_property
    def unchanged(self) -> tuple[Claim, ...]:
        """Evidence that these counters did not rise while sampled; empty if one did."""
        return tuple(_unchanged_claims(self.counters))

    @cached_property
    def unchanged_meanwhile(self) -> tuple[Claim, ...]:
        """Evidence that these counters did not rise during the run; empty if one did."""
        return tuple(_unchanged_claims(self.counters, self.run))

    @cached_property
    def risen(self) -> tuple[Claim, ...]:
        """The counters that rose during the run, per GPU; the first few of many."""
        grids = self.counters
        if not any(grids[name].value("sum").value for name in RISES if name in grids):
            return ()
        claims: list[Claim] = []
        for name in ("ecc", "remaps"):
            changes = rises(grids.get(name)) or (rises(grids.get("lifetime")) if name == "ecc" else [])
            inside = [change for change in changes if _is_during_run(change, self.run)]
            claims += [_rise_claim(name, change) for change in inside[:MAX_GPUS_NAMED]]
        return tuple(claims)


@fact(HEALTH)
def hardware_health(evidence: Evidence, activity: Maybe[GpuActivity], run: Run) -> HardwareHealth:
    """Needs no particular input; empty if nothing was sampled."""
    counters = {name: grid for name in (*RISES, *LEVELS) if (grid := evidence.grid(name)) is not None}
    hardware, application = _gauge_xids(evidence)
    until = float("inf") if run.end is None else run.end
    unused = _unused_gpus(activity, run)
    all_faults = [*_counter_faults(evidence), *hardware, *_vanished_gpus(evidence, until)]
    faults = [fault for fault in all_faults if fault.gpu not in unused]
    foreign = _other_jobs_claims([fault for fault in all_faults if fault.gpu in unused])
    clear = [
        *_unchanged_claims(counters),
        *([] if hardware or application else _no_new_xid(evidence)),
        *_restart_claims(counters),
        *foreign,
    ]
    flag = _health_flag_claim(evidence) if clear and not faults else None
    addressed = (evidence.grid(name) for name in (*MEASURED, "seen_memory"))
    return HardwareHealth(
        tuple(faults),
        tuple(application),
        tuple(_old_faults(evidence, hardware, unused)),
        tuple(clear if flag is None else [flag, *clear]),
        tuple(grid for grid in addressed if grid is not None),
        any(evidence.has(name) for name in MEASURED),
        counters,
        run,
    )


def _unchanged_claims(grids: Mapping[str, Grid], run: Run | None = None) -> list[Claim]:
    claims: list[Claim] = []
    for clean, clean_meanwhile, query_names in (
        (NO_ECC_ERRORS, NO_ECC_ERRORS_DURING_RUN, ("ecc_rise", "lifetime_rise")),
        (NO_REMAPS, NO_REMAPS_DURING_RUN, ("remap_rise",)),
    ):
        rose = [grids[name] for name in query_names if name in grids]
        sentence, sums = (
            clean,
            [(grid, value) for grid in rose if (value := value_or_none(grid, "sum", "")) is not None],
        )
        if run is not None and any(value.value for _, value in sums):
            inside = ((grid, value_or_none(during(grid, run), "sum", "")) for grid, _ in sums)
            sentence, sums = clean_meanwhile, [(grid, value) for grid, value in inside if value is not None]
        if any(value.value for _, value in sums):
            return []
        claims += [sentence(rise=value, count=_gpus_of(grid, value)) for grid, value in sums[:1]]
    if [claim.sentence for claim in claims] != [NO_ECC_ERRORS, NO_REMAPS]:
        return claims
    counts, growths = zip(*((claim.values["count"], claim.values["rise"]) for claim in claims), strict=True)
    if counts[0].value != counts[1].value:
        return claims
    return [
        NO_MEMORY_ERRORS(
            count=derived(counts[0].value, *counts, unit=counts[0].unit), rise=growths[0], remaps=growths[1]
        )
    ]


def _is_during_run(change: Change, run: Run) -> bool:
    """Whether a change may have happened during the run."""
    return (run.start is None or change.until >= run.start) and (run.end is None or change.since <= run.end)


def _rise_claim(name: str, change: Change) -> Claim:
    """The claim that a query's counter rose."""
    times = {"since": change.since, "until": change.until}
    values = {moment: derived(time, change.after, unit="time") for moment, time in times.items()}
    values |= {"gpu": derived(gpu_name(change.series), change.after), "before": change.before, "after": change.after}
    return COUNTER_ROSE[name](**values, by=change.by)


def _gpus_of(grid: Grid, source: Value) -> Value:
    """The number of GPUs in a grid."""
    return count_of(len(set(gpu_names(grid))), "GPU", source)


def _unused_gpus(activity: Maybe[GpuActivity], run: Run) -> frozenset[str]:
    """GPUs that were idle while others worked, if only memory shows which ones were allocated to the run: they belong
    to others."""
    if run.gpus_by not in ("occupancy", "all") or not isinstance(activity, GpuActivity):
        return frozenset()
    if activity.basis in (None, "utilization") or not activity.working_gpus.any():
        return frozenset()
    return frozenset(activity.named(~activity.working_gpus & activity.known.any(axis=1)))


def _other_jobs_claims(faults: Sequence[HardwareFault]) -> list[Claim]:
    """Claims about faults of other jobs' GPUs."""
    gpus = {fault.gpu: next(iter(fault.claim.values.values())) for fault in faults if fault.gpu}
    return [OTHER_JOBS_GPU(gpus=derived(tuple(gpus), *list(gpus.values())[:8]))] if gpus else []


def _counter_faults(evidence: Evidence) -> list[HardwareFault]:
    """Counters that rose and flags that were set on the run's GPUs during the run."""
    faults, counted = [], set()
    for name in COUNTERS:
        for change in rises(evidence.grid(name)):
            if name == "lifetime" and ("ecc", change.series.labels) in counted:
                continue  # the same errors counted twice
            counted.add((name, change.series.labels))
            faults.append(_fault(name, _rise_claim(name, change), change))
    return faults


def _gauge_xids(evidence: Evidence) -> tuple[list[HardwareFault], list[Claim]]:
    """Xids that the monitor's gauge changed to: (hardware Xids, Xids that usually blame the application)."""
    hardware, application = [], []
    for change in onsets(evidence.grid("xid_last")):
        entry = xid(int(change.after.number))
        values = {"xid": change.after, "gpu": derived(gpu_name(change.series), change.after)}
        if entry.blame == "hardware":
            when = derived(change.until, change.after, unit="time")
            claim = GAUGE_XID(name=derived(entry.mnemonic, change.after), when=when, **values)
            hardware.append(_fault("gauge", claim, change, entry.number))
        else:
            application.append(APPLICATION_GAUGE(**values))
    return hardware, application


def _vanished_gpus(evidence: Evidence, before: float) -> list[HardwareFault]:
    """GPUs that disappeared while others of their node were sampled; ``before``: the end of the run."""
    grids = [grid for name in ("seen_memory", "seen_temperature") if (grid := evidence.grid(name)) is not None]
    if not grids:
        return []
    faults = []
    for node in nodes_with_gaps(grids):
        for gpu in silent_entities([grid.where(node=node) for grid in grids], "gpu", before):
            name = f"{node}:{gpu.name}"
            claim = VANISHED(gpu=derived(name, gpu.since), since=gpu.since, witness=gpu.witness)
            position = next(series.at for series in grids[0].series if series.get("node") == node)
            since = gpu.since.number
            faults.append(
                HardwareFault("vanished", claim, Certainty.SUPPORTED, "metric", position, since, since, node, name)
            )
    return faults


def _old_faults(
    evidence: Evidence, hardware: Sequence[HardwareFault], unused: frozenset[str]
) -> list[tuple[Claim, tuple[str, ...]]]:
    """Counters and flags that were above zero before the run and did not change, each with its GPUs."""
    claims = []
    for name in COUNTERS:
        old = [
            (series, level)
            for series, level in unchanged_above_zero(evidence.grid(name))
            if gpu_name(series) not in unused
        ]
        if old:
            claims.append(_old_fault(OLD_LEVELS[name], old))
    gauges = [
        (s, v) for s, v in unchanged_above_zero(evidence.grid("xid_last")) if xid(int(v.number)).blame == "hardware"
    ]
    excluded = unused | {fault.gpu for fault in hardware}
    gauges = [(series, value) for series, value in gauges if gpu_name(series) not in excluded]
    return [*claims, _old_fault(OLD_GAUGE, gauges)] if gauges else claims


def _health_flag_claim(evidence: Evidence) -> Claim | None:
    """A health flag of the monitor, as a claim that it is incidental."""
    grid = evidence.grid("flags")
    highest = np.fmax.reduce(grid.values, axis=1, initial=0.0) if grid is not None else np.zeros(0)
    if grid is None or not highest.any():
        return None
    row = int(highest.argmax())
    level = grid.one(row).value("max", unit="")
    return ONLY_HEALTH_FLAG(gpu=derived(gpu_name(grid.series[row]), level), level=level)


def _no_new_xid(evidence: Evidence) -> list[Claim]:
    """The claim that no Xid occurred, if the gauge of the last one was sampled."""
    gauge = evidence.grid("xid_last")
    if gauge is None:
        return []
    level = gauge.value("max", unit="")
    return [NO_NEW_XID(level=level, count=_gpus_of(gauge, level))]


def _restart_claims(counters: Mapping[str, Grid]) -> list[Claim]:
    """Claims about counters that only returned to their value after a restart."""
    for rise, name in zip(RISES, LEVELS, strict=True):
        if rise in counters and name in counters and counters[rise].value("sum").value:
            return [COUNTERS_RESTARTED(level=counters[name].value("max", unit=""))]
    return []


def _fault(sign: str, claim: Claim, change: Change, number: int | None = None) -> HardwareFault:
    series = change.series
    return HardwareFault(sign, claim, Certainty.ESTABLISHED, "metric", series.at, change.since, change.until,
                         series.get("node"), gpu_name(series), number)  # fmt: skip


def _old_fault(sentence: Sentence, old: Sequence[tuple[Series, Value]]) -> tuple[Claim, tuple[str, ...]]:
    names = tuple(dict.fromkeys(gpu_name(series) for series, _ in old))
    highest = max((value for _, value in old), key=lambda value: value.number)
    return sentence(gpus=derived(names, *(value for _, value in old[:8])), level=highest), names
