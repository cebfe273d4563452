"""Kills for lack of host memory, reported in logs: by the kernel, Slurm, or Ray's memory monitor.

A kill belongs to the run if its cgroup or step names the run's job, or names none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.restarts import LauncherRestarts
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole, Record, Run
from trackside.query import events, record

Scope = Literal["node", "job"]
SCOPES: Mapping[str, Scope] = {"host": "node", "cgroup": "job", "container": "job"}
"""Whose memory ran out, by the kernel's line; Slurm counts kills of either kind."""
Killer = Literal["ray", "kubelet", "slurm"]
KILLERS: Mapping[str, Killer] = {"ray": "ray", "kubelet": "kubelet"}
"""Scope of a report -> what killed the process, if not the kernel."""


HOST_MEMORY_RAN_OUT = Sentence("host memory ran out: {line}")
SLURM_COUNTED_KILLS = Sentence("Slurm counted OOM kills among the job's processes: {line}")
RAY_KILLED = Sentence("Ray killed workers because the node's memory was nearly full: {line}")
SLURM_KILLED = Sentence("Slurm killed a step that exceeded its memory limit: {line}")
CLAIMS: Mapping[Killer, Sentence] = {"ray": RAY_KILLED, "slurm": SLURM_KILLED}
"""What killed the process -> the claim; else that memory ran out."""


@dataclass(frozen=True, slots=True)
class OomReport:
    """A log line or record that the run ran out of host memory."""

    claim: Claim
    row: Event | Record

    @property
    def event(self) -> Event | None:
        """The row, if it is an event and not a record."""
        return self.row if isinstance(self.row, Event) else None


@dataclass(frozen=True, eq=False)
class OomKills:
    """Reports of kills for lack of host memory."""

    frame: Frame
    steps: Frame
    """The scheduler's records of steps."""
    ending: Ending
    restarts: LauncherRestarts
    run: Run

    @cached_property
    def own_kills(self) -> tuple[Event, ...]:
        """The kills of the run's processes."""
        return tuple(row for row in self.frame.events if belongs_to_run(row, self.run))

    def none_in_kernel_log(self, death: Event | None) -> Value | None:
        """The count, zero, of kills of the job that the kernel log of the process's node reports; None if there are
        some, or if no kernel log of its time was read."""
        if "kernel" not in self.frame.covered or self.own_kills or death is None:
            return None
        return self.frame.reduce("count") if not self.frame else None

    @cached_property
    def report(self) -> OomReport | None:
        """The first report that the run ran out of host memory, unless training continued after it."""
        for row in self.own_kills:
            if row.role is EventRole.ROOT and not self.restarts.has_recovered(row):
                by_slurm = row.get("scope") == "slurm" and row.get("count") is not None
                sentence, killer = SLURM_COUNTED_KILLS if by_slurm else HOST_MEMORY_RAN_OUT, _killer(row)
                sentence = sentence if killer is None else CLAIMS.get(killer, sentence)
                return OomReport(sentence(line=self.frame.value(row, "text")), row)
        job = self.ending.job
        if job is not None and job.get("state") == "OUT_OF_MEMORY":
            return OomReport(HOST_MEMORY_RAN_OUT(line=self.ending.jobs.value(job, "state")), job)
        for step in self.steps.records:
            if step.get("state") == "OUT_OF_MEMORY":
                return OomReport(HOST_MEMORY_RAN_OUT(line=self.steps.value(step, "state")), step)
        return None

    @property
    def killer(self) -> Killer | None:
        """What killed the process, by the report, if not the kernel, and if no kernel log names a kill."""
        event = None if self.report is None else self.report.event
        by_kernel = any(str(row.get("scope")) in SCOPES for row in self.own_kills)
        return None if event is None or by_kernel else _killer(event)

    @property
    def by_slurm(self) -> Event | None:
        """The report, if it is Slurm's count of kills in the job's cgroup."""
        event = None if self.report is None else self.report.event
        return event if event is not None and event.get("scope") == "slurm" else None

    def scope(self, nodes: tuple[str, ...]) -> Scope | None:
        """Whose memory ran out on these nodes (on any, if empty), if the kernel's lines agree."""
        rows = [row for row in self.own_kills if row.node is None or not nodes or row.node in nodes]
        scopes = {SCOPES[scope] for row in rows if (scope := str(row.get("scope"))) in SCOPES}
        return scopes.pop() if len(scopes) == 1 else None


@fact({"kills": events("oom_kill"), "steps": record("step")})
def oom_kills(evidence: Evidence, ending: Ending, restarts: LauncherRestarts, run: Run) -> OomKills:
    """Needs no particular input; empty if no line and no record reports a kill."""
    return OomKills(evidence["kills"], evidence["steps"], ending, restarts, run)


def _killer(row: Event) -> Killer | None:
    """What killed the process, by a report; None if the kernel did: Slurm's own daemon compares steps with their
    limits."""
    if row.get("scope") == "slurm":
        return "slurm" if "memory limit" in row.text else None
    return KILLERS.get(str(row.get("scope")))


def belongs_to_run(row: Event, run: Run) -> bool:
    """Whether a kill belongs to the run, if its cgroup or step names a job."""
    ids = {str(name) for name in (run.id, *run.aliases, *run.other_jobs) if name}
    step, cgroup = str(row.get("step") or ""), str(row.get("cgroup") or "")
    if "job_" in cgroup:
        return not ids or cgroup.split("job_", 1)[1].split("/")[0] in ids
    return not ids or not step[:1].isdigit() or step.split(".")[0].split("+")[0] in ids
