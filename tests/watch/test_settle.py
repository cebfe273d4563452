"""Waiting for a final verdict. The clock is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from trackside.finding import PendingEvidence
from trackside.http.unavailable import SourceUnavailable
from trackside.watch.settle import wait_until_settled


@dataclass(frozen=True)
class Verdict:
    unsettled: PendingEvidence | None


GOING = Verdict(PendingEvidence("the job is not over"))
FINAL = Verdict(None)


@dataclass
class SimulatedWait:
    """An outcome for each check."""

    outcomes: Sequence[Verdict | BaseException]
    now: float = 1000.0
    checks: int = 0
    pauses_s: list[float] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def check(self) -> Any:
        outcome = self.outcomes[self.checks]
        self.checks += 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now += seconds

    def run(self) -> Any:
        return wait_until_settled(
            self.check, self.messages.append, interval_s=30, clock=lambda: self.now, sleep=self.sleep
        )


def test_it_asks_again_when_the_verdict_says_so() -> None:
    soon = Verdict(PendingEvidence("the job has just ended", 1012.0))
    late = Verdict(PendingEvidence("the job has just ended", 2000.0))
    wait = SimulatedWait([soon, late, GOING, FINAL])
    assert wait.run() is FINAL
    assert wait.pauses_s == [12.0, 30.0, 30.0]
    assert len(wait.messages) == 1
    assert "the job has just ended" in wait.messages[0]


def test_a_time_that_is_over_does_not_cause_a_busy_loop() -> None:
    wait = SimulatedWait([Verdict(PendingEvidence("it is written", 1.0)), FINAL])
    wait.run()
    assert wait.pauses_s == [1.0]


def test_a_final_verdict_is_not_waited_for() -> None:
    wait = SimulatedWait([FINAL])
    assert wait.run() is FINAL
    assert (wait.pauses_s, wait.messages) == ([], [])


def test_ctrl_c_gives_the_last_verdict() -> None:
    assert SimulatedWait([GOING, KeyboardInterrupt()]).run() is GOING
    assert SimulatedWait([KeyboardInterrupt()]).run() is None


def test_a_server_that_stops_answering_is_asked_again() -> None:
    down = SourceUnavailable("unreachable", "connection refused")
    wait = SimulatedWait([GOING, down, down, FINAL])
    assert wait.run() is FINAL
    assert wait.pauses_s == [30.0, 60.0, 120.0]


@pytest.mark.parametrize("error", [SourceUnavailable("unreachable", "connection refused"), FileNotFoundError("x")])
def test_an_error_of_the_first_check_ends_the_waiting(error: Exception) -> None:
    with pytest.raises(type(error)):
        SimulatedWait([error]).run()
