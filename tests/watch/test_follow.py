"""A job followed: what is shown and said, how long is waited between, and when it is over. Time is a list of moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from trackside.catalog.job_states import Stage
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.metric_store import HIDDEN_S
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
class Play:
    """What is found at each asking, the last for good; each asking takes ``asking_s``."""

    steps: Sequence[Step]
    asking_s: float = 2.0
    now: float = 1000.0
    asked: int = 0
    stage: Stage = "unknown"
    shown: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    interrupt_after: int = 200

    def ask(self) -> Verdict:
        found, stage = self.steps[min(self.asked, len(self.steps) - 1)]
        self.asked += 1
        self.now += self.asking_s
        if not isinstance(found, str):
            raise found
        self.stage = stage
        family, _, variant = found.partition("/")
        return Verdict(Primary(family, variant=variant or None, shows=str(self.now)))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if len(self.slept) > self.interrupt_after:
            raise KeyboardInterrupt

    def run(self, interval_s: float = 30.0) -> FollowResult:
        show: Callable[[Verdict], object] = lambda verdict: self.shown.append(verdict.primary.family)  # noqa: E731
        return follow(
            self.ask, lambda: self.stage, show, self.said.append,
            interval_s=interval_s, clock=lambda: self.now, sleep=self.sleep,
        )  # fmt: skip


def test_a_verdict_is_shown_when_it_changes_and_not_before() -> None:
    play = Play([("G1", "going"), ("G1", "going"), ("D3", "going"), ("D3/slow", "going"), ("B1", "settled")])
    followed = play.run()
    assert play.shown == ["G1", "D3", "D3", "B1"]
    assert followed.verdict is not None
    assert (followed.verdict.primary.family, followed.ending) == ("B1", "settled")
    assert play.said == []


def test_askings_begin_an_interval_apart() -> None:
    play = Play([("G1", "going"), ("G1", "going"), ("G1", "settled")])
    play.run(interval_s=20)
    assert play.slept[:2] == [18.0, 18.0]


def test_no_busy_loop_where_asking_takes_longer_than_the_interval() -> None:
    play = Play([("G1", "going")], asking_s=50, interrupt_after=3)
    play.run(interval_s=0)
    assert play.slept == [1.0] * 4


def test_the_last_word_waits_for_what_arrives_late() -> None:
    play = Play([("U0", "settled"), ("B1", "settled")])
    begun = play.now
    play.run(interval_s=300)
    assert play.shown == ["U0", "B1"]
    assert play.asked == 2
    assert SETTLE_S <= play.now - begun < 2 * SETTLE_S


def test_the_last_asking_sees_the_last_moments() -> None:
    play = Play([("U0", "settled")], asking_s=50)
    begun: list[float] = []
    ask = play.ask

    def asked() -> Verdict:
        begun.append(play.now)
        return ask()

    play.ask = asked  # type: ignore[method-assign]
    play.run()
    seen = begun[0] + 50  # when the end was known
    assert begun[-1] - seen >= HIDDEN_S + 60 - 0.001


@pytest.mark.parametrize("mistake", [FileNotFoundError, NotADirectoryError, PermissionError])
def test_a_mistyped_path_ends_it_at_once(mistake: type[OSError]) -> None:
    play = Play([(mistake(2, "no such", "/typo"), "unknown")])
    with pytest.raises(mistake):
        play.run()
    assert play.slept == []


def test_failures_after_the_end_wait_no_longer_than_for_accounting() -> None:
    down = SourceUnavailable("unreachable", "http://m cannot be reached")
    play = Play([("B1", "ended"), (down, "unknown")])
    begun = play.now
    followed = play.run()
    assert followed.verdict is not None
    assert (followed.verdict.primary.family, followed.ending) == ("B1", "ended")
    assert PATIENCE_S <= play.now - begun < PATIENCE_S + 30
    assert (
        play.said[-1] == "unable to check: http://m cannot be reached; the job has ended, so its last verdict is final"
    )


def test_a_server_that_is_down_for_days() -> None:
    play = Play([(SourceUnavailable("unreachable", "down"), "unknown")], interrupt_after=3000)
    assert play.run() == FollowResult(None, "stopped")
    assert set(play.slept[10:]) == {MAX_PAUSE_S}


def test_an_end_that_accounting_never_hears_of_is_waited_for_so_long_and_no_longer() -> None:
    play = Play([("B1", "ended")])
    begun = play.now
    assert play.run().ending == "ended"
    assert PATIENCE_S <= play.now - begun < PATIENCE_S + 3 * SETTLE_S


def test_a_requeued_job_goes_on() -> None:
    play = Play([("F2", "ended"), ("F2", "going"), ("F2", "going"), ("G1", "settled")])
    assert play.run().ending == "settled"
    assert play.shown == ["F2", "G1"]
    assert play.asked >= 5


def test_failures_are_said_and_tried_again_ever_more_seldom() -> None:
    failing: list[Step] = [(SourceUnavailable("unreachable", "http://m cannot be reached"), "unknown")] * 8
    play = Play([("G1", "going"), *failing, ("G1", "settled")])
    play.run()
    pauses = play.slept[1:9]
    assert pauses == [60, 120, 240, 480, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    assert play.said[0] == "unable to check: http://m cannot be reached; next check in 60 s"
    assert play.said[-1] == "answering again after 8 failures"
    assert play.shown == ["G1"]


def test_what_is_a_mistake_ends_it() -> None:
    with pytest.raises(ValueError, match="no job id"):
        Play([(ValueError("no job id"), "unknown")]).run()


def test_ctrl_c_gives_the_last_verdict_wherever_it_comes() -> None:
    play = Play([("G1", "going")], interrupt_after=2)
    followed = play.run()
    assert followed.ending == "stopped"
    assert followed.verdict is not None
    play = Play([("G1", "going"), (KeyboardInterrupt, "going")])
    assert play.run().ending == "stopped"
    assert Play([(KeyboardInterrupt, "going")]).run() == FollowResult(None, "stopped")
    play = Play([(OSError("disk"), "going")], interrupt_after=0)
    assert play.run() == FollowResult(None, "stopped")


def test_a_job_of_which_nobody_can_say_is_asked_for_until_told_to_stop() -> None:
    play = Play([("U0", "unknown")], interrupt_after=5)
    assert play.run().ending == "stopped"
    assert play.said == ["the job's state is unknown; checking until Ctrl-C"]
