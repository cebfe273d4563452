"""The cluster loses a node during the job."""

from __future__ import annotations

import math

from trackside.sim.endings import finish, slurm_notice
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.kernel_lines import log_xid
from trackside.sim.simulation import NodeStateChange, Simulation
from trackside.sim.timeline import RankState


@fault("node-down")
class NodeDown(SimulatedFault):
    """A node stops answering; Slurm notices after a while and ends the job."""

    notice_s: float = 90.0
    """Seconds until Slurm marks the node as down."""
    back_after_s: float = 0.0
    """The node boots again after this time; 0: never."""
    xid: int = 0
    """An Xid that the driver logged just before: then the GPU is the cause."""

    def apply(self, sim: Simulation) -> None:
        placement, time, attempt = self.placement(sim), self.start_time(sim), sim.attempt
        lost_ranks = self.node_ranks(sim)
        attempt.truncate(time)
        end_time = time + self.notice_s
        attempt.add_activity(lost_ranks, time, end_time, RankState.OFF)
        attempt.release(lost_ranks, time)
        remaining_ranks = attempt.other_ranks(lost_ranks)
        attempt.add_activity(remaining_ranks, time, end_time + 1, RankState.SPIN, in_flight=1.0)
        attempt.release(remaining_ranks, end_time + 1)
        sim.down_nodes[placement.node] = (time, time + self.back_after_s if self.back_after_s else math.inf)
        if attempt.nodes[0] != placement.node:
            attempt.log(end_time, f"srun: error: Node failure on {placement.node}")
            attempt.log(end_time, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
            for step in (True, False):
                slurm_notice(sim, attempt, end_time, "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", step)
        sim.node_changes.append(NodeStateChange(end_time, placement.node, "DOWN*", "Not responding"))
        finish(sim, end_time + 2, "NODE_FAIL", 0, 0)
        if self.xid:
            log_xid(sim, attempt, placement, time - 1.0, self.xid)
            if self.xid in (48, 94, 95):
                sim.change(placement.node, placement.gpu, time - 1.0, "ecc_uncorrectable", 1.0)
        # If the first node is lost, the job's log just stops; with one node, so do its metrics.
        log_planes = (
            (("logs",),) if attempt.nodes[0] != placement.node else (("gpu", "logs"),) if len(attempt.nodes) > 1 else ()
        )
        if self.xid:
            self.record_truth(
                sim, "B2", "infrastructure", "active", since=time - 1, nodes=(placement.node,), gpus=(placement.key,),
                ranks=(placement.rank,), cascade=("F1",), sufficient_planes=(("kernel",),), halts=True,
            )  # fmt: skip
        else:
            self.record_truth(
                sim, "F1", "infrastructure", since=time, nodes=(placement.node,), ranks=tuple(lost_ranks),
                sufficient_planes=(("scheduler",), *log_planes), halts=True,
            )  # fmt: skip
