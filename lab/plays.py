"""The common ways to play a case: run a job script, and inject something into it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from lab.case import Play
from lab.stage import RunningJob, Stage

Injection = Callable[[RunningJob], None]
Preparation = Callable[[Stage], None]


def run(
    script: str,
    *,
    prepare: Preparation | None = None,
    inject: Injection | None = None,
    keep: tuple[str, ...] = (),
    timeout: float = 240,
    env: Mapping[str, str] | None = None,
) -> Play:
    """Run one job script to its end."""

    def play(stage: Stage) -> None:
        if prepare:
            prepare(stage)
        running = stage.start(script, env=env)
        try:
            if inject:
                inject(running)
            running.finish(timeout)
        finally:
            running.stop()
        for pattern in keep:
            stage.keep_glob(pattern)

    return play


def signal_rank(rank: int, number: signal.Signals, after: str) -> Injection:
    """Send a signal to one rank once the log contains a pattern."""

    def act(running: RunningJob) -> None:
        running.wait_for(after)
        os.kill(running.rank_pid(rank), number)

    return act


def signal_program(name: str, number: signal.Signals, after: str) -> Injection:
    """Send a signal to the first process with this text in its command line."""

    def act(running: RunningJob) -> None:
        running.wait_for(after)
        os.kill(running.child_pid(name), number)

    return act


def signal_worker(name: str, number: signal.Signals, after: str) -> Injection:
    """Send a signal to a data loader worker of the process that runs `name`."""

    def act(running: RunningJob) -> None:
        running.wait_for(after)
        os.kill(running.worker_pid(running.child_pid(name)), number)

    return act


def signal_group(number: signal.Signals, after: str) -> Injection:
    """Send a signal to the whole job, as a terminal does."""

    def act(running: RunningJob) -> None:
        running.wait_for(after)
        running.send_group(number)

    return act
