"""U0 on rows built by hand."""

from __future__ import annotations

from tests.families.rows import job, judge, text_of


def test_u0_combines_the_records_of_a_pending_job() -> None:
    rows = (job("PENDING", start=9e9, reason="Priority"), job("PENDING", 3, reason="None", dependency="afterok:6"))
    text = text_of(judge("U0", *rows))
    assert "reason Priority" in text
    assert "afterok:6" in text
