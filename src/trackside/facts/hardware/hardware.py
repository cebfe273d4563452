"""What counters and gauges say of a run's GPUs: faults that came, old ones that stood, and clean ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.activity import activity
from trackside.facts.gpus import name_of
from trackside.facts.hardware.counters import Change, onsets, rises, standing
from trackside.facts.hardware.health import COUNTERS, Fault, Health, clean, gpus_of, rose
from trackside.facts.hardware.presence import Gap, interrupted, silent_gpus
from trackside.finding import Certainty, Claim, claim
from trackside.model import Run, Series


def examined(evidence: Evidence, run: Run) -> Health:
    """Everything that the counters, gauges and gaps of the run's GPUs tell."""
    hardware, application = _reported(evidence)
    until = float("inf") if run.end is None else run.end
    unused = _unused(evidence, run)
    told, foreign = _sorted([*_risen(evidence), *hardware, *_vanished(evidence, until)], unused)
    clear = [*clean(evidence), *_quiet(evidence, [*hardware, *application]), *_restarted(evidence), *foreign]
    flag = _flagged(evidence) if clear and not told else None
    return Health(
        tuple(told),
        tuple(fault.claim for fault in application),
        tuple(_stood(evidence, hardware, unused)),
        tuple(clear if flag is None else [flag, *clear]),
    )


def _unused(evidence: Evidence, run: Run) -> frozenset[str]:
    """GPUs that did nothing while others worked, where only memory tells which ones the run held: another's."""
    if run.gpus_by not in ("occupancy", "all"):
        return frozenset()
    told = activity(evidence, run)
    if told is None or told.basis in (None, "utilisation") or not told.users.any():
        return frozenset()
    return frozenset(told.named(~told.users & told.known.any(axis=1)))


def _sorted(faults: Sequence[Fault], unused: frozenset[str]) -> tuple[list[Fault], list[Claim]]:
    """(faults of the run's GPUs, what to say of those of others')."""
    foreign = [fault for fault in faults if fault.gpu in unused]
    gpus = {fault.gpu: next(value for value in fault.claim.values.values()) for fault in foreign if fault.gpu}
    said = [claim("foreign", gpus=derived(tuple(gpus), *list(gpus.values())[:8]))] if gpus else []
    return [fault for fault in faults if fault.gpu not in unused], said


def _risen(evidence: Evidence) -> list[Fault]:
    """Counters that rose and flags that were set on the run's GPUs while it was there."""
    found, seen = [], set()
    for name in COUNTERS:
        for change in rises(evidence.grid(name)):
            if name == "lifetime" and ("ecc", change.series.labels) in seen:
                continue  # the same errors counted twice
            seen.add((name, change.series.labels))
            found.append(_fault(rose(name, change), change))
    return found


def _reported(evidence: Evidence) -> tuple[list[Fault], list[Fault]]:
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
            told = claim("gauge", name=derived(entry.mnemonic, change.after), when=when, **values)
            hardware.append(_fault(told, change, entry.number))
        else:
            application.append(_fault(claim("application_gauge", **values), change, entry.number))
    return hardware, application


def _vanished(evidence: Evidence, before: float) -> list[Fault]:
    """GPUs that were not sampled any more while others of their node were; ``before``: the end of the run."""
    grids = [grid for name in ("seen_memory", "seen_temperature") if (grid := evidence.grid(name)) is not None]
    if not grids:
        return []
    found, limits = [], Gap()
    for node in interrupted(grids, limits):
        for each in silent_gpus(grids, node, before, limits):
            name = f"{node}:{each.name}"
            told = claim("vanished", gpu=derived(name, each.since), since=each.since, witness=each.witness)
            at = next(series.at for series in grids[0].series if series.get("node") == node)
            since = each.since.number
            found.append(Fault(told, Certainty.SUPPORTED, "metric", at, since, since, node, name))
    return found


def _stood(
    evidence: Evidence, hardware: Sequence[Fault], unused: frozenset[str]
) -> list[tuple[Claim, tuple[str, ...]]]:
    """Counters and flags that were up before the run and did not move: each with its GPUs."""
    found = []
    for name in COUNTERS:
        old = [(series, level) for series, level in standing(evidence.grid(name)) if name_of(series) not in unused]
        if old:
            found.append(_old(f"old_{name}", old))
    told = [(s, v) for s, v in standing(evidence.grid("xid_last")) if xid(int(v.number)).blame == "hardware"]
    aside = unused | {fault.gpu for fault in hardware}
    told = [(series, value) for series, value in told if name_of(series) not in aside]
    return [*found, _old("old_gauge", told)] if told else found


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
    return claim("flag_only", gpu=derived(name_of(grid.series[row]), level), level=level)


def _quiet(evidence: Evidence, told: Sequence[Fault]) -> list[Claim]:
    """That no Xid came, where the gauge of the last one was watched."""
    gauge = evidence.grid("xid_last")
    if gauge is None or told:
        return []
    level = gauge.value("max", unit="")
    return [claim("quiet_gauge", level=level, count=gpus_of(gauge, level))]


def _restarted(evidence: Evidence) -> list[Claim]:
    """What to say of counters that seem to have grown and only came back after a restart."""
    for name, rise in (("ecc", "ecc_rise"), ("lifetime", "lifetime_rise"), ("remaps", "remap_rise")):
        grid, level = evidence.grid(rise), evidence.grid(name)
        if grid is not None and level is not None and grid.value("sum").value:
            return [claim("restarted", level=level.value("max", unit=""))]
    return []


def _fault(told: Claim, change: Change, number: int | None = None) -> Fault:
    series = change.series
    return Fault(told, Certainty.ESTABLISHED, "metric", series.at, change.since, change.until, series.get("node"),
                 name_of(series), number)  # fmt: skip


def _old(key: str, old: Sequence[tuple[Series, Value]]) -> tuple[Claim, tuple[str, ...]]:
    names = tuple(dict.fromkeys(name_of(series) for series, _ in old))
    most = max((value for _, value in old), key=lambda value: value.number)
    return claim(key, gpus=derived(names, *(value for _, value in old[:8])), level=most), names


def worked_after(evidence: Evidence, run: Run, moment: float) -> bool | None:
    """Whether the run's GPUs went on working after a moment; None where nothing that proves work was sampled.

    A spell counts from three windows on: what is torn down may launch a last kernel.
    """
    told = activity(evidence, run)
    if told is None or told.basis in (None, "utilisation"):
        return None
    later = told.times - told.step >= moment
    return None if not (told.seen & later).any() else int((told.active & later).sum()) >= 3
