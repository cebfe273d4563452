"""One rank never enters a collective, and all others wait in it."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, finish, hang, slurm_notice, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState

CAUSES = ("stuck", "loader-killed", "rank-killed")


@fault("collective-hang")
class CollectiveHang(SimulatedFault):
    """A rank is stuck on the host, loses its data loader, or is killed alone; its peers spin in an all-reduce."""

    cause: str = "stuck"
    """stuck: blocked in its own code; loader-killed: its loader worker is killed, the rank raises and then blocks at
    exit; rank-killed: only its process dies, and the launcher does not end the others."""
    watchdog: bool = True
    """Whether NCCL's watchdog ends the run."""
    cancel_after_s: float = 0.0
    """Without a watchdog: a user cancels the job after this time; 0: the time limit ends it."""

    def apply(self, sim: Simulation) -> None:
        self.check("cause", CAUSES)
        placement, time = self.placement(sim), self.start_time(sim)
        rank, attempt = placement.rank, sim.attempt
        until = time + self.cancel_after_s if self.cancel_after_s else None
        watchdog = None if self.watchdog else 0.0
        dead = self.cause == "rank-killed"
        hang(sim, time, [rank], RankState.IDLE, dead=dead, watchdog_s=watchdog, until=until)
        if self.cause == "loader-killed":
            worker = sim.pid(attempt, rank) + 3001
            frames = (
                (CODE, 188, "main", "for batch in loader:"),
                (f"{SITE}/torch/utils/data/dataloader.py", 1133, "_try_get_data", "raise RuntimeError("),
            )
            text = f"RuntimeError: DataLoader worker (pid {worker}) is killed by signal: Killed. "
            attempt.log(time + 0.1, traceback(sim, rank, text, frames), rank, error=True, marked=True)
        if not (self.watchdog and sim.scenario.job.watchdog_s) and until is not None:
            finish(sim, attempt.end, "CANCELLED", 0, 15, "by 1000")
            slurm_notice(sim, attempt, until)
        self.record_truth(
            sim, "C2", "job", since=time, nodes=(placement.node,), gpus=(placement.key,), ranks=(rank,),
            sufficient_planes=(("gpu", "tracer"), ("gpu", "profiling"), ("logs", "progress", "scheduler")), halts=True,
        )  # fmt: skip
