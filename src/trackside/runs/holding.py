"""Which GPUs of its nodes the run held: by job label, by the scheduler's word, by what was seen on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.model import GpusBy
from trackside.runs.places import Placed, Unit
from trackside.stores.metric_backend import AROUND_S, MetricBackend, step_of

Use = Literal["mine", "other", "idle"]
METRIC = "gpu_memory_used_bytes"
CONTEXT_BYTES = 256 << 20
"""A process takes at least this much: a CUDA context alone is 300 to 600 MB, by GPU and driver."""
IDLE_BYTES = 1 << 30
"""An idle GPU holds no more: the driver keeps up to 600 MB for itself, a display some more."""
CLOSE_S = 120.0
"""A GPU is given and taken back within this of the job's start and end: prolog, and Slurm's KillWait and epilog."""
Cells = NDArray[np.float64]
"""(units, windows), NaN where nothing was sampled."""
SURENESS: tuple[GpusBy, ...] = ("label", "scheduler", "whole", "tracer", "occupancy", "all")
"""From the surest to the least sure."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of the run before its GPUs are.

    ``nodes``: its nodes, empty where unknown. ``ids``: spellings of its id. ``start``, ``end``: its window on the
    curves' own clock. ``detail``: its GPUs as ``node:index`` where the scheduler lists them. ``n_gpus``: how many.
    """

    nodes: tuple[str, ...]
    ids: AbstractSet[str]
    start: float
    end: float
    detail: AbstractSet[str] = frozenset()
    n_gpus: int | None = None

    def meets(self, each: Placed, slack: float = 0.0) -> bool:
        """Whether a curve was sampled while the run was there, or ``slack`` seconds from it."""
        return each.held.last_ms >= (self.start - slack) * 1000 and each.held.first_ms <= (self.end + slack) * 1000

    def within(self, each: Placed) -> bool:
        """Whether a curve began and ended with the run."""
        first, last = each.held.first_ms / 1000, each.held.last_ms / 1000
        return self.meets(each) and first >= self.start - CLOSE_S and last <= self.end + CLOSE_S


@dataclass(frozen=True, slots=True)
class Holding:
    """The GPUs (or instances) that the run held, and how that is known; None where no curve is of a GPU."""

    units: frozenset[Unit]
    by: GpusBy | None


def held_by(asked: Asked, found: Sequence[Placed], curves: MetricBackend, interval: float) -> Holding:
    """The GPUs of the run, node by node, each by the surest way that tells. ``interval``: seconds between samples."""

    def used(units: Sequence[Unit]) -> Mapping[Unit, Use]:  # dear: only where nothing else tells
        return uses(curves, found, units, asked.start, asked.end, interval)

    on_gpus = [each for each in found if each.gpu and asked.meets(each)]
    groups = _grouped(on_gpus, asked)
    counts = _counts(groups, asked)
    units: set[Unit] = set()
    ways: list[GpusBy] = []
    for node, of_node in groups.items():
        held, way = _of_group(of_node, counts[node], asked, used)
        if held:
            units.update(held)
            ways.append(way)
    return Holding(frozenset(units), max(ways, key=SURENESS.index, default=None))


def _grouped(found: Iterable[Placed], asked: Asked) -> dict[str, list[Placed]]:
    """The curves of the run's nodes by node; all together where how many GPUs a node gave can't be told."""
    apart = bool(asked.nodes) and (asked.n_gpus is None or asked.n_gpus % len(asked.nodes) == 0)
    groups: dict[str, list[Placed]] = {}
    nodes = frozenset(asked.nodes)
    for each in found:
        if not nodes or not each.node or each.node in nodes:
            groups.setdefault(each.node if apart else "", []).append(each)
    return groups


def _counts(groups: Iterable[str], asked: Asked) -> dict[str, int | None]:
    """How many GPUs the run held in each group, where that is known."""
    named = [gpu.rpartition(":")[0] for gpu in asked.detail]
    each = asked.n_gpus if asked.n_gpus is None or not asked.nodes else asked.n_gpus // len(asked.nodes)
    return {node: (asked.n_gpus if not node else named.count(node) or each) for node in groups}


def _of_group(
    found: Sequence[Placed], wanted: int | None, asked: Asked, used: Callable[[Sequence[Unit]], Mapping[Unit, Use]]
) -> tuple[AbstractSet[Unit], GpusBy]:
    units = _units(found)
    labelled = {each.unit for each in found if each.job and each.job in asked.ids} & units
    if labelled:
        return labelled, "label"
    free = sorted(units - _of_others(found, asked))
    told = {unit for unit in free if f"{unit[0]}:{unit[1]}" in asked.detail and not unit[2]}
    if told:
        return told, "scheduler"
    if wanted is not None and len(free) <= wanted:
        return set(free), "whole"
    traced = {each.unit for each in found if each.rank and asked.within(each)} & set(free)
    if traced and (wanted is None or len(traced) <= wanted):
        return traced, "tracer"
    return _by_use(free, wanted, used(free))


def _by_use(free: Sequence[Unit], wanted: int | None, used: Mapping[Unit, Use]) -> tuple[AbstractSet[Unit], GpusBy]:
    """By the memory that came and went with the run; else every GPU that no other job had."""
    mine = {unit for unit in free if used.get(unit) == "mine"}
    rest = {unit for unit in free if used.get(unit) != "other"}
    if wanted is None:
        return (mine, "occupancy") if mine else (rest, "all")
    if mine and len(mine) <= wanted:
        return (rest if len(rest) <= wanted else mine), "occupancy"
    if rest and len(rest) <= wanted:
        return rest, "occupancy"
    return mine or rest, "all"


def _units(found: Iterable[Placed]) -> set[Unit]:
    """What could be held: the instances of a GPU that has some, other GPUs whole."""
    units = {each.unit for each in found}
    split = {unit[:2] for unit in units if unit[2]}
    return {unit for unit in units if unit[2] or unit[:2] not in split}


def _of_others(found: Iterable[Placed], asked: Asked) -> set[Unit]:
    """What bore another job's label for more than a moment of the run."""
    others = set()
    for each in found:
        if each.job and each.job not in asked.ids:
            first, last = each.held.first_ms / 1000, each.held.last_ms / 1000
            shared = min(last, asked.end) - max(first, asked.start)
            if shared >= min(CLOSE_S, (last - first) / 2, (asked.end - asked.start) / 2):
                others.add(each.unit)
    return others


# -- when its memory was taken: by the run, by others, or by nobody


def uses(
    curves: MetricBackend, found: Iterable[Placed], units: Sequence[Unit], start: float, end: float, interval: float
) -> Mapping[Unit, Use]:
    """Who used each of the units between two moments of the curves' own clock; those not measured are left out.

    The run's are taken while it was there, and free at some moment about its start and about its end.
    """
    ids = _memory(found, set(units))
    if not ids:
        return {}
    groups, step = list(ids.values()), step_of(end - start + 2 * AROUND_S, interval, fine=True)
    low, times = _rolled(curves, groups, start - AROUND_S, end + AROUND_S, step, "min")
    high, _ = _rolled(curves, groups, start - AROUND_S, end + AROUND_S, step, "max")
    level = _least(low)
    inside = (times - step >= start) & (times <= end)
    if not inside.any():
        inside = (times > start) & (times - step < end)
    with np.errstate(invalid="ignore"):
        taken = [bool((high[row, inside] > level[row]).any()) for row in range(len(groups))]
    came = _free(curves, groups, (start - CLOSE_S, min(start + AROUND_S, end)), (start - CLOSE_S, start), level, step)
    went = _free(curves, groups, (max(end - CLOSE_S, start), end + AROUND_S), (end, end + AROUND_S), level, step)
    told: list[Use] = [
        "idle" if not taken[row] else "mine" if came[row] and went[row] else "other" for row in range(len(groups))
    ]
    return {unit: told[row] for row, unit in enumerate(ids) if not np.isnan(high[row]).all()}


def occupied(
    curves: MetricBackend, found: Iterable[Placed], units: Sequence[Unit], first: float, last: float, interval: float
) -> Mapping[Unit, Sequence[tuple[float, float]]]:
    """The stretches for which each unit was taken, between two moments of the curves' own clock."""
    ids = _memory(found, set(units))
    if not ids:
        return {}
    step = step_of(last - first, interval, fine=True)
    high, times = _rolled(curves, list(ids.values()), first, last, step, "max")
    level = _least(high)[:, None]
    with np.errstate(invalid="ignore"):
        taken = high > level
    return {unit: _stretches(taken[row], np.isnan(high[row]), times, step) for row, unit in enumerate(ids)}


def _stretches(
    taken: NDArray[np.bool_], unknown: NDArray[np.bool_], times: Cells, step: float
) -> list[tuple[float, float]]:
    """Runs of windows that are taken; one that wasn't sampled between two taken ones counts as taken."""
    found: list[tuple[float, float]] = []
    going = False
    for place in np.flatnonzero(~unknown).tolist():
        if taken[place]:
            if going:
                found[-1] = found[-1][0], float(times[place])
            else:
                found.append((float(times[place]) - step, float(times[place])))
        going = bool(taken[place])
    return found


def _memory(found: Iterable[Placed], units: set[Unit]) -> dict[Unit, list[int]]:
    ids: dict[Unit, list[int]] = {}
    for each in found:
        if each.series.metric == METRIC and each.unit in units:
            ids.setdefault(each.unit, []).append(each.held.id)
    return ids


def _rolled(
    curves: MetricBackend,
    groups: Sequence[Sequence[int]],
    start: float,
    end: float,
    step: float,
    how: Literal["min", "max"],
) -> tuple[Cells, Cells]:
    """Cells, and the ends of their windows."""
    step_ms = round(step * 1000)
    first = math.floor(start * 1000 / step_ms) * step_ms
    last = max(math.ceil(end * 1000 / step_ms) * step_ms, first + step_ms)
    values, _ = curves.rollup(groups, first, last, step_ms, how)
    return values, np.arange(first + step_ms, last + 1, step_ms, dtype=np.float64) / 1000


def _least(cells: Cells) -> Cells:
    """(units,) bytes above which each counts as taken."""
    lowest: Cells = np.where(np.isnan(cells), math.inf, cells).min(axis=1)
    return np.minimum(lowest, IDLE_BYTES) + CONTEXT_BYTES


def _free(
    curves: MetricBackend,
    groups: Sequence[Sequence[int]],
    within: tuple[float, float],
    outside: tuple[float, float],
    level: Cells,
    step: float,
) -> NDArray[np.bool_]:
    """(units,) Whether each was free at some moment; True as well where nothing was sampled outside the run."""
    fine = min(step, 15.0)
    low, times = _rolled(curves, groups, *within, fine, "min")
    beyond = (times > outside[0]) & (times <= outside[1])
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isnan(low[:, beyond]).all(axis=1) | (low <= level[:, None]).any(axis=1))
