"""What goes wrong: one file a fault. A file in this folder is its registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from trackside.sim.fault import KINDS, Fault


@cache
def faults() -> Mapping[str, type[Fault]]:
    """kind -> its class."""
    for each in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{each.name}")
    return dict(sorted(KINDS.items()))
