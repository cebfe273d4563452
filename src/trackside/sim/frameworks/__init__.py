"""How training loops log: one module per framework. A module in this package is registered because it is here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.simulation import Simulation

Lines = Callable[[Simulation, JobAttempt], Iterator[PrintedText]]
"""Everything that the job's own code prints, up to what the attempt's phases and steps reached."""


@cache
def frameworks() -> Mapping[str, Lines]:
    """id (the file's name) -> its ``lines`` function."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").lines for name in names}
