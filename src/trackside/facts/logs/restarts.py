"""Did a run live on after a failure because its launcher started the workers again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trackside.evidence import Evidence
from trackside.facts.logs.order import followed_by, follows
from trackside.finding import Claim, claim
from trackside.model import Event
from trackside.query import Query, events

RESTARTS: Mapping[str, Query] = {"restarts": events("launcher_restart")}
"""What tells, beside the ask ``progress``."""
RESTART_SAYS: Mapping[str, str] = {
    "restarted": "the launcher started its workers again: {line}",
    "lived_on": "training went on after that: {point}",
    "again": "the run lived on with what it had saved; what stopped it once may do so again",
}
"""Sentences of the claims that are made here, and one for what that implies."""


def lived_on(evidence: Evidence, failure: Event, points: Sequence[Event]) -> list[Claim]:
    """That the workers were started again after a failure, and that training points came then; none where not so."""
    restarts = evidence["restarts"]
    again = next((row for row in restarts.events if follows(row, failure)), None)
    point = followed_by(again, points) if again is not None else None
    if again is None or point is None:
        return []
    told = claim("restarted", line=restarts.value(again, "text"))
    return [told, claim("lived_on", point=evidence["progress"].value(point, "text"))]
