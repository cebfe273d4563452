"""How witnesses weigh against each other."""

from __future__ import annotations

from tests.families.rows import ESTABLISHED, POSSIBLE, SUPPORTED
from trackside.finding import Claim, Sentence
from trackside.witness import surer, weigh, witness

GONE, SLOW, HINT = (Claim(Sentence(text)) for text in ("it is gone", "it is slow", "it may be slow"))


def test_the_first_that_speaks_decides() -> None:
    assert weigh(witness("gone", ESTABLISHED, None), witness("slow", SUPPORTED)) is None
    weight = weigh(
        witness("gone", ESTABLISHED, None),
        witness("slow", SUPPORTED, SLOW),
        witness("gone", ESTABLISHED, GONE),
        witness("slow", POSSIBLE, None, HINT),
    )
    assert weight is not None
    assert (weight.variant, weight.certainty) == ("slow", SUPPORTED)
    assert (weight.claims, weight.against) == ((SLOW, HINT), (GONE,))


def test_agreement_makes_surer_and_established_is_the_most() -> None:
    assert [surer(POSSIBLE, by) for by in range(4)] == [POSSIBLE, SUPPORTED, ESTABLISHED, ESTABLISHED]
    assert surer(SUPPORTED) is ESTABLISHED
