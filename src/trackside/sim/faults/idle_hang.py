"""A job holds its GPUs and does nothing on them."""

from __future__ import annotations

from trackside.sim.endings import finish, slurm_notice
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState


@fault("idle-hang")
class IdleHang(SimulatedFault):
    """The process is alive but stuck on the host: with its memory on the GPU, or without ever using the GPU."""

    at: str = "10%"
    attached: bool = True
    """Whether a process ever had a CUDA context; if not, it is stuck before that."""
    cancel_after_s: float = 0.0
    """A user cancels the job after this time; 0: the time limit ends it."""

    def apply(self, sim: Simulation) -> None:
        attempt = sim.attempt
        time = self.start_time(sim) if self.attached else attempt.phases["import"][0] + 5
        attempt.truncate(time)
        end_time = time + self.cancel_after_s if self.cancel_after_s else attempt.start + sim.time_limit + 120
        attempt.add_activity(None, time, end_time, RankState.IDLE)
        if self.attached:
            attempt.release(None, end_time)
        else:
            for track in attempt.tracks:
                track.processes, track.memory = [], []
        attempt.phases.pop("end", None)
        if self.cancel_after_s:
            slurm_notice(sim, attempt, end_time)
            finish(sim, end_time + 3, "CANCELLED", 0, 15, "by 1000")
        else:
            finish(sim, end_time + 3, "COMPLETED")
        self.record_truth(
            sim, "C3", "job", since=time, nodes=attempt.nodes, gpus=tuple(placement.key for placement in attempt.placements),
            ranks=tuple(sim.ranks), sufficient_planes=(("gpu",), ("tracer", "scheduler")), halts=True,
        )  # fmt: skip
