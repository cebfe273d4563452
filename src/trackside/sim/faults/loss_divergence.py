"""The model stops learning, or never learns; or its loss only jumps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trackside.sim.endings import CODE, RankDeath, crash, traceback
from trackside.sim.faults import SimulatedFault, fault
from trackside.sim.scenario import ScenarioError
from trackside.sim.simulation import Simulation

VARIANTS = {"nan": "non-finite", "explode": "diverging", "plateau": "plateau", "flat": "flat", "spike": ""}


@fault("loss-divergence")
class LossDivergence(SimulatedFault):
    """The loss goes wrong; how: nan, explode, plateau, flat, or spike (which recovers).

    A plateau is high and constant; flat is so from the first step; a run with a spike stays healthy.
    """

    at: str = "30%"
    how: str = "plateau"
    level: float = 11.9
    """The loss of the plateau."""
    stops: bool = False
    """Whether the loop raises when it sees a nan; with ``how`` nan only."""

    def apply(self, sim: Simulation) -> None:
        self.check("how", VARIANTS)
        if self.stops and self.how != "nan":
            raise ScenarioError(f"fault {self.kind}: stops: the loop stops at a nan, and how is {self.how!r}")
        attempt, time = sim.attempt, self.start_time(sim)
        time = max(time, attempt.phases["train"][0])
        onset = attempt.first_step + 1 + int(np.searchsorted(attempt.step_ends, time, "right"))
        attempt.curve = replace(attempt.curve, failure=self.how, onset=onset, level=self.level)
        if self.how == "spike":
            return
        if self.stops:
            end = float(
                attempt.step_ends[
                    min(len(attempt.step_ends) - 1, onset + sim.scenario.job.log_every - attempt.first_step)
                ]
            )
            text = traceback(
                sim, 0, "FloatingPointError: Loss is nan, stopping training", ((CODE, 203, "main", "check(loss)"),)
            )
            crash(sim, end + 0.3, [RankDeath(0, 0.0, 1, text)])
        variant = VARIANTS[self.how]
        since = attempt.phases["train"][0] if self.how == "flat" else time
        self.record_truth(
            sim, "E1", "job", variant, since=since, sufficient_planes=(("logs", "progress"),), halts=self.stops
        )
