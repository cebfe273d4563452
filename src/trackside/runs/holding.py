"""Which GPUs of its nodes the run held: by job label, by the scheduler's word, by what was seen on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trackside.model import GpusBy
from trackside.runs.occupancy import CLOSE_S, Use
from trackside.runs.places import Placed, Unit

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


Uses = Callable[[Sequence[Unit]], Mapping[Unit, Use]]
"""Who used some GPUs, by their memory; dear, so it is asked only where nothing else tells."""


def held_by(asked: Asked, found: Sequence[Placed], uses: Uses) -> Holding:
    """The GPUs of the run, node by node, each by the surest way that tells."""
    on_gpus = [each for each in found if each.gpu and asked.meets(each)]
    groups = _grouped(on_gpus, asked)
    counts = _counts(groups, asked)
    units: set[Unit] = set()
    ways: list[GpusBy] = []
    for node, curves in groups.items():
        held, way = _of_group(curves, counts[node], asked, uses)
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
    found: Sequence[Placed], wanted: int | None, asked: Asked, uses: Uses
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
    return _by_use(free, wanted, uses(free))


def _by_use(free: Sequence[Unit], wanted: int | None, uses: Mapping[Unit, Use]) -> tuple[AbstractSet[Unit], GpusBy]:
    """By the memory that came and went with the run; else every GPU that no other job had."""
    mine = {unit for unit in free if uses.get(unit) == "mine"}
    rest = {unit for unit in free if uses.get(unit) != "other"}
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
