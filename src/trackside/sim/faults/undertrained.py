"""The step budget was set far too low."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trackside.sim.fault import Fault
from trackside.sim.stage import Stage
from trackside.sim.truth import Injected


@dataclass(frozen=True, slots=True, kw_only=True)
class Undertrained(Fault):
    """The run completes after a handful of steps. (Set job.log_every to 1 where each should be printed.)"""

    kind: ClassVar[str] = "undertrained"
    at: str = "0%"
    steps: int = 1

    def shape(self, stage: Stage) -> None:
        stage.steps = max(1, self.steps)

    def strike(self, stage: Stage) -> None:
        since = stage.act.phases["train"][0]
        stage.inject(
            Injected(
                self.kind, "E3", "job", since=since, enough=(("logs", "progress", "scheduler"),), primary=self.primary
            )
        )


FAULT = Undertrained
