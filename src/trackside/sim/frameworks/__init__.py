"""How training loops log: one file a framework. A file in this folder is its registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from trackside.sim.act import Act, Entry
from trackside.sim.stage import Stage

Lines = Callable[[Stage, Act], Iterator[Entry]]
"""Everything that the job's own code prints, up to what the act's phases and steps reached."""


@cache
def frameworks() -> Mapping[str, Lines]:
    """The ``lines`` of all of them, by id: the file's name."""
    names = sorted(each.name for each in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").lines for name in names}
