"""The parts of a fault of the demonstration: a job, what is injected, and the expected verdict."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.cluster import Cluster, SlurmJob
from lab.demo.programs import Program
from lab.stage import RunFailed, Stage


@dataclass(frozen=True)
class ExpectedVerdict:
    """The expected verdict: a family's code, and its variant, owner, ranks and nodes where they are certain."""

    family: str
    variant: str | None = None
    culprit: str | None = None
    ranks: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    """Numbers of the nodes, counted from 1."""
    shows: str = ""
    """A text that must be in the evidence, such as the line of code at which a rank hangs."""
    never: tuple[str, ...] = ()
    """Texts of a similar fault that the verdict must not contain."""


@dataclass
class SubmittedFault:
    """A submitted job and its surroundings."""

    cluster: Cluster
    agents: Mapping[str, Program]
    stage: Stage
    job: SlurmJob
    stop: threading.Event

    def wait_output(self, pattern: str, timeout: float = 120) -> None:
        self.job.wait_for(pattern, timeout)

    def pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise RunFailed("the demonstration was stopped")

    def node(self, number: int) -> str:
        return self.cluster.nodes[number - 1]


Injection = Callable[[SubmittedFault], None]


@dataclass(frozen=True)
class DemoFault:
    """One job. `state`: its final state in Slurm. `parent`: script of a job that it depends on (--dependency)."""

    name: str
    story: str
    script: str
    expected: ExpectedVerdict
    state: str
    options: tuple[str, ...] = ()
    nodes: str = "12"
    """Numbers of the nodes that it may use."""
    inject: Injection | None = None
    parent: str = ""
    seconds: float = 150
    """Time within which the job ends."""


def signal_rank(rank: int, number: signal.Signals, after: str) -> Injection:
    """Send a signal to the process of a rank once the output contains a pattern."""

    def act(play: SubmittedFault) -> None:
        play.wait_output(after)
        os.kill(play.job.rank_pid(rank), number)

    return act


def cancel(after: str, seconds: float = 0.0) -> Injection:
    """`scancel` the job `seconds` after its output contains a pattern."""

    def act(play: SubmittedFault) -> None:
        play.wait_output(after)
        play.pause(seconds)
        play.cluster.ask("scancel", play.job.number)

    return act


def requeue(after: str) -> Injection:
    """`scontrol requeue`, as an administrator does it."""

    def act(play: SubmittedFault) -> None:
        play.wait_output(after)
        play.cluster.ask("scontrol", "requeue", play.job.number)

    return act


def preempt(after: str, node: int, gpus: int) -> Injection:
    """Submit a job of a higher partition that needs the GPUs of a node."""

    def act(play: SubmittedFault) -> None:
        play.wait_output(after)
        placement = (f"--nodelist={play.node(node)}", f"--gpus-per-node={gpus}")
        play.cluster.submit(play.stage, "sleep 3", "-p", "high", *placement, name="urgent")

    return act


def kill_node(after: str, node: int) -> Injection:
    """Kill a node: its daemons, its agent and all its processes at once."""

    def act(play: SubmittedFault) -> None:
        play.wait_output(after)
        play.agents[play.node(node)].kill()
        play.cluster.script("slurm-node", "kill", play.node(node))

    return act
