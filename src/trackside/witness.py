"""HOW A FAMILY WEIGHS: witnesses in the order of their rank, and one fold that decides between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trackside.finding import Certainty, Claim


@dataclass(frozen=True, slots=True)
class Witness:
    """What one piece of evidence speaks for, how strongly, and the cited claims that say so.

    A witness without claims says nothing: that nobody saw a thing is no evidence.
    """

    variant: str
    certainty: Certainty
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """What witnesses come to: the word of the first that speaks, what agrees with it, and what speaks against it."""

    variant: str
    certainty: Certainty
    claims: tuple[Claim, ...]
    against: tuple[Claim, ...]


def witness(variant: str, certainty: Certainty, *claims: Claim | None) -> Witness:
    """A witness of those claims that could be made."""
    return Witness(variant, certainty, tuple(claim for claim in claims if claim is not None))


def weigh(*witnesses: Witness) -> Weight | None:
    """The first witness that speaks decides variant and certainty. None if none speaks."""
    speaking = [one for one in witnesses if one.claims]
    if not speaking:
        return None
    first = speaking[0]
    agreeing = [one for one in speaking if one.variant == first.variant]
    others = [one for one in speaking if one.variant != first.variant]
    return Weight(first.variant, first.certainty, _claims(agreeing), _claims(others))


def _claims(witnesses: Iterable[Witness]) -> tuple[Claim, ...]:
    return tuple(claim for one in witnesses for claim in one.claims)


def surer(certainty: Certainty, by: int = 1) -> Certainty:
    """So many steps surer, for as many witnesses that agree; established at most."""
    steps = (Certainty.POSSIBLE, Certainty.SUPPORTED, Certainty.ESTABLISHED)
    return steps[min(certainty.strength + by, len(steps) - 1)]
