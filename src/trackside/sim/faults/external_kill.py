"""Something outside the job ends it with a signal."""

from __future__ import annotations

from trackside.sim.endings import finish
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.records import torchrun
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState


@fault("external-kill")
class ExternalKill(SimulatedFault):
    """The launchers get a SIGTERM that neither Slurm nor the user sent."""

    def apply(self, sim: Simulation) -> None:
        attempt, time = sim.attempt, self.start_time(sim)
        attempt.truncate(time)
        attempt.add_activity(None, time, time + 1.2, RankState.IDLE)
        attempt.release(None, time + 1.2)
        for number, node in enumerate(attempt.nodes):
            ranks = [placement.rank for placement in attempt.placements if placement.node == node]
            attempt.entries.append(torchrun.termination(sim, attempt, node, ranks, time + 0.1))
            attempt.log(time + 2.0, f"srun: error: {node}: task {number}: Terminated", node=node)
        finish(sim, time + 4.0, "FAILED", 143)
        self.record_truth(sim, "H3", "unknown", since=time, sufficient_planes=(("logs",),), halts=True)
