"""What a fault is: a frozen dataclass whose fields are its table in the scenario."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

from trackside.sim.act import Place
from trackside.sim.scenario import ScenarioError
from trackside.sim.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Base of all faults. ``shape`` may change what steps cost, before the run is played; ``strike`` what happens then.

    Where it strikes: a ``rank``, or a ``node`` (name or index) and ``gpu`` of it, or - none given - a rank that the
    scenario's seed picks.
    """

    kind: ClassVar[str] = ""
    at: str = "50%"
    rank: int | None = None
    node: str = ""
    gpu: int | None = None
    primary: bool = False

    def shape(self, stage: Stage) -> None:
        """Before the steps are laid out."""

    def strike(self, stage: Stage) -> None:
        """After they are; faults strike in order of their time."""

    def begin(self, stage: Stage) -> float:
        """When it begins, POSIX seconds."""
        return stage.when(self.at, f"fault {self.kind}: at")

    def place(self, stage: Stage) -> Place:
        """The rank it strikes. Raises ScenarioError for one that there isn't."""
        if self.rank is not None:
            if not 0 <= self.rank < len(stage.places):
                raise ScenarioError(f"fault {self.kind}: rank: {self.rank} is none of the {len(stage.places)} ranks")
            return stage.places[self.rank]
        fitting = [place for place in stage.places if self.node == "" or place.node == self._node(stage)]
        if self.gpu is not None:
            fitting = [place for place in fitting if place.gpu == self.gpu]
        if not fitting:
            raise ScenarioError(f"fault {self.kind}: node and gpu: the job has no rank there")
        return fitting[self._pick(stage, len(fitting))]

    def node_ranks(self, stage: Stage) -> list[int]:
        """All ranks on the node it strikes."""
        node = self.place(stage).node
        return [place.rank for place in stage.places if place.node == node]

    def _node(self, stage: Stage) -> str:
        return stage.node_name(self.node, f"fault {self.kind}: node")

    def _pick(self, stage: Stage, count: int) -> int:
        return zlib.crc32(f"{stage.scenario.seed}/{self.kind}".encode()) % count
