"""That a run advances and learns, as claims: what tells a slow run from a broken one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from trackside.evidence import Evidence
from trackside.facts.training.learning import curve
from trackside.finding import Claim, claim

WORK_SAYS: Mapping[str, str] = {
    "advancing_collectives": "collectives went on: {count} were completed",
    "advancing_launches": "kernels were launched all the while: {count}",
    "learned": "the loss fell from {first} to {last}",
}
"""Sentences of the claims that are made here."""


def advancing(evidence: Evidence, start: float, end: float) -> list[Claim]:
    """Collectives that were completed in (start, end], else kernels that were launched, as far as they were traced."""
    for name in ("collectives", "launches"):
        grid = evidence.grid(name)
        done = grid.during(start, end).value("sum", unit="") if grid is not None else None
        if done is not None and done.value:
            return [claim(f"advancing_{name}", count=done)]
    return []


def learned(evidence: Evidence) -> list[Claim]:
    """The loss at both ends, where it means something and fell."""
    told = curve(evidence["progress"])
    if len(told.rows) < 2 or not told.level_has_meaning or not told.fell:
        return []
    return [claim("learned", first=told.loss(0), last=told.loss(-1))]
