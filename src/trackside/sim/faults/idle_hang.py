"""A job holds its GPUs and does nothing on them."""

from __future__ import annotations

from trackside.sim.endings import finish, notice
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage
from trackside.sim.timeline import State


@fault("idle-hang")
class IdleHang(Fault):
    """The process is alive and stuck on the host: with its memory on the GPU, or without ever having touched it."""

    at: str = "10%"
    attached: bool = True
    """Whether a process ever held a context; if not, it is stuck before that."""
    cancel_after_s: float = 0.0
    """Somebody cancels it after so long; 0: the time limit does."""

    def strike(self, stage: Stage) -> None:
        act = stage.act
        at = self.begin(stage) if self.attached else act.phases["import"][0] + 5
        act.cut(at)
        over = at + self.cancel_after_s if self.cancel_after_s else act.start + stage.time_limit + 120
        act.spend(None, at, over, State.IDLE)
        if self.attached:
            act.release(None, over)
        else:
            for track in act.tracks:
                track.processes, track.memory = [], []
        act.phases.pop("end", None)
        if self.cancel_after_s:
            notice(stage, act, over)
            finish(stage, over + 3, "CANCELLED", 0, 15, "by 1000")
        else:
            finish(stage, over + 3, "COMPLETED")
        self.inject(
            stage, "C3", "job", since=at, nodes=act.nodes, gpus=tuple(place.key for place in act.places),
            ranks=tuple(stage.ranks), enough=(("gpu",), ("tracer", "scheduler")), halts=True,
        )  # fmt: skip
