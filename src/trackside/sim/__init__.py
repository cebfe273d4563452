"""WHAT WOULD IT LOOK LIKE: a healthy cluster and one file a fault. Knows nothing of diagnosis."""

from __future__ import annotations

from trackside.sim.faults import faults
from trackside.sim.scenario import Scenario
from trackside.sim.schema import built_in, load_scenario
from trackside.sim.simulate import simulate
from trackside.sim.truth import Truth

__all__ = ["Scenario", "Truth", "catalogue", "load_scenario", "simulate"]


def catalogue() -> list[tuple[str, str]]:
    """(name, title) of the scenarios that come along, then of the faults, as ``fault KIND``."""
    kinds = [(f"fault {kind}", (fault.__doc__ or "").partition("\n")[0]) for kind, fault in faults().items()]
    return [*built_in().items(), *kinds]
