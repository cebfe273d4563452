"""The job's own end for a loss or a gradient that is not finite: an exception that says so, or its closing line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import first
from trackside.facts.training.loss_curve import LossCurve
from trackside.finding import Claim, Sentence
from trackside.model import Event

NOT_FINITE = re.compile(
    r"\b(loss|losses|grad\w*|logits|weights?)\b.{0,60}\b(nan|nans|inf|infinite|infinity|not finite|non-?finite)\b"
    r"|\b(nan|nans|infinite|non-?finite)\b.{0,40}\b(loss|losses|grad\w*|logits)\b"
    r"|returned nan values|loss scale.{0,40}\bminimum\b|minimum loss scale reached"
    r"|probability tensor contains either .?inf.?, .?nan.? or element",
    re.IGNORECASE | re.DOTALL,
)
"""Exceptions by which a job, a framework or a library ends a run for a loss or gradient that is not finite."""

ABORT = Sentence("the run ended itself with {type}: {message}", running="the run stopped itself with {type}: {message}")
GAVE_UP = Sentence("the job stopped itself for a loss that is not finite: {line}")


@dataclass(frozen=True, eq=False)
class NumericAbort:
    """How the job ended itself for a number that is not finite."""

    exception: tuple[Event, Claim] | None
    closing_line: tuple[Event, Claim] | None


@fact()
def numeric_abort(exceptions: Maybe[Exceptions], ending: Ending, curve: LossCurve) -> NumericAbort:
    """Of exceptions and closing lines."""
    abort = None
    if isinstance(exceptions, Exceptions):
        row = first(_not_finite(exceptions, bool(curve.curve.points)))
        abort = None if row is None else (row, ABORT(**exceptions.values(row)))
    closing = next((row for row in ending.ends.events if row.get("reason") == "not_finite"), None)
    line = None if closing is None else (closing, GAVE_UP(line=ending.ends.value(closing, "text")))
    return NumericAbort(abort, line)


def _not_finite(exceptions: Exceptions, trained: bool) -> list[Event]:
    own = [row for row in exceptions.frame.events if row.get("about") in ("application", None)]
    own = [row for row in own if not row.get("wrapper")]
    named = [row for row in own if NOT_FINITE.search(f"{row.get('type')}: {row.get('message')}"[:600])]
    return [row for row in named if "probability tensor" not in str(row.get("message")) or trained]
