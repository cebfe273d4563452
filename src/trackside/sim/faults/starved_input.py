"""The input pipeline cannot keep the GPUs busy."""

from __future__ import annotations

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import HostEffect, Simulation, StepCostRule


@fault("starved-input")
class StarvedInput(SimulatedFault):
    """Every step waits for its batch; ``data_s``: seconds that this adds to each step."""

    at: str = "0%"
    data_s: float = 12.0
    saturated: bool = True
    """Whether the host's CPUs are busy with it (tokenizing); if not, it waits for storage."""
    warns: bool = False
    """Whether torch warns about more loader workers than CPUs."""

    def prepare(self, sim: Simulation) -> None:
        time = self.start_time(sim)
        sim.cost_rules.append(StepCostRule(time, data_s=self.data_s))

    def apply(self, sim: Simulation) -> None:
        attempt = sim.attempt
        begin = max(self.start_time(sim), attempt.phases["train"][0])
        cores = 0.5 * sim.scenario.cluster.cores
        for node in attempt.nodes:
            if self.saturated:
                effect = HostEffect(node, begin, attempt.phases["end"][0], cores=cores, stalled_cpu=0.4)
            else:
                effect = HostEffect(node, begin, attempt.phases["end"][0], blocked_tasks=4.0, stalled_io=0.5)
            sim.host_effects.append(effect)
        if self.warns:
            text = (
                "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader "
                f"will create 32 worker processes in total. Our suggested max number of worker in current system is "
                f"{sim.scenario.cluster.cores // 8}, which is smaller than what this DataLoader is going to create. Please be "
                "aware that excessive worker creation might get DataLoader running slow or even freeze, lower the worker "
                "number to avoid potential slowness/freeze if necessary."
            )
            attempt.log(begin - 0.5, text, 0, error=True)
        self.record_truth(
            sim, "D1", "job", since=begin, sufficient_planes=(("gpu", "tracer"), ("gpu", "logs", "progress"))
        )
