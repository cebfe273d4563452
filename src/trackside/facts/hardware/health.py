"""Hardware health of the run's GPUs, by what was sampled: faults that came, old ones that stood, and clean counters.

Counters that rose and flags that were set while the run was there, Xids that the monitor's gauge changed to, and GPUs
that vanished while others of their node were sampled. What stood before and did not move is no fault of this run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import GpuActivity
from trackside.facts.gpus import name_of
from trackside.facts.hardware.counters import Change, onsets, rises, standing
from trackside.facts.hardware.error_counters import LEVELS, RISES, ErrorCounters, gpus_of, rose
from trackside.facts.hardware.presence import Gap, interrupted, silent_gpus
from trackside.finding import Certainty, Claim, Sentence
from trackside.model import Event, Plane, Position, Record, Run, Series
from trackside.query import Query, metric

COUNTERS: Mapping[str, Query] = {
    **LEVELS,
    "remap_failed": metric("gpu_row_remap_failed").over("around", "last"),
    "pages": metric("gpu_pages_retired_total").where(cause="double_bit").over("around", "last"),
}
"""What only rises when a GPU's memory fails."""
HEALTH: Mapping[str, Query] = {
    **RISES,
    **COUNTERS,
    "xid_last": metric("gpu_xid_last").over("around", "last"),
    "flags": metric("gpu_health").over("around", "last"),
    "seen_memory": metric("gpu_memory_used_bytes").over("around", "count"),
    "seen_temperature": metric("gpu_temperature_celsius").over("around", "count"),
}
"""The questions behind :class:`HardwareHealth`."""
MEASURED = ("ecc", "lifetime", "remaps", "xid_last")
"""Questions any one of which can rule a fault out."""

GAUGE = Sentence("the monitor saw GPU {gpu} report Xid {xid} ({name}) by {when}")
VANISHED = Sentence(
    "GPU {gpu} was not sampled any more from {since} on, while other GPUs of its node gave {witness:plain} samples"
)
OLD: Mapping[str, Sentence] = {
    "ecc": Sentence("uncorrectable ECC errors stood at up to {level} on GPU {gpus} and did not rise"),
    "lifetime": Sentence(
        "the lifetime count of uncorrectable ECC errors stood at up to {level} on GPU {gpus} and did not rise"
    ),
    "remaps": Sentence("rows remapped for uncorrectable errors stood at up to {level} on GPU {gpus} and did not rise"),
    "remap_failed": Sentence("the flag of a failed row remap was set on GPU {gpus} all the while"),
    "pages": Sentence(
        "memory pages retired for double-bit errors stood at up to {level} on GPU {gpus} and did not rise"
    ),
}
"""That a counter stood, by the name of its question."""
OLD_GAUGE = Sentence("the last Xid of GPU {gpus} was {level} from the first sample on: it may be older than the run")
APPLICATION_GAUGE = Sentence("the monitor saw only Xids that usually blame the application, such as {xid} on GPU {gpu}")
FLAG_ONLY = Sentence("the health flag of GPU {gpu} was {level}, with no counter that rose beside it: incidental")
QUIET_GAUGE = Sentence("no Xid came: the gauge of the last one stayed where it was, at most {level}, on {count}")
FOREIGN = Sentence("GPU {gpus} reported errors, but did no work while the run's GPUs did: they are another's")
RESTARTED = Sentence("the counters were restarted and came back to what they had been, at most {level}")


@dataclass(frozen=True, slots=True)
class HardwareFault:
    """One witness of broken hardware, from whatever plane."""

    sign: str
    """What kind of witness: the name of a counter, gauge, vanished, xid, switch, lost, cuda or drained."""
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


@dataclass(frozen=True, eq=False)
class HardwareHealth:
    """All that was measured of the run's GPUs."""

    faults: tuple[HardwareFault, ...]
    """Counters that rose, flags that were set, Xids of the hardware and GPUs that vanished, while the run was there."""
    application: tuple[Claim, ...]
    """Xids that usually blame the application."""
    old: tuple[tuple[Claim, tuple[str, ...]], ...]
    """What stood before the run and did not move: each with its GPUs."""
    clean: tuple[Claim, ...]
    """What shows that nothing failed."""
    addressed: tuple[Grid, ...]
    """Curves that carry the PCI addresses of GPUs."""
    measured: bool
    """Whether anything was sampled that can rule a fault out."""


@fact(HEALTH)
def hardware_health(
    evidence: Evidence, counters: ErrorCounters, activity: Maybe[GpuActivity], run: Run
) -> HardwareHealth:
    """Of what was sampled; empty if nothing was."""
    hardware, application = _reported(evidence)
    until = float("inf") if run.end is None else run.end
    unused = _unused(activity, run)
    faults, foreign = _sorted([*_risen(evidence), *hardware, *_vanished(evidence, until)], unused)
    clear = [*counters.unchanged, *_quiet(evidence, [*hardware, *application]), *_restarted(evidence), *foreign]
    flag = _flagged(evidence) if clear and not faults else None
    addressed = (evidence.grid(name) for name in (*MEASURED, "seen_memory"))
    return HardwareHealth(
        tuple(faults),
        tuple(fault.claim for fault in application),
        tuple(_stood(evidence, hardware, unused)),
        tuple(clear if flag is None else [flag, *clear]),
        tuple(grid for grid in addressed if grid is not None),
        any(evidence.has(name) for name in MEASURED),
    )


def _unused(activity: Maybe[GpuActivity], run: Run) -> frozenset[str]:
    """GPUs that did nothing while others worked, where only memory tells which ones the run held: another's."""
    if run.gpus_by not in ("occupancy", "all") or not isinstance(activity, GpuActivity):
        return frozenset()
    if activity.basis in (None, "utilisation") or not activity.users.any():
        return frozenset()
    return frozenset(activity.named(~activity.users & activity.known.any(axis=1)))


def _sorted(faults: Sequence[HardwareFault], unused: frozenset[str]) -> tuple[list[HardwareFault], list[Claim]]:
    """(faults of the run's GPUs, what to say of those of others')."""
    foreign = [fault for fault in faults if fault.gpu in unused]
    gpus = {fault.gpu: next(value for value in fault.claim.values.values()) for fault in foreign if fault.gpu}
    claims = [FOREIGN(gpus=derived(tuple(gpus), *list(gpus.values())[:8]))] if gpus else []
    return [fault for fault in faults if fault.gpu not in unused], claims


def _risen(evidence: Evidence) -> list[HardwareFault]:
    """Counters that rose and flags that were set on the run's GPUs while it was there."""
    faults, counted = [], set()
    for name in COUNTERS:
        for change in rises(evidence.grid(name)):
            if name == "lifetime" and ("ecc", change.series.labels) in counted:
                continue  # the same errors counted twice
            counted.add((name, change.series.labels))
            faults.append(_fault(name, rose(name, change), change))
    return faults


def _reported(evidence: Evidence) -> tuple[list[HardwareFault], list[HardwareFault]]:
    """Xids that the monitor's gauge changed to: (those of the hardware, those that usually blame the application)."""
    grid = evidence.grid("xid_last")
    if grid is None:
        return [], []
    hardware, application = [], []
    for change in onsets(grid):
        entry = xid(int(change.after.number))
        values = {"xid": change.after, "gpu": derived(name_of(change.series), change.after)}
        if entry.blame == "hardware":
            when = derived(change.until, change.after, unit="time")
            claim = GAUGE(name=derived(entry.mnemonic, change.after), when=when, **values)
            hardware.append(_fault("gauge", claim, change, entry.number))
        else:
            application.append(_fault("gauge", APPLICATION_GAUGE(**values), change, entry.number))
    return hardware, application


def _vanished(evidence: Evidence, before: float) -> list[HardwareFault]:
    """GPUs that were not sampled any more while others of their node were; ``before``: the end of the run."""
    grids = [grid for name in ("seen_memory", "seen_temperature") if (grid := evidence.grid(name)) is not None]
    if not grids:
        return []
    faults, limits = [], Gap()
    for node in interrupted(grids, limits):
        for gpu in silent_gpus(grids, node, before, limits):
            name = f"{node}:{gpu.name}"
            claim = VANISHED(gpu=derived(name, gpu.since), since=gpu.since, witness=gpu.witness)
            at = next(series.at for series in grids[0].series if series.get("node") == node)
            since = gpu.since.number
            faults.append(HardwareFault("vanished", claim, Certainty.SUPPORTED, "metric", at, since, since, node, name))
    return faults


def _stood(
    evidence: Evidence, hardware: Sequence[HardwareFault], unused: frozenset[str]
) -> list[tuple[Claim, tuple[str, ...]]]:
    """Counters and flags that were up before the run and did not move: each with its GPUs."""
    claims = []
    for name in COUNTERS:
        old = [(series, level) for series, level in standing(evidence.grid(name)) if name_of(series) not in unused]
        if old:
            claims.append(_old(OLD[name], old))
    gauges = [(s, v) for s, v in standing(evidence.grid("xid_last")) if xid(int(v.number)).blame == "hardware"]
    aside = unused | {fault.gpu for fault in hardware}
    gauges = [(series, value) for series, value in gauges if name_of(series) not in aside]
    return [*claims, _old(OLD_GAUGE, gauges)] if gauges else claims


def _flagged(evidence: Evidence) -> Claim | None:
    """A health flag of the monitor that was up, as a claim that it is incidental."""
    grid = evidence.grid("flags")
    if grid is None:
        return None
    most = np.fmax.reduce(grid.values, axis=1)
    row = int(np.nanargmax(most)) if not np.isnan(most).all() else 0
    if not most[row] > 0:
        return None
    level = grid.one(row).value("max", unit="")
    return FLAG_ONLY(gpu=derived(name_of(grid.series[row]), level), level=level)


def _quiet(evidence: Evidence, reported: Sequence[HardwareFault]) -> list[Claim]:
    """That no Xid came, where the gauge of the last one was watched."""
    gauge = evidence.grid("xid_last")
    if gauge is None or reported:
        return []
    level = gauge.value("max", unit="")
    return [QUIET_GAUGE(level=level, count=gpus_of(gauge, level))]


def _restarted(evidence: Evidence) -> list[Claim]:
    """What to say of counters that seem to have grown and only came back after a restart."""
    for name, rise in (("ecc", "ecc_rise"), ("lifetime", "lifetime_rise"), ("remaps", "remap_rise")):
        grid, level = evidence.grid(rise), evidence.grid(name)
        if grid is not None and level is not None and grid.value("sum").value:
            return [RESTARTED(level=level.value("max", unit=""))]
    return []


def _fault(sign: str, claim: Claim, change: Change, number: int | None = None) -> HardwareFault:
    series = change.series
    return HardwareFault(sign, claim, Certainty.ESTABLISHED, "metric", series.at, change.since, change.until,
                         series.get("node"), name_of(series), number)  # fmt: skip


def _old(sentence: Sentence, old: Sequence[tuple[Series, Value]]) -> tuple[Claim, tuple[str, ...]]:
    names = tuple(dict.fromkeys(name_of(series) for series, _ in old))
    most = max((value for _, value in old), key=lambda value: value.number)
    return sentence(gpus=derived(names, *(value for _, value in old[:8])), level=most), names
