"""The cluster loses a node under the job."""

from __future__ import annotations

import math

from trackside.sim.endings import finish, notice
from trackside.sim.faults import Fault, fault
from trackside.sim.kernel_lines import xid
from trackside.sim.stage import NodeChange, Stage
from trackside.sim.timeline import State


@fault("node-down")
class NodeDown(Fault):
    """A node stops answering; Slurm notices after a while and ends the job."""

    notice_s: float = 90.0
    """Until Slurm gives it up."""
    back_after_s: float = 0.0
    """It boots again after so long; 0: never."""
    xid: int = 0
    """The driver logged this just before: then the GPU is the cause."""

    def strike(self, stage: Stage) -> None:
        place, at, act = self.place(stage), self.begin(stage), stage.act
        lost = self.node_ranks(stage)
        act.cut(at)
        over = at + self.notice_s
        act.spend(lost, at, over, State.OFF)
        act.release(lost, at)
        others = act.others(lost)
        act.spend(others, at, over + 1, State.SPIN, in_flight=1.0)
        act.release(others, over + 1)
        stage.down[place.node] = (at, at + self.back_after_s if self.back_after_s else math.inf)
        if act.nodes[0] != place.node:
            act.say(over, f"srun: error: Node failure on {place.node}")
            act.say(over, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
            for step in (True, False):
                notice(stage, act, over, "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", step)
        stage.node_changes.append(NodeChange(over, place.node, "DOWN*", "Not responding"))
        finish(stage, over + 2, "NODE_FAIL", 0, 0)
        if self.xid:
            xid(stage, act, place, at - 1.0, self.xid)
            if self.xid in (48, 94, 95):
                stage.change(place.node, place.gpu, at - 1.0, "ecc_uncorrectable", 1.0)
        # The log of a job whose first node is lost only stops, and so do the metrics of a job of one node.
        told = (("logs",),) if act.nodes[0] != place.node else (("gpu", "logs"),) if len(act.nodes) > 1 else ()
        if self.xid:
            self.inject(
                stage, "B2", "infrastructure", "active", since=at - 1, nodes=(place.node,), gpus=(place.key,),
                ranks=(place.rank,), cascade=("F1",), enough=(("kernel",),), halts=True,
            )  # fmt: skip
        else:
            self.inject(
                stage, "F1", "infrastructure", since=at, nodes=(place.node,), ranks=tuple(lost),
                enough=(("scheduler",), *told), halts=True,
            )  # fmt: skip
