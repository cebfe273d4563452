"""How training loops log: one file a framework. A file in this folder is its registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from trackside.sim.act import Act, Entry
from trackside.sim.stage import Stage


@dataclass(frozen=True, slots=True)
class Framework:
    """``lines``: everything that the job's own code prints, up to what the act's phases and steps reached."""

    id: str
    lines: Callable[[Stage, Act], Iterator[Entry]]


@cache
def frameworks() -> Mapping[str, Framework]:
    """All of them, by id."""
    found = [importlib.import_module(f"{__name__}.{each.name}").FRAMEWORK for each in pkgutil.iter_modules(__path__)]
    return {one.id: one for one in sorted(found, key=lambda one: one.id)}
