"""The number of steps was set far too low."""

from __future__ import annotations

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation


@fault("undertrained")
class TooFewSteps(SimulatedFault):
    """The run completes after very few steps; set job.log_every to 1 to print each of them."""

    at: str = "0%"
    steps: int = 1
    """Steps that the run completes."""

    def prepare(self, sim: Simulation) -> None:
        sim.steps = max(1, self.steps)

    def apply(self, sim: Simulation) -> None:
        since = sim.attempt.phases["train"][0]
        self.record_truth(sim, "E3", "job", since=since, sufficient_planes=(("logs", "progress", "scheduler"),))
