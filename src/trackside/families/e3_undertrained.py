"""Undertrained: the run completed after a handful of steps.

Meaning
-------
The step budget was far too low, or the data ran out at once: the run ended well and trained next to nothing.
Whether the model learns cannot even be judged from so few steps.

What it looks like
------------------
COMPLETED, or the framework's own word that training is over, at five optimizer steps or fewer; or far fewer
steps than the plan said.

Not this when
-------------
The log prints a point every so many steps: steps count, not lines. The run failed or was stopped. The job
evaluates, predicts or is named a smoke test: few steps are meant then, and it is said.

Impact
------
The allocation and the time in the queue were wasted.

Do next
-------
Set the step or epoch budget that was meant, and check how many examples the data set really held.

What it cannot tell
-------------------
Whether few steps were intended.

References
----------
The catalogue of failure families, E3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.logs.ending import ENDING, abnormal_end, completed
from trackside.facts.training.learning import LEARNING, number, steps_done, steps_planned, training_points
from trackside.family import Family
from trackside.finding import Certainty, Finding, absent, action, claim, found, unknown
from trackside.model import Run
from trackside.query import events, record


@dataclass(frozen=True)
class Limits:
    """What counts as a handful."""

    few_steps: int = 5
    """The catalogue's E3: five steps or fewer."""
    planned_share: float = 0.1
    """A run that ends well under a tenth of its plan stopped early for no good reason; early stopping on a
    metric rarely fires before a tenth of the budget."""


MEANT = re.compile(r"smoke|sanity|dry.?run|\btest\b|debug|profil|bench|eval|predict|infer|generate", re.IGNORECASE)

COLLECT = ("output that prints the optimizer step or the total number of steps", "sacct for the final state")


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Count steps, not lines, of a run that ended well."""
    done = steps_done(evidence["progress"], evidence["ends"])
    planned = steps_planned(evidence["progress"], evidence["plans"]) or _of_rate(evidence["ends"])
    good = completed(evidence)
    bad = abnormal_end(evidence)
    if bad is not None:
        return absent(claim("ended_badly", how=bad))
    points = training_points(evidence["progress"])
    if done is None and good is not None and planned is not None and all(row.get("step") is None for row in points):
        done = planned  # ended well with no step printed: the plan is what was done
    if done is None or not isinstance(done.value, (int, float)):
        return unknown(["how many optimizer steps were done"], COLLECT)
    if good is None:
        if done.value > limits.few_steps:
            return absent(claim("enough", steps=done))
        return unknown(["whether the run is over: nothing says that it completed"], COLLECT)
    few = done.value <= limits.few_steps and not _epochs(evidence)
    short = _far_short(done, planned, limits)
    if not few and not short:
        return absent(claim("enough", steps=done))
    shows = [claim("few", steps=done), claim("over", how=good)]
    if planned is not None:
        shows.append(claim("planned", planned=planned))
    names = [evidence["jobs"].value(row, "name") for row in evidence["jobs"].records[-1:] if row.get("name")]
    meant = [name for name in names if MEANT.search(str(name.value))]
    limits_said = [claim("perhaps_meant", name=meant[0])] if meant else [claim("intent")]
    return found(
        Certainty.ESTABLISHED if few and evidence["jobs"] else Certainty.SUPPORTED,
        "job",
        shows,
        implies=[claim("negligible")],
        cannot_decide=limits_said,
        actions=[action("budget")],
        latent=bool(meant) or bool(evidence["evaluations"] and not points and planned is None),
    )


def _of_rate(ends: Frame) -> Value | None:
    """The plan that the summary's steps a second were reckoned from."""
    told = [row for row in ends.events if number(row, "planned") is not None]
    return ends.value(told[-1], "planned", "steps") if told else None


def _far_short(done: Value, planned: Value | None, limits: Limits) -> bool:
    both = done.value, planned.value if planned is not None else None
    if not isinstance(both[0], (int, float)) or not isinstance(both[1], (int, float)):
        return False
    return 0 < both[0] < limits.planned_share * both[1]


def _epochs(evidence: Evidence) -> bool:
    """Whether the 'steps' are epochs of a log that prints one line an epoch: many steps hide behind each."""
    rows = training_points(evidence["progress"])
    last = [row for row in rows[-1:] if row.get("epoch") is not None and row.get("epoch") == row.get("step")]
    return bool(last) and len(rows) > 1


FAMILY = Family(
    code="E3",
    id="undertrained",
    title="Undertrained: the step budget was far too low",
    pictured=("undertrained", "timeline"),
    asks={**LEARNING, **ENDING, "evaluations": events("evaluation"), "jobs": record("job")},
    needs=(("progress", "plans", "ends"),),
    by_silence=True,
    says={
        "few": "the run did {steps}",
        "over": "it ended well: {how}",
        "planned": "it was planned to do {planned}",
        "negligible": "so few steps train next to nothing, and correctness cannot be judged from them",
        "intent": "whether so few steps were intended",
        "perhaps_meant": "the job is called {name}: few steps may be what was wanted",
        "budget": "set the step or epoch budget that was meant, check the size of the data set, and rerun",
        "enough": "the run did {steps}",
        "ended_badly": "it did not end well: {how}",
    },
    going={"few": "the run has done {steps}", "enough": "the run has done {steps}"},
    judge=judge,
    loses="all",
    limits=Limits(),
    rivals=("E1",),
    collect=COLLECT,
)
