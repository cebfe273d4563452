"""A user cancels the job."""

from __future__ import annotations

from trackside.sim.endings import cancel_job
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation


@fault("user-cancel")
class UserCancel(SimulatedFault):
    """The job's owner runs scancel during good training."""

    def apply(self, sim: Simulation) -> None:
        time = self.start_time(sim)
        cancel_job(sim, time, "", "CANCELLED", 0, 0, "by 1000")
        self.record_truth(sim, "H1", "none", since=time, sufficient_planes=(("scheduler",), ("logs",)), halts=True)
