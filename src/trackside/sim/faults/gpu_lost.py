"""A GPU falls off the bus."""

from __future__ import annotations

from trackside.sim.endings import CODE, RankDeath, crash, hang, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.faults.ecc import ADVICE
from trackside.sim.kernel_lines import log_xid
from trackside.sim.simulation import NodeStateChange, Simulation


@fault("gpu-lost")
class GpuLost(SimulatedFault):
    """A GPU falls off the bus (Xid 79): no more samples of it; its process fails or never returns from the driver."""

    hangs: bool = False
    """Whether the process is stuck in the driver; its peers wait."""
    drain: bool = True
    """Whether Slurm's health check drains the node afterwards."""

    def apply(self, sim: Simulation) -> None:
        placement, time, attempt = self.placement(sim), self.start_time(sim), sim.attempt
        if self.hangs and len(sim.placements) > 1:
            hang(sim, time + 0.5, [placement.rank])
        else:
            text = traceback(
                sim,
                placement.rank,
                f"RuntimeError: CUDA error: unspecified launch failure\n{ADVICE}",
                ((CODE, 194, "main", "optimizer.step()"),),
            )
            crash(sim, time + 0.5, [RankDeath(placement.rank, 0.4, 1, text)])
        log_xid(sim, attempt, placement, time, 79)
        pci = sim.pci(placement.gpu)[4:-2].lower()
        sim.log_kernel(time + 0.001, placement.node, f"NVRM: GPU {pci}.0: GPU has fallen off the bus.")
        sim.lost_gpus[placement.node, placement.gpu] = time
        if self.drain:
            sim.node_changes.append(
                NodeStateChange(attempt.end + 20, placement.node, "IDLE+DRAIN", f"gpu{placement.gpu} lost")
            )
        self.record_truth(
            sim, "B2", "infrastructure", "active", since=time, nodes=(placement.node,), gpus=(placement.key,),
            ranks=(placement.rank,), cascade=("C2",) if self.hangs else ("H2",),
            sufficient_planes=(("kernel",),), halts=True,
        )  # fmt: skip
