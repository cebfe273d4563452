"""A debug flag makes every kernel launch wait for its kernel."""

from __future__ import annotations

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation, StepCostRule


@fault("launch-blocking")
class LaunchBlocking(SimulatedFault):
    """CUDA_LAUNCH_BLOCKING=1: nothing overlaps, the GPU idles between kernels, launches take as long as kernels."""

    at: str = "0%"
    gap_share: float = 0.8
    """Idle time between kernels per second of kernel time."""
    printed: bool = True
    """Whether the batch script prints its environment."""

    def prepare(self, sim: Simulation) -> None:
        job = sim.scenario.job
        gap = self.gap_share * job.compute_share * job.step_s
        sim.cost_rules.append(StepCostRule(sim.start, gap_s=gap, blocking=1.0, communication=1.8))
        if self.printed:
            sim.environment["CUDA_LAUNCH_BLOCKING"] = "1"

    def apply(self, sim: Simulation) -> None:
        sufficient_planes = (("tracer",), ("logs",)) if self.printed else (("tracer",),)
        self.record_truth(
            sim,
            "D2",
            "job",
            "launch-blocking",
            since=sim.attempt.phases["train"][0],
            sufficient_planes=sufficient_planes,
        )
