"""Slurm's reasons for pending jobs: what each means, and who can resolve it.

Names: squeue's manual and Slurm's page of job reason codes. The limits of accounts and QOS follow one pattern, so their
texts are composed from its parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Remedy = Literal["wait", "change", "release", "ask"]
"""wait: the job starts by itself. change: it never starts as submitted. release: its owner must release it. ask: an
operator must act."""


@dataclass(frozen=True, slots=True)
class PendingReason:
    """One reason; ``meaning`` completes the sentence "That means that ..."."""

    meaning: str
    remedy: Remedy = "wait"


REASONS: Mapping[str, PendingReason] = {
    "Priority": PendingReason("jobs with higher priority are waiting for the same nodes"),
    "Resources": PendingReason("it is next in line, but not enough of the requested resources are free"),
    "Dependency": PendingReason("a job that it depends on has not ended yet"),
    "DependencyNeverSatisfied": PendingReason(
        "a job that it depends on did not end as required, so it never starts", "change"
    ),
    "BeginTime": PendingReason("its start time is in the future (sbatch --begin, or the delay after a requeue)"),
    "JobHeldUser": PendingReason("its owner holds it", "release"),
    "JobHeldAdmin": PendingReason("an administrator holds it", "ask"),
    "JobHoldMaxRequeue": PendingReason("it was requeued so often that Slurm holds it", "ask"),
    "JobArrayTaskLimit": PendingReason("the maximum number of its array tasks is running (sbatch --array=...%N)"),
    "Licenses": PendingReason("a license that it requests is in use"),
    "Reservation": PendingReason("the reservation that it requests has not begun, or is full"),
    "ReservationDeleted": PendingReason("the reservation that it requests no longer exists", "change"),
    "ReqNodeNotAvail": PendingReason("a node that it needs is down, drained or reserved, possibly for maintenance"),
    "NodeDown": PendingReason("a node that it needs is down", "ask"),
    "PartitionDown": PendingReason("its partition is down, so no jobs start in it", "ask"),
    "PartitionInactive": PendingReason("its partition is inactive, so no jobs start in it", "ask"),
    "PartitionNodeLimit": PendingReason("it requests more or fewer nodes than its partition allows or has", "change"),
    "PartitionTimeLimit": PendingReason("it requests more time than its partition allows", "change"),
    "PartitionConfig": PendingReason("its partition does not allow what it requests", "change"),
    "TimeLimit": PendingReason("it requests more time than it may have", "change"),
    "BadConstraints": PendingReason("no node can satisfy its request", "change"),
    "AccountNotAllowed": PendingReason("its account may not use its partition", "change"),
    "QOSNotAllowed": PendingReason("its QOS may not be used with its account or partition", "change"),
    "InvalidAccount": PendingReason("its account is not valid", "change"),
    "InvalidQOS": PendingReason("its QOS is not valid", "change"),
    "QOSJobLimit": PendingReason("its QOS has reached its limit of concurrent jobs"),
    "QOSResourceLimit": PendingReason("its QOS has reached its limit of concurrent resources"),
    "QOSTimeLimit": PendingReason("its QOS has used up its time limit"),
    "AssociationJobLimit": PendingReason("its account has reached its limit of concurrent jobs"),
    "AssociationResourceLimit": PendingReason("its account has reached its limit of concurrent resources"),
    "AssociationTimeLimit": PendingReason("its account has used up its time limit"),
    "QOSUsageThreshold": PendingReason("its account has used so much that the QOS accepts no jobs from it for now"),
    "Cleaning": PendingReason("it was requeued, and its last attempt is still being cleaned up"),
    "Prolog": PendingReason("the prolog is still running on its nodes"),
    "JobLaunchFailure": PendingReason("it could not be launched", "ask"),
    "launch failed requeued held": PendingReason("it could not be launched, was requeued, and is held", "ask"),
    "SystemFailure": PendingReason("Slurm, a file system or the network failed", "ask"),
    "SchedDefer": PendingReason("it requested an immediate start, which the scheduler defers"),
    "BurstBufferResources": PendingReason("not enough of the burst buffer is free"),
    "BurstBufferStageIn": PendingReason("its files are still being copied into the burst buffer"),
    "FedJobLock": PendingReason("the clusters of the federation are deciding which one starts it"),
}

_LIMIT = re.compile(
    r"(?P<of>QOS|Assoc)?(?P<kind>Grp|Max|Min)(?P<what>Cpu|CPU|G[Rr][Ee][Ss]|Node|Mem|Billing|SubmitJobs?|Jobs?|Wall|Energy|"
    r"License|BB)(?:s|ory|Duration)?(?P<minutes>(?:Run)?Minutes)?(?:Per(?P<per>Job|Node|User|Account))?(?:Limit)?\Z"
)
_OWNERS = {"QOS": "its QOS", "Assoc": "its account", None: "its account or QOS"}
_RESOURCES = {
    "cpu": "CPUs", "gres": "GPUs or other generic resources", "node": "nodes", "mem": "memory", "billing": "billing units",
    "submitjob": "submitted jobs", "submitjobs": "submitted jobs", "job": "jobs", "jobs": "jobs", "wall": "time", "energy": "energy",
    "license": "licenses", "bb": "burst buffer",
}  # fmt: skip


def pending_reason(name: str) -> PendingReason | None:
    """The meaning of a reason as printed by squeue, scontrol or sacct; None for an unknown reason."""
    name = name.strip().strip("()").replace("_", " ")
    reason = REASONS.get(name) or REASONS.get(re.split(r"[,:]", name, maxsplit=1)[0].strip())
    if reason is not None:
        return reason
    if name.lower().startswith("nodes required for job are down"):
        return REASONS["ReqNodeNotAvail"]
    match = _LIMIT.match(name)
    return None if match is None else _limit(match)


def _limit(match: re.Match[str]) -> PendingReason:
    owner, resource = _OWNERS[match["of"]], _RESOURCES[match["what"].lower()]
    if match["kind"] == "Min":
        return PendingReason(f"it requests fewer {resource} than {owner} requires per job", "change")
    resource = f"minutes of {resource}" if match["minutes"] else resource
    if match["kind"] == "Max" and match["per"] in ("Job", "Node", None) and resource != "jobs":
        return PendingReason(f"it requests more {resource} than {owner} allows per job", "change")
    if match["kind"] == "Grp":
        return PendingReason(f"the jobs of {owner} together have reached the limit of {resource}")
    jobs = "this account's jobs" if match["per"] == "Account" else "this user's jobs"
    return PendingReason(f"{jobs} have reached the limit of {resource} that {owner} allows at once")
