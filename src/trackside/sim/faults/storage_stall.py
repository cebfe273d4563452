"""A file server stops answering: for a while, or forever."""

from __future__ import annotations

from trackside.sim.endings import hang
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.kernel_lines import log_blocked_task, log_nfs_lost, log_nfs_restored
from trackside.sim.simulation import HostEffect, Simulation, StepPause


@fault("storage-stall")
class StorageStall(SimulatedFault):
    """A rank blocks in a read; the others wait for it. If the server comes back in time, the run continues."""

    resumes_after_s: float = 180.0
    """Seconds until the server answers again; 0: never."""
    whole_node: bool = False
    """Whether all ranks of the node block."""
    watchdog: bool = True
    """Whether NCCL's watchdog ends the run if the stall lasts."""

    def prepare(self, sim: Simulation) -> None:
        if self.resumes_after_s:
            sim.pauses.append(StepPause(self.start_time(sim), self.resumes_after_s, frozenset(self._ranks(sim))))

    def apply(self, sim: Simulation) -> None:
        attempt, time = sim.attempt, self.start_time(sim)
        ranks = self._ranks(sim)
        nodes = tuple(dict.fromkeys(sim.placements[rank].node for rank in ranks))
        if not self.resumes_after_s:
            end_time = hang(sim, time, ranks, watchdog_s=None if self.watchdog else 0.0)
        else:
            end_time = time + self.resumes_after_s
        for node in nodes:
            log_nfs_lost(sim, node, time + 4)
            sim.host_effects.append(HostEffect(node, time, end_time, blocked_tasks=2.0 + len(ranks), stalled_io=0.9))
            if self.resumes_after_s:
                log_nfs_restored(sim, node, end_time - 1)
        for placement in (sim.placements[rank] for rank in ranks[:2]):
            if end_time - time > 125:
                log_blocked_task(sim, attempt, placement, time + 124)
        if not self.resumes_after_s:
            self.record_truth(
                sim, "H4", "infrastructure", since=time, nodes=nodes, ranks=tuple(ranks), cascade=("C2",),
                sufficient_planes=(("kernel",),), halts=True,
            )  # fmt: skip

    def _ranks(self, sim: Simulation) -> list[int]:
        return self.node_ranks(sim) if self.whole_node else [self.placement(sim).rank]
