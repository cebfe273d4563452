"""F3 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.families.grids import (
    DISTRIBUTED_INIT,
    NO_LOG,
    Cluster,
    cold,
    hung,
    judged,
)
from tests.families.rows import (
    ABSENT,
    DONE,
    END,
    ESTABLISHED,
    FALLING,
    FOUND,
    POSSIBLE,
    SUPPORTED,
    TIMEOUT,
    UNKNOWN,
    curve,
    decision,
    event,
    judge_store,
    keys,
    notice,
    points,
    primary,
    sentence_name,
    short_job,
    store,
)


def test_f3_reports_what_the_run_was_doing() -> None:
    late = curve(FALLING, total_steps=600, time=lambda i: 1000.0 + 33 * i)
    finding = primary(store(late, notice("time_limit"), short_job("TIMEOUT")))
    assert (finding.family, finding.variant) == ("F3", "slow")
    assert "time_missing" in [sentence_name(claim) for claim in finding.shows]
    assert (
        judge_store("F3", store(curve(FALLING), DONE, notice("time_limit", 950), short_job("TIMEOUT"))).variant
        == "after-end"
    )
    early = curve(FALLING, time=lambda i: 1000.0 + i)
    assert judge_store("F3", store(early, short_job("TIMEOUT", end=9000.0))).variant == "silent"
    assert judge_store("F3", store(short_job("COMPLETED"))).outcome is ABSENT


def test_the_headline_has_the_limit_or_the_time_that_the_log_shows() -> None:
    late = curve(FALLING, time=lambda i: 1000.0 + 33 * i)
    stamps = event("log_activity", 1, first_time=1000.0, last_time=8200.0, time=8200.0)
    of_log = judge_store("F3", store(late, stamps, notice("time_limit")))
    assert str(of_log.headline).startswith("Hit the time limit after at least 2 h")
    recorded = judge_store("F3", store(late, short_job("TIMEOUT", time_limit_s=3600)))
    assert str(recorded.headline).startswith("Hit the time limit of 60 min ")


def test_timeout_while_it_worked() -> None:
    finding = judged(hung(since=9e9), "F3", points(65), TIMEOUT)
    assert (decision(finding), finding.variant) == ((FOUND, ESTABLISHED), "slow")
    assert "worked_to_end_sm" in keys(finding)
    missing_steps = judged(hung(since=9e9), "F3", TIMEOUT, planes=NO_LOG)
    assert (missing_steps.outcome, missing_steps.variant) == (FOUND, "slow")


@pytest.mark.parametrize(("elapsed", "variant"), [(600.0, "silent"), (3700.0, "slow")])
def test_steps_without_times_of_their_own(elapsed: float, variant: str) -> None:
    """The progress bar shows the time of the loop; stamped lines of the startup do not date its end."""
    steps = [event("progress", 20 + i, step=i, loss=4 - i / 100, elapsed_s=elapsed * i / 80) for i in range(81)]
    cluster = Cluster()
    finding = judged(cluster, "F3", DISTRIBUTED_INIT, steps, TIMEOUT)
    assert (decision(finding), finding.variant) == ((FOUND, SUPPORTED), variant)
    assert ("unaccounted" in keys(finding)) is (variant == "silent")
    hang = judged(cluster, "C2", DISTRIBUTED_INIT, steps, TIMEOUT)
    assert decision(hang) == ((FOUND, POSSIBLE) if variant == "silent" else (ABSENT, None))


def test_time_that_the_steps_leave_open_is_not_called_training() -> None:
    """Unstamped steps account for half of the run: slow or stuck stays undecided."""
    steps = [event("progress", 20 + i, step=i, loss=4 - i / 100, elapsed_s=2000.0 * i / 80) for i in range(81)]
    blind = Cluster().per_gpu("gpu_temperature_celsius", 50)
    finding = judged(blind, "F3", DISTRIBUTED_INIT, steps, TIMEOUT)
    assert (decision(finding), finding.variant) == ((FOUND, POSSIBLE), "undecided")
    assert [sentence_name(claim) for claim in finding.implies] == ["meanings_undecided"]
    assert judged(blind, "C2", DISTRIBUTED_INIT, steps, TIMEOUT).outcome is UNKNOWN


@pytest.mark.parametrize("make", [hung, lambda: hung(sm=0.19, was=0.5), cold])
def test_timeout_never_hides_a_hang(make: Callable[[], Cluster]) -> None:
    assert judged(make(), "F3", TIMEOUT, planes=NO_LOG).variant == "silent"


def test_one_reading_is_no_work_to_the_end() -> None:
    brief = Cluster(start=END - 30, nodes=1).per_gpu("gpu_sm_active_ratio", 0.7)
    assert judged(brief, "F3", TIMEOUT, planes=NO_LOG).variant == "no-progress"
