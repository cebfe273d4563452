"""Something outside the job ends it with a signal."""

from __future__ import annotations

from trackside.sim.endings import finish
from trackside.sim.faults import Fault, fault
from trackside.sim.records import torchrun
from trackside.sim.stage import Stage
from trackside.sim.timeline import State


@fault("external-kill")
class ExternalKill(Fault):
    """The launchers get a SIGTERM that neither Slurm nor the user sent."""

    def strike(self, stage: Stage) -> None:
        act, at = stage.act, self.begin(stage)
        act.cut(at)
        act.spend(None, at, at + 1.2, State.IDLE)
        act.release(None, at + 1.2)
        for number, node in enumerate(act.nodes):
            ranks = [place.rank for place in act.places if place.node == node]
            act.entries.append(torchrun.terminated(stage, act, node, ranks, at + 0.1))
            act.say(at + 2.0, f"srun: error: {node}: task {number}: Terminated", node=node)
        finish(stage, at + 4.0, "FAILED", 143)
        self.inject(stage, "H3", "unknown", since=at, enough=(("logs",),), halts=True)
