"""Slurm's controller: the life of every job, the state of every node, the queue, the scheduler's own statistics.

One look costs the controller four requests: for all jobs, for all nodes twice (the GPUs of jobs are told by node), for
the partitions; once a minute one more for its statistics. Accounting is asked after an end, for many jobs at once. A
look that takes long makes the next one come later, so that no more than a twentieth of the time is spent asking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.slurm.accounting import Accounting
from trackside.agent.slurm.command import CommandFailed, Commands, blocks
from trackside.agent.slurm.daemon_log import DaemonLog
from trackside.agent.slurm.jobs import Happening, Jobs, Queue
from trackside.agent.slurm.nodes import Nodes
from trackside.agent.slurm.statistics import statistics
from trackside.agent.source import Collector, Context, Reading, Source, Unavailable
from trackside.catalog.job_states import is_over

UNIT = "slurmctld"
SAID = "scontrol"
"""What the lines of jobs and nodes are called: it is that command's word that they carry."""
SHARE = 20.0
"""A look that took a second is followed by as many without one."""
MOST_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Options:
    """The table ``[collect.controller]``. Raises ValueError for what can't be meant."""

    bin: str = ""
    """The folder of Slurm's commands; empty: PATH."""
    conf: str = ""
    """slurm.conf; empty: the usual one."""
    log: str = ""
    """slurmctld's log; empty: where ``scontrol show config`` says."""
    accounting: bool = True
    """Whether accounting is asked for the steps and the exit codes of jobs that ended."""
    statistics_s: float = 60.0
    """How often the scheduler's statistics are asked for."""
    command_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.command_timeout_s <= 600.0:
            raise ValueError(f"command_timeout_s is {self.command_timeout_s:g}: 1 to 600 can be meant")
        if not 5.0 <= self.statistics_s <= 86_400.0:
            raise ValueError(f"statistics_s is {self.statistics_s:g}: 5 to 86400 can be meant")


class _Controller(Collector):
    def __init__(self, commands: Commands, log: DaemonLog | None, options: Options, clock: Callable[[], float]) -> None:
        self._commands, self._log, self._options, self._clock = commands, log, options, clock
        self._jobs, self._nodes = Jobs(), Nodes()
        self._accounting = Accounting(commands) if options.accounting and commands.has("sacct") else None
        self._next, self._next_statistics, self._failed = 0.0, 0.0, 0
        self._queue: Queue | None = None

    def collect(self, reading: Reading) -> None:
        if self._log is not None:
            self._log.collect(reading)
        begun = self._clock()
        if begun < self._next:
            return
        try:
            self._look(reading)
            self._failed = 0
        except CommandFailed as error:
            self._failed += 1
            reading.warnings.append(str(error))
        took = self._clock() - begun
        pause = took * SHARE if took > 0.5 else 0.0
        if self._failed:
            pause = max(pause, 10.0 * 2.0 ** min(self._failed, 5))
        self._next = begun + min(pause, MOST_WAIT_S)
        reading.sample("slurm_controller_up", not self._failed)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _look(self, reading: Reading) -> None:
        """All that is due. Raises CommandFailed."""
        now = reading.time_ns / 1e9
        happened: list[Happening] = []
        try:
            queue, lost = self._jobs.look(self._blocks("JobId", "-a", "-d", "show", "jobs"), now, happened)
        finally:
            self._tell(reading, happened, now)
        self._count(reading, queue)
        changes = self._nodes.look(self._blocks("NodeName", "-a", "show", "nodes"), now, MOST_WAIT_S)
        for each in changes:
            reading.line(each.text, _ns(each.time), node=each.node, unit=SAID)
        self._count_nodes(reading)
        if now >= self._next_statistics:
            self._next_statistics = now + self._options.statistics_s
            for name, value, labels in statistics(self._commands.lines("sdiag")):
                reading.sample(name, value, **labels)
        if self._accounting is not None:
            for number in lost:
                self._accounting.wants(number, now)
            try:
                self._tell(reading, self._accounting.ask(now), now)
            except CommandFailed as error:  # what the controller said stands
                reading.warnings.append(str(error))

    def _blocks(self, begin: str, *arguments: str) -> Iterator[Sequence[str]]:
        return blocks(self._commands.lines("scontrol", *arguments), begin)

    def _tell(self, reading: Reading, happened: Iterable[Happening], now: float) -> None:
        for each in happened:
            reading.line(each.text, _ns(each.time), slurm_job_id=each.job, filename=SAID)
            if self._accounting is not None and each.verb in ("ended", "requeued"):
                self._accounting.wants(each.number, now, last=each.verb == "ended")

    def _count(self, reading: Reading, queue: Queue) -> None:
        for (state, partition), count in queue.states.items():
            if not is_over(state):
                reading.sample("slurm_jobs", count, state=state.lower(), partition=partition)
        for (reason, partition), count in queue.reasons.items():
            reading.sample("slurm_jobs_pending", count, reason=reason, partition=partition)
        for partition, seconds in queue.oldest.items():
            reading.sample("slurm_pending_oldest_seconds", seconds, partition=partition)

    def _count_nodes(self, reading: Reading) -> None:
        for state, count in self._nodes.states().items():
            reading.sample("slurm_nodes", count, state=state)
        for node, available in self._nodes.available().items():
            reading.sample("slurm_node_available", available, node=node)
        for (node, state), seconds in self._nodes.seconds.items():
            reading.sample("slurm_node_state_seconds_total", seconds, node=node, state=state)


def _ns(seconds: float) -> int:
    return int(seconds * 1000) * 1_000_000


def _open(context: Context) -> Collector:
    options: Options = context.options
    commands = Commands(options.bin, options.conf, options.command_timeout_s)
    if not commands.has("scontrol"):
        raise Unavailable("scontrol is not here", "run it where slurmctld runs, or set collect.controller.bin")
    path = options.log or _log_path(commands)
    log = DaemonLog(Path(path), UNIT) if path else None
    if log is not None:
        try:
            with open(log.path, "rb"):
                pass
        except OSError as error:
            context.say(f"controller: {path} can't be read ({error.strerror}): jobs and nodes are still told of")
            log = None
    return _Controller(commands, log, options, time.monotonic)


def _log_path(commands: Commands) -> str:
    """Where slurmctld writes; empty: to the journal. Raises Unavailable."""
    try:
        pairs = [line.partition("=") for line in commands.lines("scontrol", "show", "config")]
    except CommandFailed as error:
        raise Unavailable(str(error), "is slurmctld up, and does slurm.conf here name it?") from error
    told = next((value.strip() for name, _, value in pairs if name.strip() == "SlurmctldLogFile"), "")
    return told if told.startswith("/") else ""


SOURCE = Source(
    id="controller",
    title="Slurm's controller: jobs, nodes, queue, scheduler",
    open=_open,
    metrics=(
        "slurm_accounting_queue",
        "slurm_agent_queue",
        "slurm_backfilled_jobs_total",
        "slurm_controller_up",
        "slurm_job_events_total",
        "slurm_jobs",
        "slurm_jobs_pending",
        "slurm_node_available",
        "slurm_node_state_seconds_total",
        "slurm_nodes",
        "slurm_pending_oldest_seconds",
        "slurm_rpc_seconds_total",
        "slurm_rpcs_total",
        "slurm_schedule_cycle_seconds",
        "slurm_schedule_cycles_total",
        "slurm_schedule_queue_jobs",
        "slurm_server_threads",
    ),
    lines="slurmctld's log, and every turn in the life of a job or a node, with Slurm's record of it",
    timeout_s=300.0,
    on=False,
    needs="to be one of Slurm's operators where PrivateData hides jobs; read access to slurmctld's log",
    options=Options,
)
