"""Somebody cancels the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trackside.sim.endings import cancelled
from trackside.sim.fault import Fault
from trackside.sim.stage import Stage
from trackside.sim.truth import Injected


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCancel(Fault):
    """scancel by its owner, in the midst of good training."""

    kind: ClassVar[str] = "user-cancel"

    def strike(self, stage: Stage) -> None:
        at = self.begin(stage)
        cancelled(stage, at, "", "CANCELLED", 0, 0, "by 1000")
        stage.inject(
            Injected(
                self.kind, "H1", "none", since=at, enough=(("scheduler",), ("logs",)), halts=True, primary=self.primary
            )
        )


FAULT = UserCancel
