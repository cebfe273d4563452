"""Collectives are slow: over TCP sockets, or over a fabric that lost most of its bandwidth."""

from __future__ import annotations

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation, StepCostRule


@fault("slow-interconnect")
class SlowInterconnect(SimulatedFault):
    """Communication is slower on all ranks, so that GPUs spin while they wait; ``factor``: how many times as long it takes."""

    at: str = "0%"
    factor: float = 80.0
    socket: bool = True
    """Whether NCCL uses NET/Socket; if not, the fabric itself is slow."""

    def prepare(self, sim: Simulation) -> None:
        sim.cost_rules.append(StepCostRule(self.start_time(sim), communication=self.factor))
        if self.socket:
            sim.transport = "Socket"

    def apply(self, sim: Simulation) -> None:
        begin = max(self.start_time(sim), sim.attempt.phases["train"][0])
        sufficient_planes: list[tuple[str, ...]] = [("gpu", "profiling", "tracer")]
        if self.socket and sim.scenario.job.nccl_debug:
            sufficient_planes.append(("gpu", "profiling", "logs", "progress"))
        self.record_truth(
            sim, "D2", "infrastructure", "interconnect", since=begin, sufficient_planes=tuple(sufficient_planes)
        )
