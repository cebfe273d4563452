"""How witnesses are weighed against each other."""

from __future__ import annotations

from tests.families.rows import ESTABLISHED, POSSIBLE, SUPPORTED
from trackside.finding import Claim, Sentence
from trackside.witness import raise_certainty, weigh, witness

GONE, SLOW = (Claim(Sentence(text)) for text in ("it is gone", "it is slow"))


def test_the_first_witness_with_a_claim_decides() -> None:
    silent = witness("gone", ESTABLISHED, None)
    slow, missing = witness("slow", SUPPORTED, SLOW, None), witness("gone", ESTABLISHED, GONE)
    assert weigh(silent, None, slow, missing) is slow
    assert slow.claims == (SLOW,)
    assert weigh(silent, None) is None


def test_agreement_raises_certainty_up_to_established() -> None:
    assert [raise_certainty(POSSIBLE, by) for by in range(4)] == [POSSIBLE, SUPPORTED, ESTABLISHED, ESTABLISHED]
    assert raise_certainty(SUPPORTED) is ESTABLISHED
