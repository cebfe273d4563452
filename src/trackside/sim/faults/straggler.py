"""One rank is always slower than its peers."""

from __future__ import annotations

from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import HostEffect, Simulation, StepCostRule


@fault("straggler")
class Straggler(SimulatedFault):
    """Every step waits for one rank: a GPU slow for no visible reason, a host under contention, a bad data shard."""

    at: str = "0%"
    cause: str = "gpu"
    """gpu (its kernels take longer), cpu (its host is busy with something else), data (its batches come late)."""
    factor: float = 3.4
    """How much longer the rank's own part of a step takes."""
    whole_node: bool = False
    """Whether all ranks of the node are slow."""

    def prepare(self, sim: Simulation) -> None:
        self.check("cause", ("gpu", "cpu", "data"))
        job, time = sim.scenario.job, self.start_time(sim)
        ranks = frozenset(self._ranks(sim))
        own_s = job.step_s * (job.compute_share + job.data_share + job.gap_share)
        extra_s = (self.factor - 1) * own_s
        if self.cause == "gpu":
            sim.cost_rules.append(
                StepCostRule(time, ranks=ranks, compute=1 + extra_s / (job.compute_share * job.step_s))
            )
        elif self.cause == "cpu":
            sim.cost_rules.append(StepCostRule(time, ranks=ranks, gap_s=extra_s))
        else:
            sim.cost_rules.append(StepCostRule(time, ranks=ranks, data_s=extra_s))

    def apply(self, sim: Simulation) -> None:
        attempt, time = sim.attempt, self.start_time(sim)
        begin, end = max(time, attempt.phases["train"][0]), attempt.phases["end"][0]
        ranks = self._ranks(sim)
        placements = [sim.placements[rank] for rank in ranks]
        if self.cause == "cpu":
            cores = 0.9 * sim.scenario.cluster.cores
            sim.host_effects.append(HostEffect(placements[0].node, begin, end, cores=cores, stalled_cpu=0.7))
        self.record_truth(
            sim, "D3", "unknown", since=begin, nodes=tuple(dict.fromkeys(p.node for p in placements)),
            gpus=tuple(p.key for p in placements), ranks=tuple(ranks),
            sufficient_planes=(("gpu", "profiling"), ("tracer",)) if self.cause == "gpu" else (("tracer",),),
        )  # fmt: skip

    def _ranks(self, sim: Simulation) -> list[int]:
        return self.node_ranks(sim) if self.whole_node else [self.placement(sim).rank]
