"""A checkpoint after nearly every step."""

from __future__ import annotations

from trackside.sim.attempt import Interruption
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation, StepCostRule


@fault("save-storm")
class SaveStorm(SimulatedFault):
    """Saving takes most of the wall time."""

    at: str = "0%"
    save_s: float = 9.0
    """Seconds of saving that are added to each step."""

    def prepare(self, sim: Simulation) -> None:
        sim.cost_rules.append(StepCostRule(self.start_time(sim), save_s=self.save_s))

    def apply(self, sim: Simulation) -> None:
        attempt, begin = sim.attempt, self.start_time(sim)
        for number, end in enumerate(attempt.step_ends.tolist(), attempt.first_step + 1):
            if end > begin:
                attempt.interruptions.append(Interruption("checkpoint", number, end - self.save_s + 0.01, end))
        attempt.interruptions.sort(key=lambda interruption: interruption.start)
        self.record_truth(
            sim, "D2", "job", "save-storm", since=max(begin, attempt.phases["train"][0]),
            sufficient_planes=(("logs", "progress"),),
        )  # fmt: skip
