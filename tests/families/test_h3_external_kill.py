"""H3 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import pytest

from tests.families.rows import (
    ABSENT,
    FALLING,
    curve,
    event,
    exception,
    judge_store,
    notice,
    primary,
    sentence_name,
    short_job,
    store,
)
from trackside.finding import Certainty, clause
from trackside.model import EventRole, Run


def test_h3_finds_a_sigterm_without_a_known_sender() -> None:
    term = event("signal_received", 500, EventRole.ROOT, signal=15, signal_name="SIGTERM", by="torchrun")
    assert primary(store(curve(FALLING), term, short_job("FAILED"))).family == "H3"
    assert judge_store("H3", store(curve(FALLING), term, short_job("CANCELLED"))).outcome is ABSENT
    assert judge_store("H3", store(curve(FALLING), term, notice("preemption"))).outcome is ABSENT
    first = event("launcher_failure", 600, EventRole.ROOT, signal=9, first=True)
    assert judge_store("H3", store(curve(FALLING), term, first, short_job("FAILED"))).outcome is ABSENT
    assert (
        judge_store("H3", store(curve(FALLING), exception("KeyError", "x", 450), term, short_job("FAILED"))).outcome
        is ABSENT
    )


@pytest.mark.parametrize(
    ("number", "headline", "advice"), [(1, "hung_up", "detach"), (15, "stopped_by", "find_sender")]
)
def test_h3_names_the_signal_and_its_remedy(number: int, headline: str, advice: str) -> None:
    stop = event("signal_received", 500, EventRole.ROOT, signal=number)
    finding = judge_store("H3", store(curve(FALLING), stop))
    assert finding.headline is not None
    assert (sentence_name(finding.headline), sentence_name(finding.actions[0])) == (headline, advice)
    stated = (finding.headline, *finding.shows, *finding.implies)
    assert not any("outside" in claim.sentence.text for claim in stated), "a timeout of the job's own script is inside"


def test_a_sighup_after_the_sigterm_points_to_a_closed_session() -> None:
    term = event("signal_received", 500, EventRole.ROOT, signal=15)
    hangup = exception("SignalException", "Process 44411 got signal: 1", 520, about="signal")
    finding = judge_store("H3", store(curve(FALLING), term, hangup))
    assert "hangup_followed" in [sentence_name(claim) for claim in finding.shows]
    assert [sentence_name(claim) for claim in finding.implies] == ["login_closed"]
    assert [sentence_name(item) for item in finding.actions][-1] == "detach"
    alone = judge_store("H3", store(curve(FALLING), term))
    assert "hangup_followed" not in [sentence_name(claim) for claim in alone.shows]


def test_a_sender_that_the_line_names_is_named() -> None:
    stop = event("signal_received", 500, EventRole.ROOT, signal=15, sender_pid=7929, sender_uid=1000, unix_time=10**9)
    finding = judge_store("H3", store(curve(FALLING), stop))
    assert finding.headline is not None
    assert clause(finding.headline) == "stopped by SIGTERM from process 7929 of user id 1000"
    assert [sentence_name(claim) for claim in finding.cannot_decide] == ["process_unknown"]
    filled = [
        command for command in finding.actions[0].commands if command.placeholders <= finding.actions[0].values.keys()
    ]
    assert "getent passwd {user}; journalctl _PID={sender} --since @{since} --until @{until}" in filled[0].text


def test_a_received_signal_is_no_mere_hint() -> None:
    stop = event("signal_received", 500, EventRole.ROOT, signal=15)
    finding = judge_store("H3", store(curve(FALLING), stop))
    assert (finding.certainty, sentence_name(finding.cannot_decide[0])) == (Certainty.SUPPORTED, "sender_or_scheduler")


@pytest.mark.parametrize("time", [1772438400.0, None])
def test_the_stop_is_dated_by_its_own_line(time: float | None) -> None:
    """The run's end is no time of the signal; it is stated as what it is."""
    stop = event("signal_received", 500, EventRole.ROOT, signal=15, time=time)
    finding = judge_store("H3", store(curve(FALLING), stop, short_job("FAILED")))
    assert finding.since == time
    assert ("ended_at" in map(sentence_name, finding.shows)) is (time is None)


@pytest.mark.parametrize(("zoned", "ends"), [(True, " UTC"), (False, "")])
def test_the_system_log_is_read_on_the_nodes_of_the_run_in_the_zone_of_the_times(zoned: bool, ends: str) -> None:
    stop = event("signal_received", 500, EventRole.ROOT, signal=15, time=1772438400.0)
    run = Run(id="7", nodes=("n1", "n2"), has_time_zone=zoned)
    find_sender = judge_store("H3", store(curve(FALLING), stop), run).actions[0]
    assert find_sender.values["all_nodes"].value == "n1 n2"
    assert str(find_sender.values["since"].value)[16:] == ends
