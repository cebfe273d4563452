"""One rank is slower than its peers, all the time."""

from __future__ import annotations

from trackside.sim.faults import Fault, fault
from trackside.sim.stage import HostEffect, Regime, Stage


@fault("straggler")
class Straggler(Fault):
    """Every step waits for it: a GPU that is slow for no visible reason, a host under contention, a bad shard of data."""

    at: str = "0%"
    cause: str = "gpu"
    """gpu (its kernels take longer), cpu (its host is busy with something else), data (its batches come late)."""
    factor: float = 3.4
    """How much longer its own part of a step takes."""
    whole_node: bool = False

    def shape(self, stage: Stage) -> None:
        self.check("cause", ("gpu", "cpu", "data"))
        job, at = stage.scenario.job, self.begin(stage)
        ranks = frozenset(self._ranks(stage))
        own = job.step_s * (job.compute_share + job.data_share + job.gap_share)
        more = (self.factor - 1) * own
        if self.cause == "gpu":
            stage.regimes.append(Regime(at, ranks=ranks, compute=1 + more / (job.compute_share * job.step_s)))
        elif self.cause == "cpu":
            stage.regimes.append(Regime(at, ranks=ranks, gap_s=more))
        else:
            stage.regimes.append(Regime(at, ranks=ranks, data_s=more))

    def strike(self, stage: Stage) -> None:
        act, at = stage.act, self.begin(stage)
        begin, end = max(at, act.phases["train"][0]), act.phases["end"][0]
        ranks = self._ranks(stage)
        places = [stage.places[rank] for rank in ranks]
        if self.cause == "cpu":
            cores = 0.9 * stage.scenario.cluster.cores
            stage.host_effects.append(HostEffect(places[0].node, begin, end, cores=cores, stalled_cpu=0.7))
        self.inject(
            stage, "D3", "unknown", since=begin, nodes=tuple(dict.fromkeys(p.node for p in places)),
            gpus=tuple(p.key for p in places), ranks=tuple(ranks),
            enough=(("gpu", "profiling"), ("tracer",)) if self.cause == "gpu" else (("tracer",),),
        )  # fmt: skip

    def _ranks(self, stage: Stage) -> list[int]:
        return self.node_ranks(stage) if self.whole_node else [self.place(stage).rank]
