"""Reports of machines and ranks that explain why a rank is absent from a collective.

A file server that does not respond, a process in uninterruptible sleep, a link that went down; a data-loader worker
that died, or a rank's own error that the waiting ranks did not print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Value, derived
from trackside.facts.fact import fact
from trackside.facts.hardware.host_memory import NO_KILL_COUNTED, HostMemory
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.oom_kills import OomKills
from trackside.facts.logs.system_log import SHOW_SYSTEM_LOG, system_log_values
from trackside.finding import Action, Claim, Sentence, action
from trackside.model import Event, EventRole, Run
from trackside.query import events

BLOCKING_REASONS = ("frozen", "unreachable", "stale", "io_error")
"""Reasons of storage faults that make a process wait forever."""

STUCK_IN_IO = Sentence("a process is stuck in uninterruptible I/O (state D), in the file system or a driver: {line}")
SERVER_SILENT = Sentence("a file server did not answer {host}: {line}")
FILE_SYSTEM_ERROR = Sentence("{host} reported a file system error: {line}")
TASK_BLOCKED = Sentence("{task} on {host} was blocked in the kernel: {line}")
LINK_DOWN = Sentence("a network link went down: {line}")
WAITS_FOR_STORAGE = Sentence("hung in a collective: a process waits for storage that does not answer")
WITH_STORAGE_ERROR = Sentence("hung in a collective, most likely because of a file system error on a host")
PROCESS_BLOCKED = Sentence("hung in a collective: a process is blocked in the kernel")
PROCESS_STUCK = Sentence("hung in a collective: a process is stuck in uninterruptible I/O (state D)")
LINK_WENT_DOWN = Sentence("hung in a collective: a network link went down")
WORKER_DIED = Sentence("the trigger: a data-loader worker of {ranks} died: {line}")
SOME_WORKER_DIED = Sentence("the likely trigger: a data-loader worker died: {line}")
RANK_RAISED = Sentence("the trigger: {ranks} raised {type}")
HUNG_FOR_WORKER = Sentence("hung in a collective: a data-loader worker died, and the rest wait for its rank")
MAYBE_HUNG_FOR_WORKER = Sentence("hung in a collective, most likely because a data-loader worker died")
HUNG_FOR_ERROR = Sentence("hung in a collective: one rank raised {type}, and the rest wait for it")

WORKER_REMEDIES = {
    "killed": Sentence(
        "find what killed the data-loader worker; if host memory ran out, raise --mem, or use fewer workers"
    ),
    "bus_error": Sentence("raise the size of /dev/shm (--shm-size of a container), or use fewer data-loader workers"),
    "segfault": Sentence(
        "run once without worker processes (num_workers set to zero): the crash is then in the main process"
    ),
    "exited": Sentence(
        "run once without worker processes (num_workers set to zero): the main process then prints what failed"
    ),
}
"""What ended a data-loader worker -> what to do about it."""
USE_LESS_MEMORY = Sentence("raise --mem, or use less host memory: fewer data-loader workers, smaller prefetch")
FIND_SENDER = Sentence(
    "find what sent SIGKILL to {process}, a person or a service on its node, as the kernel killed no process for lack "
    "of memory: the node's system log shows who was logged in and which services stopped (as root, or ask an "
    "administrator)"
)
NO_KILL_IN_KERNEL_LOG = Sentence("the kernel log that was given has no OOM kill of the job")
FIX_ERROR = Sentence("fix the error that this rank raised: the others only waited for it")
SIGKILL = 9


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Why ranks were absent, as the machines report it."""

    claims: tuple[Claim, ...]
    headline: Claim
    """The answer, with this reason."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why ranks were absent, by their own output."""

    claims: tuple[Claim, ...]
    remedy: Action
    headline: Claim
    """The answer, with this reason."""


@dataclass(frozen=True, eq=False)
class HangCauses:
    """Possible reasons why a rank is absent."""

    evidence: Evidence
    exceptions: Exceptions
    memory: HostMemory
    kills: OomKills
    run: Run

    @cached_property
    def stuck_process(self) -> Event | None:
        """A process in uninterruptible sleep, if few are: then it blocks the others."""
        processes = self.evidence["processes"]
        stuck = [row for row in processes.events if row.get("state") == "D"]
        return stuck[0] if stuck and len(stuck) * 2 <= len(processes) else None

    @cached_property
    def machine(self) -> MachineReport | None:
        """The reason that the machines report."""
        storage, processes, links = self.evidence["storage"], self.evidence["processes"], self.evidence["links"]
        for row in storage.events:
            if row.get("reason") in BLOCKING_REASONS:
                line = storage.value(row, "text")
                silent = row.get("reason") == "unreachable"
                blocked = tuple(self._blocked_tasks(row.node))[:1]
                claim = (SERVER_SILENT if silent else FILE_SYSTEM_ERROR)(host=_host(row, line), line=line)
                headline = WAITS_FOR_STORAGE if silent or blocked else WITH_STORAGE_ERROR
                return MachineReport((claim, *blocked), headline())
        if self.stuck_process is not None:
            return MachineReport((STUCK_IN_IO(line=processes.value(self.stuck_process, "text")),), PROCESS_STUCK())
        for claim in self._blocked_tasks():
            return MachineReport((claim,), PROCESS_BLOCKED())
        for row in links.events:
            if row.get("state") == "down":
                return MachineReport((LINK_DOWN(line=links.value(row, "text")),), LINK_WENT_DOWN())
        return None

    def _blocked_tasks(self, node: str | None = None) -> Iterator[Claim]:
        """The tasks that a kernel, or the one of ``node``, reports as blocked."""
        tasks = self.evidence["tasks"]
        for row in tasks.events:
            if node is None or row.node in (None, node):
                line = tasks.value(row, "text")
                task = derived(f"{row.get('comm')} (pid {row.get('pid')})", line)
                yield TASK_BLOCKED(task=task, host=_host(row, line), line=line)

    def trigger(self, ranks: Sequence[int]) -> Trigger | None:
        """The reason in the absent ranks' own output: a loader worker that died, or an error."""
        workers = self.evidence["workers"]
        for row in workers.events:
            if row.role is EventRole.ROOT and (row.rank is None or not ranks or row.rank in ranks):
                line, (remedy, because) = workers.value(row, "text"), self._worker_remedy(row)
                if row.rank is None:
                    return Trigger((SOME_WORKER_DIED(line=line), *because), remedy, MAYBE_HUNG_FOR_WORKER())
                died = WORKER_DIED(line=line, ranks=derived((row.rank,), line))
                return Trigger((died, *because), remedy, HUNG_FOR_WORKER())
        frame = self.exceptions.frame
        for row in frame.events:
            if row.role is EventRole.ROOT and row.rank in ranks and row.get("about") != "collective":
                kind = frame.value(row, "type")
                raised_on = RANK_RAISED(type=kind, ranks=derived((row.rank,), kind))
                return Trigger((raised_on,), action(FIX_ERROR), HUNG_FOR_ERROR(type=kind))
        return None

    def _worker_remedy(self, row: Event) -> tuple[Action, tuple[Claim, ...]]:
        """What to do about a worker that died, and what host memory has to do with a SIGKILL."""
        reason = str(row.get("reason") or "exited").replace("shm", "bus_error")
        remedy = action(WORKER_REMEDIES[reason])
        if row.get("signal") != SIGKILL:
            return remedy, ()
        shortage = self.memory.at(row, () if row.rank is None else (row.rank,))
        if shortage.kills or shortage.short or shortage.limit is not None:
            return action(USE_LESS_MEMORY), shortage.claims
        in_log = self.kills.none_in_kernel_log(row)
        counted = self.memory.counter_evidence if self.memory.counts_every_node else ()
        because = tuple(claim for claim in counted if claim.sentence is NO_KILL_COUNTED)
        because = because or (() if in_log is None else (NO_KILL_IN_KERNEL_LOG(count=in_log),))
        if not because:
            return remedy, ()
        line = self.evidence["workers"].value(row, "text")
        process = derived(f"data-loader worker {row.get('pid')}", line)
        if row.time is None:
            return action(FIND_SENDER, process=process), because
        values = system_log_values(row.time, row.node, self.run, line)
        return action(FIND_SENDER, *SHOW_SYSTEM_LOG, process=process, **values), because


def _host(row: Event, line: Value) -> Value:
    """The node of a line, as far as it is known."""
    return derived(row.node or "a host of the run", line)


@fact({
    "storage": events("storage_fault"),
    "tasks": events("hung_task"),
    "links": events("link_down"),
    "processes": events("process_state"),
    "workers": events("dataloader_death"),
})  # fmt: skip
def hang_causes(
    evidence: Evidence, exceptions: Exceptions, memory: HostMemory, kills: OomKills, run: Run
) -> HangCauses:
    """Needs no particular input; empty if no line of the kernel, the agent or a rank reports one."""
    return HangCauses(evidence, exceptions, memory, kills, run)
