"""HOW A FAMILY WEIGHS: witnesses in the order of their rank, the fold that decides between them, and agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from trackside.finding import Certainty, Claim


@dataclass(frozen=True)
class Witness:
    """What one piece of evidence speaks for, how strongly, and the cited claims that say so.

    A witness without claims says nothing: that nobody saw a thing is no evidence.
    """

    variant: str
    certainty: Certainty
    claims: tuple[Claim, ...]


W = TypeVar("W", bound=Witness)


def witness(variant: str, certainty: Certainty, *claims: Claim | None) -> Witness:
    """A witness of those claims that could be made."""
    return Witness(variant, certainty, tuple(claim for claim in claims if claim is not None))


def weigh(*witnesses: W | None) -> W | None:
    """The first witness that speaks decides; None if none does."""
    return next((one for one in witnesses if one is not None and one.claims), None)


def surer(certainty: Certainty, by: int = 1) -> Certainty:
    """So many steps surer, for as many witnesses that agree; established at most."""
    steps = (Certainty.POSSIBLE, Certainty.SUPPORTED, Certainty.ESTABLISHED)
    return steps[min(certainty.strength + by, len(steps) - 1)]
