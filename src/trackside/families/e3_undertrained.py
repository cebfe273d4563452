"""Undertrained: too few steps.

Meaning
-------
The step budget was far too low, or the data ran out immediately: the run ended well and trained almost nothing.
So few steps do not even show whether the model learns.

What it looks like
------------------
COMPLETED, or the framework's own message that training is over, at five optimizer steps or fewer; or far fewer
steps than planned.

Not this family when
--------------------
- The log has few lines only because it prints one every few steps: steps count, not lines.
- The run failed or was stopped.
- A line with a score or an evaluation follows each counted step: the counter may count epochs.
- The job evaluates, predicts or is named a smoke test: then few steps may be intended, and
  the finding is only a warning.

Impact
------
The allocation and the time in the queue were wasted.

Do next
-------
Set the intended step or epoch budget, and check how many examples the dataset contains.

What it cannot decide
---------------------
Whether few steps were intended.

References
----------
- [Hugging Face: Trainer](https://huggingface.co/docs/transformers/main_classes/trainer)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.evidence import Missing, Value
from trackside.facts.logs.ending import ENDED_WELL, Ending
from trackside.facts.training.last_position import REACHES
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, present


@dataclass(frozen=True)
class Limits:
    """When a run has too few steps."""

    few_steps: int = 5
    """Five optimizer steps are mostly startup and learning-rate warm-up."""
    min_planned_share: float = 0.1
    """A run that ends without failure at less than a tenth of its plan stopped too early; early stopping on a metric
    rarely fires before a tenth of the budget."""


SHORT_JOB_NAMES = re.compile(
    r"smoke|sanity|dry.?run|\btest\b|debug|profil|bench|eval|predict|infer|generate", re.IGNORECASE
)
"""Names of jobs that are not meant to train for long."""

ONLY_COMPLETED = Sentence("this applies only to runs that completed")
TOO_FEW = Sentence("finished after only {done}")
AT_START = Sentence("finished right at the start, at {place}")
FAR_TOO_FEW = Sentence("finished after {done:plain} of {planned:plain} planned {unit}")
AS_CONFIGURED = Sentence("finished after only {done}: no more {unit} were configured")
STEPS_CONFIGURED = Sentence("configured: {planned}")
TRAINED_ALMOST_NOTHING = Sentence("so few steps train almost nothing and do not show whether the model learns")
INTENT_UNKNOWN = Sentence("whether so few steps were intended")
MAY_BE_INTENDED = Sentence("the job is called {name}: few steps may be intended")
SET_BUDGET = Sentence("set the intended number of steps or epochs, check the size of the dataset, and rerun")


def judge(trajectory: Trajectory, ending: Ending, limits: Limits) -> Finding | Missing:
    """Counts steps, not lines, of a run that ended well."""
    if ending.bad_end is not None:
        return absent(ONLY_COMPLETED(), ending.bad_end)
    done, planned, good_end = trajectory.done, trajectory.budget, ending.completed
    if done is None and good_end is not None and all(row.get("step") is None for row in trajectory.points):
        done = planned  # ended well with no step printed: the plan is what was done
    if done is None:
        return Missing("no line that counts optimizer steps was recognized")
    place = Value(done.value, done.cites, "epoch" if trajectory.in_epochs else "step")
    too_few = done.number <= limits.few_steps and not trajectory.in_epochs
    if good_end is None:
        if planned is not None and done.number < limits.min_planned_share * planned.number:
            reaches = f"the log reaches only {place.unit} {done.number:,.0f} of {planned.number:,.0f}"
            return Missing(f"{reaches}, and no line about its end was recognized")
        if done.number > limits.few_steps:
            return absent(REACHES(place=place))
        return Missing("no line or record that the run completed was recognized")
    far_short = planned is not None and 0 < done.number < limits.min_planned_share * planned.number
    if not too_few and not far_short:
        return absent(REACHES(place=place))
    if not far_short and trajectory.scores_after_each_point:
        return Missing("a score follows each counted step: whether steps or epochs are counted is not known")
    shows = [*([] if done is planned else [REACHES(place=place)]), ENDED_WELL(state=good_end)]
    if planned is not None:
        shows.append(STEPS_CONFIGURED(planned=planned))
    name = ending.job_name
    is_short_job = name is not None and SHORT_JOB_NAMES.search(str(name.value)) is not None
    return present(
        Certainty.ESTABLISHED if too_few and ending.jobs else Certainty.SUPPORTED,
        "job",
        shows,
        headline=_headline(place, planned),
        implies=[TRAINED_ALMOST_NOTHING()],
        cannot_decide=[MAY_BE_INTENDED(name=name) if is_short_job and name is not None else INTENT_UNKNOWN()],
        actions=[action(SET_BUDGET)],
        latent=is_short_job or bool(trajectory.evaluations and not trajectory.points and planned is None),
    )


def _headline(place: Value, planned: Value | None) -> Claim:
    done = Value(place.value, place.cites, f"{place.unit}s")
    unit = Value(done.unit, place.cites)
    if planned is None or planned.number < place.number:
        return TOO_FEW(done=done) if done.number else AT_START(place=place)
    if planned.number == place.number:
        return AS_CONFIGURED(done=done, unit=unit)
    return FAR_TOO_FEW(done=done, planned=planned, unit=unit)


FAMILY = Family(
    code="E3",
    id="undertrained",
    title="Undertrained: too few steps",
    example=("undertrained", "timeline"),
    absence_based=True,
    judge=judge,
    cost_kind="all",
    limits=Limits(),
    rivals=("E1",),
    collect=("output that prints the optimizer step or the total number of steps", "sacct for the final state"),
)
