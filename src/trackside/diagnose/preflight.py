"""Can this telemetry be trusted: what is covered, what is cut off, whose clock is off."""

from __future__ import annotations

from trackside.model import Claim, Run
from trackside.query import Store

SAYS: dict[str, str] = {}
"""Sentence templates of the claims that :func:`check` makes."""


def check(store: Store, run: Run) -> tuple[Claim, ...]:
    """What limits the verdict, each with its citation."""
    return ()
