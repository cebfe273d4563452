"""Confidence is the record of unseen runs with the same evidence pattern, shrunk toward coarser patterns."""

from __future__ import annotations

from pathlib import Path

from tools.first_runs import FirstRun, first_runs
from trackside import diagnose
from trackside.verdict.confidence import MAX_CONFIDENCE, Reliability, TrackRecord, confidence_of, table

PRIOR = TrackRecord(90, 100)
CRASH, HANG = ("log alone", "A", "supported"), ("log alone", "C", "possible")
KNOWN = Reliability.of(PRIOR, [(CRASH, TrackRecord(40, 40)), (HANG, TrackRecord(1, 4))])


def test_a_pattern_without_a_record_gets_that_of_the_coarser_one() -> None:
    assert KNOWN.confidence(("metric alone",)) == 0.89, "the prior, by Laplace's rule"
    assert KNOWN.confidence((*CRASH, "end seen")) == KNOWN.confidence(CRASH)
    assert KNOWN.confidence(("log alone", "Z", "supported")) == KNOWN.confidence(("log alone",))


def test_good_records_raise_and_bad_ones_lower_the_confidence() -> None:
    assert KNOWN.confidence(HANG) < 0.8 < KNOWN.confidence(("log alone",)) < KNOWN.confidence(CRASH)


def test_two_runs_that_went_well_do_not_outweigh_the_others() -> None:
    known = Reliability.of(PRIOR, [(HANG, TrackRecord(2, 10)), ((*HANG[:2], "established"), TrackRecord(2, 2))])
    assert known.confidence((*HANG[:2], "established")) < 0.7


def test_no_verdict_is_certain() -> None:
    assert Reliability.of(TrackRecord(10**6, 10**6), [(CRASH, TrackRecord(1e6, 1e6))]).confidence(CRASH) == 0.99
    patterns = table().records
    assert patterns
    assert all(0 < table().confidence(pattern) <= MAX_CONFIDENCE for pattern in patterns)


def test_without_any_record_the_confidence_is_one_half() -> None:
    assert Reliability.of(TrackRecord(), []).confidence(CRASH) == 0.5


def test_a_verdict_without_a_cause_has_no_confidence(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("loading weights\ndone with the first part\n")
    verdict = diagnose(tmp_path)
    assert (verdict.family, verdict.pattern, verdict.confidence) == ("U0", (), None)
    assert confidence_of(()) is None


def test_the_table_counts_the_ledger() -> None:
    """Otherwise the ledger has grown since ``make accuracy``."""
    counted = [run for run in first_runs() if run.is_certain and run.pattern[:1] == ("log alone",)]
    records = {pattern: record for pattern, record in table().records.items() if pattern == ("log alone",)}
    assert records == {("log alone",): TrackRecord(sum(run.is_right for run in counted), len(counted))}


def test_lines_of_the_ledger_without_a_pattern_count_for_what_they_give() -> None:
    verdict = {"family": "B1", "certainty": "established", "confidence": 0.96}
    run = FirstRun("1", {"family": "H2", "also_ok": ["B1"], "certain": True}, verdict)
    assert (run.is_right, run.pattern) == (True, ("log alone", "B", "established"))
    undecided = FirstRun("1", {"family": "H2", "also_ok": [], "certain": True}, {"error": "SeveralRuns"})
    assert (undecided.is_right, undecided.pattern, undecided.confidence) == (False, (), None)
