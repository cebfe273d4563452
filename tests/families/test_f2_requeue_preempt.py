"""F2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from tests.families.rows import (
    ABSENT,
    FALLING,
    curve,
    event,
    job,
    judge,
    judge_store,
    notice,
    primary,
    short_job,
    store,
)


def test_f2_counts_earlier_attempts() -> None:
    twice = store(short_job("PREEMPTED"), short_job("COMPLETED", 3, start=3000.0, end=4000.0), curve(FALLING))
    finding = primary(twice)
    assert (finding.family, finding.culprit) == ("F2", "scheduler")
    assert judge_store("F2", store(short_job("CANCELLED", cancelled_by="1000"))).outcome is ABSENT
    assert judge_store("F2", store(notice("preemption"), short_job("PREEMPTED"))).variant == "preempted"
    own = event("requeue_requested", 700, text="requeueing 7")
    assert judge_store("F2", store(own, short_job("COMPLETED", restarts=1))).variant == "requeued"


def test_f2_dates_from_the_first_interruption() -> None:
    rows = (job("PREEMPTED", end=1500.0), job("REQUEUED", 3, start=1600.0, end=1700.0), notice("requeue", time=1501.0))
    finding = judge("F2", *rows)
    assert (finding.since, finding.variant) == (1500.0, "preempted")
    assert judge("F2", job("COMPLETED"), event("requeue_requested", 5)).outcome is ABSENT
