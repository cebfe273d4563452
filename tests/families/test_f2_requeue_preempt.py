"""F2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import pytest

from tests.families.rows import (
    ABSENT,
    FALLING,
    Row,
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
from trackside.finding import Claim, clause
from trackside.model import Attempt, Run


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


ATTEMPTS = (job("PREEMPTED", end=2000.0, n_gpus=8), job("COMPLETED", 3, start=3000.0, end=4000.0, n_gpus=8))
STEPS = [event("progress", 10 + i, step=10 * i, loss=9.0 - i, time=1000.0 + 100 * i) for i in range(1, 6)]


@pytest.mark.parametrize(
    ("between", "first_step", "headline", "advice"),
    [
        (
            event("checkpoint_loaded", 50, step=40, text="loaded step 40"),
            50,
            "preempted by the scheduler; attempt 2 continued from the checkpoint at step 40 and completed",
            "nothing to do: attempt 2 continued from the checkpoint at step 40; 10 min of attempt 1 were repeated",
        ),
        (
            event("checkpoint_missing", 50, text="could not find the metadata file"),
            10,
            "preempted by the scheduler; attempt 2 started over at step 10 and completed",
            'find out why attempt 2 loaded no checkpoint; its log says "could not find the metadata file"',
        ),
    ],
)
def test_f2_says_where_the_next_attempt_continued(between: Row, first_step: int, headline: str, advice: str) -> None:
    later = [event("progress", 60 + i, step=first_step + 10 * i, loss=4.0, time=3100.0 + 100 * i) for i in range(5)]
    attempts = (Attempt(1, "PREEMPTED", 1000.0, 2000.0), Attempt(2, "COMPLETED", 3000.0, 4000.0))
    run = Run(id="7", start=3000.0, end=4000.0, disposition="COMPLETED", attempts=attempts)
    finding = judge("F2", *ATTEMPTS, *STEPS, between, *later, run=run)
    assert finding.headline is not None
    assert clause(finding.headline) == headline
    assert clause(Claim(finding.actions[0].sentence, finding.actions[0].values)) == advice
