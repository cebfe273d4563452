"""Confidence is the track record of a family with an evidence pattern, shrunk toward coarser records."""

from __future__ import annotations

from trackside.families import families
from trackside.verdict.confidence import Reliability, TrackRecord, table

SURE, OPEN = "established, two or more planes, no rival open", "supported, one plane, rival open"
BLIND = TrackRecord(90, 100)


def test_a_family_without_a_record_gets_the_prior_confidence() -> None:
    known = Reliability({("B1", SURE): TrackRecord(500, 500), ("B1", OPEN): TrackRecord(20, 40)}, BLIND)
    assert known.confidence("Z9", SURE) == round(known.prior(), 2) == 0.89
    assert known.confidence("B1", SURE) > known.confidence("Z9", SURE)
    assert known.confidence("Z9", OPEN) < known.confidence("Z9", SURE)
    assert known.confidence("Z9", "a pattern never seen") <= round(known.prior(), 2)


def test_a_familys_own_errors_lower_its_confidence() -> None:
    known = Reliability(
        {("B1", SURE): TrackRecord(50, 50), ("D3", SURE): TrackRecord(10, 20), ("D3", OPEN): TrackRecord(2, 2)}, BLIND
    )
    assert known.confidence("D3", SURE) < 0.75 < 0.9 < known.confidence("B1", SURE)
    assert known.confidence("D3", OPEN) < known.prior(), "two cases that went well do not outweigh the others"


def test_without_any_record_the_confidence_is_one_half() -> None:
    assert Reliability({}, TrackRecord()).confidence("B1", SURE) == 0.5


def test_no_family_is_certain() -> None:
    patterns = {pattern for _, pattern in table().cells}
    assert patterns
    assert all(0 < table().confidence(family.code, pattern) < 1 for family in families() for pattern in patterns)
    assert {family for family, _ in table().cells} <= {family.code for family in families()}
