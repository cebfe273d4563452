"""One rank never enters a collective, and all others wait in it."""

from __future__ import annotations

from trackside.sim.endings import CODE, SITE, finish, hang, notice, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage
from trackside.sim.timeline import State

CAUSES = ("stuck", "loader-killed", "rank-killed")


@fault("collective-hang")
class CollectiveHang(Fault):
    """A rank is stuck on the host, or lost its data loader, or was killed alone; its peers spin in an all-reduce."""

    cause: str = "stuck"
    """stuck: blocked in its own code; loader-killed: its loader worker is killed, it raises and then blocks at exit;
    rank-killed: only its process goes, and the launcher does not end the others."""
    watchdog: bool = True
    cancel_after_s: float = 0.0
    """Without a watchdog: somebody cancels it after so long; 0: the time limit does."""

    def strike(self, stage: Stage) -> None:
        self.check("cause", CAUSES)
        place, at = self.place(stage), self.begin(stage)
        rank, act = place.rank, stage.act
        until = at + self.cancel_after_s if self.cancel_after_s else None
        watchdog = None if self.watchdog else 0.0
        dead = self.cause == "rank-killed"
        hang(stage, at, [rank], State.IDLE, dead=dead, watchdog_s=watchdog, until=until)
        if self.cause == "loader-killed":
            worker = stage.pid(act, rank) + 3001
            frames = (
                (CODE, 188, "main", "for batch in loader:"),
                (f"{SITE}/torch/utils/data/dataloader.py", 1133, "_try_get_data", "raise RuntimeError("),
            )
            text = f"RuntimeError: DataLoader worker (pid {worker}) is killed by signal: Killed. "
            act.say(at + 0.1, traceback(stage, rank, text, frames), rank, error=True, marked=True)
        if not (self.watchdog and stage.scenario.job.watchdog_s) and until is not None:
            finish(stage, act.end, "CANCELLED", 0, 15, "by 1000")
            notice(stage, act, until)
        self.inject(
            stage, "C2", "job", since=at, nodes=(place.node,), gpus=(place.key,), ranks=(rank,),
            enough=(("gpu", "tracer"), ("gpu", "profiling"), ("logs", "progress", "scheduler")), halts=True,
        )  # fmt: skip
