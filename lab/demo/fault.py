"""What a fault of the demonstration is: a job, what is done to it meanwhile, and what a right verdict on it says."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.cluster import Cluster, Job
from lab.demo.programs import Program
from lab.stage import RunFailed, Stage


@dataclass(frozen=True)
class Right:
    """What a right verdict says: a family's code, and where they are certain its variant, culprit, ranks, nodes."""

    family: str
    variant: str | None = None
    culprit: str | None = None
    ranks: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    """By number: 4 is the cluster's fourth."""
    shows: str = ""
    """A text that must be in what the data shows, such as the line of code at which a rank hangs."""
    never: tuple[str, ...] = ()
    """Texts that must be nowhere in what is shown and implied: of the look-alike."""


@dataclass
class Play:
    """A job that was submitted, and where."""

    cluster: Cluster
    agents: Mapping[str, Program]
    stage: Stage
    job: Job
    stop: threading.Event

    def wait_output(self, pattern: str, timeout: float = 120) -> None:
        self.job.wait_for(pattern, timeout)

    def pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise RunFailed("the demonstration was stopped")

    def node(self, number: int) -> str:
        return self.cluster.nodes[number - 1]


Injection = Callable[[Play], None]


@dataclass(frozen=True)
class Fault:
    """One job. `state`: Slurm's last word on it; with `parent`, a job that it waits for (--dependency)."""

    name: str
    story: str
    script: str
    right: Right
    state: str
    options: tuple[str, ...] = ()
    nodes: str = "12"
    """Numbers of the nodes that it may use."""
    inject: Injection | None = None
    parent: str = ""
    seconds: float = 150
    """Within which it ends."""


def signal_rank(rank: int, number: signal.Signals, after: str) -> Injection:
    """Send a signal to the process of a rank once the output holds a pattern."""

    def act(play: Play) -> None:
        play.wait_output(after)
        os.kill(play.job.rank_pid(rank), number)

    return act


def cancel(after: str, seconds: float = 0.0) -> Injection:
    """`scancel`, so long after the output held a pattern."""

    def act(play: Play) -> None:
        play.wait_output(after)
        play.pause(seconds)
        play.cluster.ask("scancel", play.job.number)

    return act


def requeue(after: str) -> Injection:
    """`scontrol requeue`, as an administrator does it."""

    def act(play: Play) -> None:
        play.wait_output(after)
        play.cluster.ask("scontrol", "requeue", play.job.number)

    return act


def preempt(after: str, node: int, gpus: int) -> Injection:
    """A job of a higher partition wants the GPUs of a node."""

    def act(play: Play) -> None:
        play.wait_output(after)
        where = (f"--nodelist={play.node(node)}", f"--gpus-per-node={gpus}")
        play.cluster.submit(play.stage, "sleep 3", "-p", "high", *where, name="urgent")

    return act


def kill_node(after: str, node: int) -> Injection:
    """A node dies: its daemons, its agent and all that runs on it, at once."""

    def act(play: Play) -> None:
        play.wait_output(after)
        play.agents[play.node(node)].kill()
        play.cluster.script("slurm-node", "kill", play.node(node))

    return act
