"""The time limit is shorter than the run needs."""

from __future__ import annotations

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.scenario import ScenarioError
from trackside.sim.simulation import Simulation


@fault("timeout")
class Timeout(SimulatedFault):
    """A healthy run is ended at its time limit; ``share``: the limit as a share of the time that the run needs."""

    at: str = "0%"
    share: float = 0.6

    def prepare(self, sim: Simulation) -> None:
        if not 0 < self.share < 1:
            raise ScenarioError(f"fault {self.kind}: share: {self.share} is out of range (between 0 and 1)")
        length = sim.reference.end - sim.reference.start
        sim.time_limit = max(60.0, 60.0 * int(self.share * length / 60))

    def apply(self, sim: Simulation) -> None:
        since = sim.attempt.start + sim.time_limit
        self.record_truth(sim, "F3", "job", since=since, sufficient_planes=(("scheduler",), ("logs",)))
