"""Slurm's controller: changes of jobs and nodes, the queue, and the scheduler's statistics.

One reading costs the controller four requests: one for all jobs, two for all nodes (Slurm reports the GPUs of jobs per
node), one for the partitions; and once a minute one for its statistics. Accounting is queried after jobs end, for many
at once. After a slow reading the next one is delayed: requests take at most a twentieth of the time while a reading
takes up to 15 s; slower readings begin every five minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.slurm.accounting import Accounting
from trackside.agent.slurm.command import CommandFailed, Commands, blocks
from trackside.agent.slurm.daemon_log import DaemonLog
from trackside.agent.slurm.jobs import JobChangeTracker, JobEvent, Queue
from trackside.agent.slurm.nodes import NodeChangeTracker
from trackside.agent.slurm.statistics import statistics
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading
from trackside.catalog.job_states import is_over

UNIT = "slurmctld"
RECORD_NAME = "scontrol"
"""``filename`` or ``unit`` label of the lines of jobs and nodes: the command whose record they contain."""
INTERVAL_RATIO = 20.0
"""Time from the start of a slow reading to that of the next, as a multiple of its duration."""
MAX_INTERVAL_S = 300.0
"""Limit of that time, and of the time from a failed reading to the next."""
MAX_COMMAND_TIMEOUT_S = 240.0
"""Less than the source's ``timeout_s``, so that a command that hangs is stopped before the source counts as hung."""


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """The table ``[collect.controller]``. Raises ValueError for invalid values."""

    bin: str = ""
    """The folder of Slurm's commands; empty: PATH."""
    conf: str = ""
    """Path of slurm.conf; empty: the default one."""
    log: str = ""
    """Path of slurmctld's log; empty: as in ``scontrol show config``."""
    accounting: bool = True
    """Whether to query accounting for the steps and exit codes of ended jobs."""
    statistics_s: float = 60.0
    """Interval of the scheduler's statistics."""
    command_timeout_s: float = 60.0
    """Seconds until a command is stopped."""

    def __post_init__(self) -> None:
        if not 1.0 <= self.command_timeout_s <= MAX_COMMAND_TIMEOUT_S:
            raise ValueError(
                f"command_timeout_s is {self.command_timeout_s:g}; it must be 1 to {MAX_COMMAND_TIMEOUT_S:g}"
            )
        if not 5.0 <= self.statistics_s <= 86_400.0:
            raise ValueError(f"statistics_s is {self.statistics_s:g}; it must be 5 to 86400")


class _Controller(Collector):
    def __init__(
        self, commands: Commands, log: DaemonLog | None, options: ControllerOptions, clock: Callable[[], float]
    ) -> None:
        self._commands, self._log, self._options, self._clock = commands, log, options, clock
        self._jobs, self._nodes = JobChangeTracker(), NodeChangeTracker()
        self._accounting = Accounting(commands) if options.accounting and commands.has("sacct") else None
        self._next, self._next_statistics, self._failures = 0.0, 0.0, 0
        self._queue: Queue | None = None

    def collect(self, reading: Reading) -> None:
        if self._log is not None:
            self._log.collect(reading)
        start_s = self._clock()
        if start_s < self._next:
            return
        try:
            self._read_all(reading)
            self._failures = 0
        except CommandFailed as error:
            self._failures += 1
            reading.warnings.append(str(error))
        duration_s = self._clock() - start_s
        interval_s = duration_s * INTERVAL_RATIO if duration_s > 0.5 else 0.0
        if self._failures:
            interval_s = max(interval_s, 10.0 * 2.0 ** min(self._failures, 5))
        self._next = start_s + min(interval_s, MAX_INTERVAL_S)
        reading.sample("slurm_controller_up", not self._failures)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _read_all(self, reading: Reading) -> None:
        """Read everything that is due. Raises CommandFailed."""
        now = reading.time_ns / 1e9
        events: list[JobEvent] = []
        try:
            queue, without_end = self._jobs.update(self._blocks("JobId", "-a", "-d", "show", "jobs"), now, events)
        finally:
            self._add_events(reading, events, now)
        self._count(reading, queue)
        changes = self._nodes.update(self._blocks("NodeName", "-a", "show", "nodes"), now, MAX_INTERVAL_S)
        for event in changes:
            reading.line(event.text, _ns(event.time), node=event.node, unit=RECORD_NAME)
        self._count_nodes(reading)
        if now >= self._next_statistics:
            self._next_statistics = now + self._options.statistics_s
            for name, value, labels in statistics(self._commands.lines("sdiag")):
                reading.sample(name, value, **labels)
        if self._accounting is not None:
            for number in without_end:
                self._accounting.add(number, now)
            try:
                self._add_events(reading, self._accounting.query(now), now)
            except CommandFailed as error:  # the controller's data is still valid
                reading.warnings.append(str(error))

    def _blocks(self, begin: str, *arguments: str) -> Iterator[Sequence[str]]:
        return blocks(self._commands.lines("scontrol", *arguments), begin)

    def _add_events(self, reading: Reading, events: Iterable[JobEvent], now: float) -> None:
        for event in events:
            reading.line(event.text, _ns(event.time), slurm_job_id=event.job, filename=RECORD_NAME)
            if self._accounting is not None and event.verb in ("ended", "requeued"):
                self._accounting.add(event.number, now, is_last=event.verb == "ended")

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
    options: ControllerOptions = context.options
    commands = Commands(options.bin, options.conf, options.command_timeout_s)
    if not commands.has("scontrol"):
        raise AgentSourceUnavailable(
            "scontrol is not installed", "run the agent where slurmctld runs, or set collect.controller.bin"
        )
    path = options.log or _log_path(commands)
    return _Controller(commands, DaemonLog(Path(path), UNIT) if path else None, options, time.monotonic)


def _log_path(commands: Commands) -> str:
    """Path of slurmctld's log; empty if it writes to the journal. Raises AgentSourceUnavailable."""
    try:
        pairs = [line.partition("=") for line in commands.lines("scontrol", "show", "config")]
    except CommandFailed as error:
        raise AgentSourceUnavailable(str(error), "check that slurmctld is up and that slurm.conf names it") from error
    log_path = next((value.strip() for name, _, value in pairs if name.strip() == "SlurmctldLogFile"), "")
    return log_path if log_path.startswith("/") else ""


SOURCE = AgentSource(
    id="controller",
    title="Slurm controller: jobs, nodes, queue, scheduler",
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
    lines="slurmctld's log, and each change of a job or a node with Slurm's record of it",
    timeout_s=300.0,
    on=False,
    needs="read access to slurmctld's log, and Slurm operator rights if PrivateData hides jobs",
    options=ControllerOptions,
)
