"""U0 on rows built by hand."""

from __future__ import annotations

from tests.families.rows import UNKNOWN, event, job, judge, text_of
from trackside.finding import clause


def test_u0_without_data_says_what_to_give() -> None:
    finding = judge("U0")
    assert finding.outcome is UNKNOWN
    assert [step.sentence.text for step in finding.actions] == [
        "run diagnose again with whichever of these you have: the job's whole output, its sacct record, the kernel logs "
        "of its nodes, and the metrics of its GPUs"
    ]


def test_u0_combines_the_records_of_a_pending_job() -> None:
    rows = (job("PENDING", start=9e9, reason="Priority"), job("PENDING", 3, reason="None", dependency="afterok:6"))
    text = text_of(judge("U0", *rows))
    assert "reason Priority" in text
    assert "afterok:6" in text


def test_of_a_block_of_unknown_error_lines_the_first_is_shown() -> None:
    lines = [event("unread_error", line, text=f"Test failure {line}") for line in (5, 12, 13, 15)]
    finding = judge("U0", *lines)
    assert "4 error lines" in text_of(finding)
    assert '"Test failure 12"' in text_of(finding)
    assert judge("H3", *lines).missing == (
        "the log has 4 error lines that Trackside does not recognize (the last: train.log:15), and no progress follows",
    )


def test_an_error_that_refers_to_another_log_asks_for_it() -> None:
    text = "ERROR 2026-01-02 03:04:05,804 launch_utils.py:545] ABORT!!! The process with rank=[0] failed. Please check its log."
    finding = judge("U0", event("unread_error", 5, text=text))
    assert '"ABORT!!! The process with rank=[0] failed. Please check its log."' in text_of(finding)
    first, second = (clause(step) for step in finding.actions[:2])
    assert first.startswith("read line ")
    assert second.endswith("the log that the error line refers to")
    assert "nothing in the inputs" not in clause(finding.implies[0])
