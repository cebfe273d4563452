"""What goes wrong: one file a fault. A file in this folder is its registration; its class' fields are its table in the scenario."""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform

from trackside.sim.act import Place
from trackside.sim.scenario import ScenarioError
from trackside.sim.stage import Stage
from trackside.sim.truth import Injected


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

    def check(self, name: str, known: Collection[str]) -> None:
        """Raises ScenarioError where a field is none of what is known."""
        given = getattr(self, name)
        if given not in known:
            raise ScenarioError(f"fault {self.kind}: {name}: {given!r} is none of {', '.join(known)}")

    def inject(self, stage: Stage, family: str, culprit: str, variant: str | None = None, **told: Any) -> None:
        """Note the truth: see :class:`Injected`."""
        stage.injected.append(Injected(self.kind, family, culprit, variant, primary=self.primary, **told))

    def _node(self, stage: Stage) -> str:
        return stage.node_name(self.node, f"fault {self.kind}: node")

    def _pick(self, stage: Stage, count: int) -> int:
        return zlib.crc32(f"{stage.scenario.seed}/{self.kind}".encode()) % count


Made = TypeVar("Made", bound=Fault)
_KINDS: dict[str, type[Fault]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def fault(kind: str) -> Callable[[type[Made]], type[Made]]:
    """Makes a fault of the decorated class and registers it as ``kind``."""

    def register(cls: type[Made]) -> type[Made]:
        cls.kind = kind
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        _KINDS[kind] = made
        return made

    return register


@cache
def faults() -> Mapping[str, type[Fault]]:
    """kind -> its class."""
    for each in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{each.name}")
    return dict(sorted(_KINDS.items()))
