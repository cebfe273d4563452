"""How a family weighs evidence: witnesses in order of rank, the choice between them, and agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from trackside.finding import Certainty, Claim


@dataclass(frozen=True)
class Witness:
    """One piece of evidence: the variant that it supports, how strongly, and its cited claims.

    A witness without claims does not count: the absence of an observation is not evidence.
    """

    variant: str
    certainty: Certainty
    claims: tuple[Claim, ...]


W = TypeVar("W", bound=Witness)


def witness(variant: str, certainty: Certainty, *claims: Claim | None) -> Witness:
    """A witness with those claims that could be made."""
    return Witness(variant, certainty, tuple(claim for claim in claims if claim is not None))


def weigh(*witnesses: W | None) -> W | None:
    """The first witness that has claims; None if none has."""
    return next((item for item in witnesses if item is not None and item.claims), None)


def raise_certainty(certainty: Certainty, by: int = 1) -> Certainty:
    """The certainty raised by ``by`` steps, one per agreeing witness; at most established."""
    steps = (Certainty.POSSIBLE, Certainty.SUPPORTED, Certainty.ESTABLISHED)
    return steps[min(certainty.strength + by, len(steps) - 1)]
