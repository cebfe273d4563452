"""A process is killed by a signal before it can print anything."""

from __future__ import annotations

from trackside.sim.endings import RankDeath, crash, finish
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.kernel_lines import log_oom_kill, log_segfault
from trackside.sim.simulation import HostEffect, Simulation
from trackside.sim.timeline import RankState

SIGNALS = {"SIGKILL": 9, "SIGSEGV": 11, "SIGABRT": 6, "SIGBUS": 7}


@fault("signal-kill")
class SignalKill(SimulatedFault):
    """The kernel kills ranks because host memory is exhausted, or native code crashes."""

    signal: str = "SIGKILL"
    cause: str = "host-oom"
    """host-oom (of the machine), cgroup-oom (of the job's limit), native (a crash) or unseen (nothing else shows
    it)."""
    ranks: tuple[int, ...] = ()
    """The ranks; empty: the one rank that the fault hits."""
    startup: bool = False
    """Whether it happens while the model is loaded, before anything is on the GPU."""
    leak_s: float = 240.0
    """How long host memory fills up beforehand."""

    def apply(self, sim: Simulation) -> None:
        self.check("signal", SIGNALS)
        self.check("cause", ("host-oom", "cgroup-oom", "native", "unseen"))
        attempt = sim.attempt
        ranks = self.ranks or (self.placement(sim).rank,)
        time = attempt.phases["import"][1] - 2.0 if self.startup else self.start_time(sim)
        rng, placements = sim.rng("signal-kill"), [sim.placements[rank] for rank in ranks]
        code = -SIGNALS[self.signal]
        crash(
            sim,
            time,
            [RankDeath(rank, 0.4 * float(rng.random()), code) for rank in ranks],
            RankState.IDLE if self.startup else RankState.SPIN,
        )
        for placement in placements:
            if self.cause.endswith("oom"):
                self._fill_host_memory(sim, placement.node, time)
                log_oom_kill(
                    sim, attempt, placement, time, 0.7 * sim.scenario.cluster.memory_gib / 8, self.cause == "cgroup-oom"
                )
            elif self.cause == "native" and self.signal == "SIGSEGV":
                log_segfault(sim, attempt, placement, time)
        if self.cause == "cgroup-oom":
            finish(sim, attempt.end, "OUT_OF_MEMORY", 0, 125)
            text = f"slurmstepd: error: Detected {len(ranks)} oom_kill event in StepId={attempt.job}.0. Some of the step tasks have been OOM Killed."
            attempt.log(time + 2.5, text, node=placements[0].node)
        sufficient_planes = (("logs",), ("kernel",)) if self.cause.endswith("oom") else (("logs",),)
        self.record_truth(
            sim, "A2", "job", since=time, nodes=tuple(dict.fromkeys(p.node for p in placements)),
            gpus=tuple(p.key for p in placements), ranks=tuple(ranks), sufficient_planes=sufficient_planes, halts=True,
        )  # fmt: skip

    def _fill_host_memory(self, sim: Simulation, node: str, time: float) -> None:
        """Let host memory run out by the time of the kill; a job's own limit is well below the machine's."""
        if any(effect.node == node and effect.memory_gib for effect in sim.host_effects):
            return
        total = sim.scenario.cluster.memory_gib
        used_gib = total * (0.93 if self.cause == "host-oom" else 0.4) - 60
        start = max(time - self.leak_s, sim.attempt.start + 2)
        sim.host_effects.append(HostEffect(node, start, time, memory_gib=used_gib))
        if self.cause == "host-oom":
            sim.host_effects.append(
                HostEffect(node, time - min(30.0, self.leak_s / 3), time, stalled_memory=0.6, stalled_io=0.3)
            )
