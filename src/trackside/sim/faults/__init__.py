"""What goes wrong: one file a fault. A file in this folder is its registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from trackside.sim.fault import Fault


@cache
def faults() -> Mapping[str, type[Fault]]:
    """kind -> its class."""
    found: list[type[Fault]] = [
        importlib.import_module(f"{__name__}.{each.name}").FAULT for each in pkgutil.iter_modules(__path__)
    ]
    return {one.kind: one for one in sorted(found, key=lambda one: one.kind)}
