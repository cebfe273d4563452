"""Simulates a run: a healthy cluster, and one module per fault. Begin with :mod:`.simulate`. It uses nothing of the
diagnosis."""

from __future__ import annotations

from trackside.sim.faults import faults
from trackside.sim.scenario import Scenario
from trackside.sim.schema import built_in, load_scenario
from trackside.sim.simulate import simulate
from trackside.sim.truth import Truth

__all__ = ["Scenario", "Truth", "load_scenario", "scenario_titles", "simulate"]


def scenario_titles() -> list[tuple[str, str]]:
    """(name, title) of the built-in scenarios, then of the faults, as ``fault KIND``."""
    kinds = [(f"fault {kind}", (fault.__doc__ or "").partition("\n")[0]) for kind, fault in faults().items()]
    return [*built_in().items(), *kinds]
