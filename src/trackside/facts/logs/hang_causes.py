"""Reports of machines and ranks that explain why a rank is absent from a collective.

A file server that does not respond, a process in uninterruptible sleep, a link that went down; a data-loader worker
that died, or a rank's own error that the waiting ranks did not print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, derived
from trackside.facts.fact import fact
from trackside.facts.logs.exceptions import Exceptions
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole
from trackside.query import events

BLOCKING_REASONS = ("frozen", "unreachable", "stale", "io_error")
"""Reasons of storage faults that make a process wait forever."""

STUCK_IN_IO = Sentence("a process is stuck in uninterruptible I/O (state D), in the file system or a driver: {line}")
WAIT_FOR_STORAGE = Sentence("processes on a host wait for storage: {line}")
LINK_DOWN = Sentence("a network link went down: {line}")
MACHINE_HEADLINES = {
    STUCK_IN_IO: Sentence("hung in a collective: a process is stuck in uninterruptible I/O (state D)"),
    WAIT_FOR_STORAGE: Sentence("hung in a collective: a process waits for storage that does not answer"),
    LINK_DOWN: Sentence("hung in a collective: a network link went down"),
}
"""The machine's reason -> the answer in one clause."""
WORKER_DIED = Sentence("the trigger: a data-loader worker of {ranks} died: {line}")
SOME_WORKER_DIED = Sentence("the likely trigger: a data-loader worker died: {line}")
RANK_RAISED = Sentence("the trigger: {ranks} raised {type}")
HUNG_FOR_WORKER = Sentence("hung in a collective: a data-loader worker died, and the rest waits for its rank")
MAYBE_HUNG_FOR_WORKER = Sentence("hung in a collective, most likely because a data-loader worker died")
HUNG_FOR_ERROR = Sentence("hung in a collective: one rank raised {type}, and the rest waits for it")

FIND_WORKER_DEATH = Sentence(
    "find what killed the data-loader worker (host memory and /dev/shm first), then raise --mem or "
    "/dev/shm, or use fewer workers"
)
FIX_ERROR = Sentence("fix the error that this rank raised: the others only waited for it")


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why ranks were absent, by their own output."""

    claim: Claim
    remedy: Sentence
    headline: Claim
    """The answer, with this reason."""


@dataclass(frozen=True, eq=False)
class HangCauses:
    """Possible reasons why a rank is absent."""

    evidence: Evidence
    exceptions: Exceptions

    @cached_property
    def stuck_process(self) -> Event | None:
        """A process in uninterruptible sleep, if few are: then it blocks the others."""
        processes = self.evidence["processes"]
        stuck = [row for row in processes.events if row.get("state") == "D"]
        return stuck[0] if stuck and len(stuck) * 2 <= len(processes) else None

    @cached_property
    def machine(self) -> Claim | None:
        """The reason that the machines report."""
        storage, processes = self.evidence["storage"], self.evidence["processes"]
        for row in storage.events:
            if row.get("reason") in BLOCKING_REASONS:
                return WAIT_FOR_STORAGE(line=storage.value(row, "text"))
        if self.stuck_process is not None:
            return STUCK_IN_IO(line=processes.value(self.stuck_process, "text"))
        tasks, links = self.evidence["tasks"], self.evidence["links"]
        for row in tasks.events:
            return WAIT_FOR_STORAGE(line=tasks.value(row, "text"))
        for row in links.events:
            if row.get("state") == "down":
                return LINK_DOWN(line=links.value(row, "text"))
        return None

    def trigger(self, ranks: Sequence[int]) -> Trigger | None:
        """The reason in the absent ranks' own output: a loader worker that died, or an error."""
        workers = self.evidence["workers"]
        for row in workers.events:
            if row.role is EventRole.ROOT and (row.rank is None or not ranks or row.rank in ranks):
                line = workers.value(row, "text")
                if row.rank is None:
                    return Trigger(SOME_WORKER_DIED(line=line), FIND_WORKER_DEATH, MAYBE_HUNG_FOR_WORKER())
                died = WORKER_DIED(line=line, ranks=derived((row.rank,), line))
                return Trigger(died, FIND_WORKER_DEATH, HUNG_FOR_WORKER())
        frame = self.exceptions.frame
        for row in frame.events:
            if row.role is EventRole.ROOT and row.rank in ranks and row.get("about") != "collective":
                kind = frame.value(row, "type")
                raised_on = RANK_RAISED(type=kind, ranks=derived((row.rank,), kind))
                return Trigger(raised_on, FIX_ERROR, HUNG_FOR_ERROR(type=kind))
        return None


@fact({
    "storage": events("storage_fault"),
    "tasks": events("hung_task"),
    "links": events("link_down"),
    "processes": events("process_state"),
    "workers": events("dataloader_death"),
})  # fmt: skip
def hang_causes(evidence: Evidence, exceptions: Exceptions) -> HangCauses:
    """Needs no particular input; empty if no line of the kernel, the agent or a rank reports one."""
    return HangCauses(evidence, exceptions)
