"""Somebody cancels the job."""

from __future__ import annotations

from trackside.sim.endings import cancelled
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage


@fault("user-cancel")
class UserCancel(Fault):
    """scancel by its owner, in the midst of good training."""

    def strike(self, stage: Stage) -> None:
        at = self.begin(stage)
        cancelled(stage, at, "", "CANCELLED", 0, 0, "by 1000")
        self.inject(stage, "H1", "none", since=at, enough=(("scheduler",), ("logs",)), halts=True)
