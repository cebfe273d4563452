"""Why a job waits: Slurm's reasons, what each means, and what can be done about it.

Names: squeue's manual and Slurm's page of job reason codes. The limits of accounts and QOS follow one pattern and are
put together from its parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Remedy = Literal["wait", "mend", "release", "ask"]
"""wait: it starts by itself. mend: never as it was submitted. release: somebody holds it. ask: it takes an operator."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason; ``meaning`` completes "that means that"."""

    meaning: str
    remedy: Remedy = "wait"


REASONS: Mapping[str, Reason] = {
    "Priority": Reason("jobs of higher priority wait for the same nodes, and go first"),
    "Resources": Reason("it is its turn, and not enough of what it asks for is free"),
    "Dependency": Reason("a job that it waits for has not ended yet"),
    "DependencyNeverSatisfied": Reason(
        "a job that it waits for ended otherwise than it wants: it never starts", "mend"
    ),
    "BeginTime": Reason("the time at which it is to begin has not come (sbatch --begin, or the pause after a requeue)"),
    "JobHeldUser": Reason("its owner holds it back", "release"),
    "JobHeldAdmin": Reason("an administrator holds it back", "ask"),
    "JobHoldMaxRequeue": Reason("it was requeued so often that Slurm holds it back", "ask"),
    "JobArrayTaskLimit": Reason("as many tasks of its array run as may at once (sbatch --array=...%N)"),
    "Licenses": Reason("a licence that it asks for is in use"),
    "Reservation": Reason("the reservation that it asks for has not begun, or is full"),
    "ReservationDeleted": Reason("the reservation that it asks for is gone", "mend"),
    "ReqNodeNotAvail": Reason("a node that it needs is down, drained or reserved, maybe for maintenance"),
    "NodeDown": Reason("a node that it needs is down", "ask"),
    "PartitionDown": Reason("its partition is down: jobs of it don't start", "ask"),
    "PartitionInactive": Reason("its partition is inactive: jobs of it don't start", "ask"),
    "PartitionNodeLimit": Reason("it asks for more or fewer nodes than its partition allows or has", "mend"),
    "PartitionTimeLimit": Reason("it asks for more time than its partition allows", "mend"),
    "PartitionConfig": Reason("what it asks for is not what its partition allows", "mend"),
    "TimeLimit": Reason("it asks for more time than it may have", "mend"),
    "BadConstraints": Reason("no node can meet what it asks for", "mend"),
    "AccountNotAllowed": Reason("its account may not use its partition", "mend"),
    "QOSNotAllowed": Reason("its QOS may not be used with its account or partition", "mend"),
    "InvalidAccount": Reason("its account is not valid", "mend"),
    "InvalidQOS": Reason("its QOS is not valid", "mend"),
    "QOSJobLimit": Reason("its QOS has all the jobs that it may have at once"),
    "QOSResourceLimit": Reason("its QOS has all that it may have at once"),
    "QOSTimeLimit": Reason("its QOS has used up the time that it may use"),
    "AssociationJobLimit": Reason("its account has all the jobs that it may have at once"),
    "AssociationResourceLimit": Reason("its account has all that it may have at once"),
    "AssociationTimeLimit": Reason("its account has used up the time that it may use"),
    "QOSUsageThreshold": Reason("its account has used so much that the QOS takes no jobs of it for now"),
    "Cleaning": Reason("it was requeued, and its last attempt is still being cleaned up"),
    "Prolog": Reason("the prolog still runs on its nodes"),
    "JobLaunchFailure": Reason("it could not be launched", "ask"),
    "launch failed requeued held": Reason("it could not be launched, was requeued, and is held back", "ask"),
    "SystemFailure": Reason("Slurm, a file system or the network failed under it", "ask"),
    "SchedDefer": Reason("it asked to start at once, and the scheduler puts such starts off"),
    "BurstBufferResources": Reason("not enough of the burst buffer is free"),
    "BurstBufferStageIn": Reason("its files are still being staged into the burst buffer"),
    "FedJobLock": Reason("the clusters of the federation settle which one starts it"),
}

_LIMIT = re.compile(
    r"(?P<of>QOS|Assoc)?(?P<kind>Grp|Max|Min)(?P<what>Cpu|CPU|G[Rr][Ee][Ss]|Node|Mem|Billing|SubmitJobs?|Jobs?|Wall|Energy|"
    r"License|BB)(?:s|ory|Duration)?(?P<minutes>(?:Run)?Minutes)?(?:Per(?P<per>Job|Node|User|Account))?(?:Limit)?\Z"
)
_OF = {"QOS": "its QOS", "Assoc": "its account", None: "its account or QOS"}
_WHAT = {
    "cpu": "CPUs", "gres": "GPUs or other generic resources", "node": "nodes", "mem": "memory", "billing": "billing units",
    "submitjob": "submitted jobs", "submitjobs": "submitted jobs", "job": "jobs", "jobs": "jobs", "wall": "time", "energy": "energy",
    "license": "licences", "bb": "burst buffer",
}  # fmt: skip


def pending_reason(name: str) -> Reason | None:
    """What a reason means, as squeue, scontrol or sacct write it; None for one that isn't known."""
    name = name.strip().strip("()").replace("_", " ")
    known = REASONS.get(name) or REASONS.get(re.split(r"[,:]", name, maxsplit=1)[0].strip())
    if known is not None:
        return known
    if name.lower().startswith("nodes required for job are down"):
        return REASONS["ReqNodeNotAvail"]
    found = _LIMIT.match(name)
    return None if found is None else _limit(found)


def _limit(found: re.Match[str]) -> Reason:
    of, what = _OF[found["of"]], _WHAT[found["what"].lower()]
    if found["kind"] == "Min":
        return Reason(f"it asks for fewer {what} than {of} demands of a job", "mend")
    what = f"minutes of {what}" if found["minutes"] else what
    if found["kind"] == "Max" and found["per"] in ("Job", "Node", None) and what != "jobs":
        return Reason(f"it asks for more {what} than {of} allows one job", "mend")
    if found["kind"] == "Grp":
        return Reason(f"the jobs of {of} together have all the {what} that they may have")
    who = "this account's jobs" if found["per"] == "Account" else "this user's jobs"
    return Reason(f"{who} have all the {what} that {of} allows them at once")
