"""Watching a job: what is shown and reported, how long the pauses are, and when it ends. The clock is simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from trackside.catalog.job_states import Stage
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.metric_server import HIDDEN_S
from trackside.watch.follow import MAX_PAUSE_S, PATIENCE_S, SETTLE_S, FollowResult, follow


@dataclass(frozen=True)
class Primary:
    family: str
    certainty: str | None = "likely"
    culprit: str = "user"
    variant: str | None = None
    shows: str = ""


@dataclass(frozen=True)
class Verdict:
    primary: Primary


Step = tuple[str | Exception | type[BaseException], Stage]


@dataclass
class SimulatedWatch:
    """A result for each check, the last one from then on; a check takes ``check_s``."""

    steps: Sequence[Step]
    check_s: float = 2.0
    now: float = 1000.0
    check_count: int = 0
    stage: Stage = "unknown"
    shown: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    interrupt_after: int = 200

    def check(self) -> Verdict:
        outcome, stage = self.steps[min(self.check_count, len(self.steps) - 1)]
        self.check_count += 1
        self.now += self.check_s
        if not isinstance(outcome, str):
            raise outcome
        self.stage = stage
        family, _, variant = outcome.partition("/")
        return Verdict(Primary(family, variant=variant or None, shows=str(self.now)))

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now += seconds
        if len(self.pauses_s) > self.interrupt_after:
            raise KeyboardInterrupt

    def run(self, interval_s: float = 30.0) -> FollowResult:
        show: Callable[[Verdict], object] = lambda verdict: self.shown.append(verdict.primary.family)  # noqa: E731
        return follow(
            self.check, lambda: self.stage, show, self.messages.append,
            interval_s=interval_s, clock=lambda: self.now, sleep=self.sleep,
        )  # fmt: skip


def test_a_verdict_is_shown_only_when_it_changes() -> None:
    watch = SimulatedWatch([("G1", "going"), ("G1", "going"), ("D3", "going"), ("D3/slow", "going"), ("B1", "settled")])
    result = watch.run()
    assert watch.shown == ["G1", "D3", "D3", "B1"]
    assert result.verdict is not None
    assert (result.verdict.primary.family, result.ending) == ("B1", "settled")
    assert watch.messages == []


def test_checks_start_one_interval_apart() -> None:
    watch = SimulatedWatch([("G1", "going"), ("G1", "going"), ("G1", "settled")])
    watch.run(interval_s=20)
    assert watch.pauses_s[:2] == [18.0, 18.0]


def test_slow_checks_do_not_cause_a_busy_loop() -> None:
    watch = SimulatedWatch([("G1", "going")], check_s=50, interrupt_after=3)
    watch.run(interval_s=0)
    assert watch.pauses_s == [1.0] * 4


def test_the_last_verdict_waits_for_late_data() -> None:
    watch = SimulatedWatch([("U0", "settled"), ("B1", "settled")])
    started = watch.now
    watch.run(interval_s=300)
    assert watch.shown == ["U0", "B1"]
    assert watch.check_count == 2
    assert SETTLE_S <= watch.now - started < 2 * SETTLE_S


def test_the_last_check_includes_samples_up_to_the_end() -> None:
    watch = SimulatedWatch([("U0", "settled")], check_s=50)
    check_times: list[float] = []
    check = watch.check

    def timed_check() -> Verdict:
        check_times.append(watch.now)
        return check()

    watch.check = timed_check  # type: ignore[method-assign]
    watch.run()
    end_known = check_times[0] + 50  # when the end was known
    assert check_times[-1] - end_known >= HIDDEN_S + 60 - 0.001


@pytest.mark.parametrize("mistake", [FileNotFoundError, NotADirectoryError, PermissionError])
def test_a_mistyped_path_ends_the_watch_at_once(mistake: type[OSError]) -> None:
    watch = SimulatedWatch([(mistake(2, "no such", "/typo"), "unknown")])
    with pytest.raises(mistake):
        watch.run()
    assert watch.pauses_s == []


def test_failures_after_the_end_are_retried_for_a_limited_time() -> None:
    down = SourceUnavailable("unreachable", "http://m cannot be reached")
    watch = SimulatedWatch([("B1", "ended"), (down, "unknown")])
    started = watch.now
    result = watch.run()
    assert result.verdict is not None
    assert (result.verdict.primary.family, result.ending) == ("B1", "ended")
    assert PATIENCE_S <= watch.now - started < PATIENCE_S + 30
    assert (
        watch.messages[-1]
        == "unable to check: http://m cannot be reached; the job has ended, so its last verdict is final"
    )


def test_a_server_down_for_days_is_retried_until_ctrl_c() -> None:
    watch = SimulatedWatch([(SourceUnavailable("unreachable", "down"), "unknown")], interrupt_after=3000)
    assert watch.run() == FollowResult(None, "stopped")
    assert set(watch.pauses_s[10:]) == {MAX_PAUSE_S}


def test_a_missing_accounting_record_is_awaited_for_a_limited_time() -> None:
    watch = SimulatedWatch([("B1", "ended")])
    started = watch.now
    assert watch.run().ending == "ended"
    assert PATIENCE_S <= watch.now - started < PATIENCE_S + 3 * SETTLE_S


def test_a_requeued_job_is_followed_further() -> None:
    watch = SimulatedWatch([("F2", "ended"), ("F2", "going"), ("F2", "going"), ("G1", "settled")])
    assert watch.run().ending == "settled"
    assert watch.shown == ["F2", "G1"]
    assert watch.check_count >= 5


def test_failures_are_reported_and_retried_with_backoff() -> None:
    failing: list[Step] = [(SourceUnavailable("unreachable", "http://m cannot be reached"), "unknown")] * 8
    watch = SimulatedWatch([("G1", "going"), *failing, ("G1", "settled")])
    watch.run()
    pauses = watch.pauses_s[1:9]
    assert pauses == [60, 120, 240, 480, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    assert watch.messages[0] == "unable to check: http://m cannot be reached; next check in 60 s"
    assert watch.messages[-1] == "answering again after 8 failures"
    assert watch.shown == ["G1"]


def test_a_usage_error_ends_the_watch() -> None:
    with pytest.raises(ValueError, match="no job id"):
        SimulatedWatch([(ValueError("no job id"), "unknown")]).run()


def test_ctrl_c_returns_the_last_verdict() -> None:
    watch = SimulatedWatch([("G1", "going")], interrupt_after=2)
    result = watch.run()
    assert result.ending == "stopped"
    assert result.verdict is not None
    watch = SimulatedWatch([("G1", "going"), (KeyboardInterrupt, "going")])
    assert watch.run().ending == "stopped"
    assert SimulatedWatch([(KeyboardInterrupt, "going")]).run() == FollowResult(None, "stopped")
    watch = SimulatedWatch([(OSError("disk"), "going")], interrupt_after=0)
    assert watch.run() == FollowResult(None, "stopped")


def test_a_job_of_unknown_state_is_checked_until_ctrl_c() -> None:
    watch = SimulatedWatch([("U0", "unknown")], interrupt_after=5)
    assert watch.run().ending == "stopped"
    assert watch.messages == ["the job's state is unknown; checking until Ctrl-C"]
