"""The step budget was set far too low."""

from __future__ import annotations

from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage


@fault("undertrained")
class Undertrained(Fault):
    """The run completes after a handful of steps. (Set job.log_every to 1 where each should be printed.)"""

    at: str = "0%"
    steps: int = 1

    def shape(self, stage: Stage) -> None:
        stage.steps = max(1, self.steps)

    def strike(self, stage: Stage) -> None:
        since = stage.act.phases["train"][0]
        self.inject(stage, "E3", "job", since=since, enough=(("logs", "progress", "scheduler"),))
