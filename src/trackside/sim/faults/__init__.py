"""The faults that can be injected: one module per fault, registered because it lies in this package. The fields of its
class are the keys of its table in the scenario."""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform

from trackside.sim.attempt import Placement
from trackside.sim.scenario import ScenarioError
from trackside.sim.simulation import Simulation
from trackside.sim.truth import InjectedFault


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFault:
    """Base of all faults. ``prepare`` may change what steps cost, before they are scheduled; ``apply`` changes what then
    happens.

    A fault hits a ``rank``, or a ``node`` (name or index) and a ``gpu`` of it, or, if none is set, a rank chosen by the
    scenario's seed.
    """

    kind: ClassVar[str] = ""
    at: str = "50%"
    """When it begins: a share of the run, ``step 120``, a length such as ``12m``, or seconds from the start."""
    rank: int | None = None
    node: str = ""
    gpu: int | None = None
    primary: bool = False
    """Whether it is the cause in truth.json; see docs/simulator.md for the cause if no fault is marked."""

    def prepare(self, sim: Simulation) -> None:
        """Change what steps cost, before they are scheduled."""

    def apply(self, sim: Simulation) -> None:
        """Change what happens, after the steps are scheduled; faults are applied in order of their time."""

    def start_time(self, sim: Simulation) -> float:
        """When the fault begins, POSIX seconds."""
        return sim.time_of(self.at, f"fault {self.kind}: at")

    def placement(self, sim: Simulation) -> Placement:
        """The rank that it hits. Raises ScenarioError if there is none."""
        if self.rank is not None:
            if not 0 <= self.rank < len(sim.placements):
                raise ScenarioError(
                    f"fault {self.kind}: rank: {self.rank} is not one of the {len(sim.placements)} ranks"
                )
            return sim.placements[self.rank]
        candidates = [placement for placement in sim.placements if self.node == "" or placement.node == self._node(sim)]
        if self.gpu is not None:
            candidates = [placement for placement in candidates if placement.gpu == self.gpu]
        if not candidates:
            raise ScenarioError(f"fault {self.kind}: node and gpu: the job has no rank there")
        return candidates[self._pick_index(sim, len(candidates))]

    def node_ranks(self, sim: Simulation) -> list[int]:
        """All ranks on the node that it hits."""
        node = self.placement(sim).node
        return [placement.rank for placement in sim.placements if placement.node == node]

    def check(self, name: str, choices: Collection[str]) -> None:
        """Raises ScenarioError if a field's value is not one of ``choices``."""
        value = getattr(self, name)
        if value not in choices:
            raise ScenarioError(f"fault {self.kind}: {name}: {value!r} is not one of: {', '.join(choices)}")

    def record_truth(
        self, sim: Simulation, family: str, culprit: str, variant: str | None = None, **fields: Any
    ) -> None:
        """Record the truth about this fault: see :class:`InjectedFault`."""
        sim.injected.append(InjectedFault(self.kind, family, culprit, variant, primary=self.primary, **fields))

    def _node(self, sim: Simulation) -> str:
        return sim.node_name(self.node, f"fault {self.kind}: node")

    def _pick_index(self, sim: Simulation, count: int) -> int:
        return zlib.crc32(f"{sim.scenario.seed}/{self.kind}".encode()) % count


AnyFault = TypeVar("AnyFault", bound=SimulatedFault)
_KINDS: dict[str, type[SimulatedFault]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def fault(kind: str) -> Callable[[type[AnyFault]], type[AnyFault]]:
    """Make a fault of the decorated class and register it as ``kind``."""

    def register(cls: type[AnyFault]) -> type[AnyFault]:
        cls.kind = kind
        fault_class = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        _KINDS[kind] = fault_class
        return fault_class

    return register


@cache
def faults() -> Mapping[str, type[SimulatedFault]]:
    """kind -> class of the fault."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_KINDS.items()))
