"""The model stops learning, or never begins to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trackside.sim.endings import CODE, Death, crash, traceback
from trackside.sim.faults import Fault, fault
from trackside.sim.stage import Stage

VARIANTS = {"nan": "non-finite", "explode": "diverging", "plateau": "plateau", "flat": "flat", "spike": ""}


@fault("loss-divergence")
class LossDivergence(Fault):
    """nan, explode, plateau (dead and high) or flat from the first step; a spike recovers and is no fault."""

    at: str = "30%"
    how: str = "plateau"
    level: float = 11.9
    """Where the plateau lies."""
    stops: bool = False
    """The loop raises when it sees that."""

    def strike(self, stage: Stage) -> None:
        self.check("how", VARIANTS)
        act, at = stage.act, self.begin(stage)
        at = max(at, act.phases["train"][0])
        onset = act.first_step + 1 + int(np.searchsorted(act.step_ends, at, "right"))
        act.curve = replace(act.curve, how=self.how, onset=onset, level=self.level)
        if self.how == "spike":
            return
        if self.stops:
            end = float(
                act.step_ends[min(len(act.step_ends) - 1, onset + stage.scenario.job.log_every - act.first_step)]
            )
            text = traceback(
                stage, 0, "FloatingPointError: Loss is nan, stopping training", ((CODE, 203, "main", "check(loss)"),)
            )
            crash(stage, end + 0.3, [Death(0, 0.0, 1, text)])
        variant = VARIANTS[self.how]
        since = act.phases["train"][0] if self.how == "flat" else at
        self.inject(stage, "E1", "job", variant, since=since, enough=(("logs", "progress"),), halts=self.stops)
