"""The common ways to play a case: run a job script, and do something to it meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from lab.case import Play
from lab.stage import Running, Stage

Meanwhile = Callable[[Running], None]
Before = Callable[[Stage], None]


def run(
    script: str,
    *,
    before: Before | None = None,
    meanwhile: Meanwhile | None = None,
    keep: tuple[str, ...] = (),
    timeout: float = 240,
    env: Mapping[str, str] | None = None,
) -> Play:
    """Run one job script to its end."""

    def play(stage: Stage) -> None:
        if before:
            before(stage)
        running = stage.start(script, env=env)
        try:
            if meanwhile:
                meanwhile(running)
            running.finish(timeout)
        finally:
            running.stop()
        for pattern in keep:
            stage.keep_glob(pattern)

    return play


def signal_rank(rank: int, number: signal.Signals, after: str) -> Meanwhile:
    """Send a signal to one rank once the log holds a pattern."""

    def act(running: Running) -> None:
        running.wait_for(after)
        os.kill(running.rank_pid(rank), number)

    return act


def signal_program(name: str, number: signal.Signals, after: str) -> Meanwhile:
    """Send a signal to the first process with this text in its command line."""

    def act(running: Running) -> None:
        running.wait_for(after)
        os.kill(running.child_pid(name), number)

    return act


def signal_worker(name: str, number: signal.Signals, after: str) -> Meanwhile:
    """Send a signal to a data loader worker of the process that runs `name`."""

    def act(running: Running) -> None:
        running.wait_for(after)
        os.kill(running.worker_pid(running.child_pid(name)), number)

    return act


def signal_group(number: signal.Signals, after: str) -> Meanwhile:
    """Send a signal to the whole job, as a terminal does."""

    def act(running: Running) -> None:
        running.wait_for(after)
        running.send_group(number)

    return act
