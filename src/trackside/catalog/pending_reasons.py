"""Slurm's reasons for pending jobs: what each means, and who can resolve it.

Names: squeue's manual and Slurm's page of job reason codes. The limits of accounts and QOS follow one pattern, so their
texts are composed from its parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Remedy = Literal["wait", "mend", "release", "ask"]
"""wait: the job starts by itself. mend: it never starts as submitted. release: its owner must release it. ask: an
operator must act."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason; ``meaning`` completes the sentence "That means that ..."."""

    meaning: str
    remedy: Remedy = "wait"


REASONS: Mapping[str, Reason] = {
    "Priority": Reason("jobs with higher priority are waiting for the same nodes"),
    "Resources": Reason("it is next in line, but not enough of the requested resources are free"),
    "Dependency": Reason("a job that it depends on has not ended yet"),
    "DependencyNeverSatisfied": Reason("a job that it depends on did not end as required, so it never starts", "mend"),
    "BeginTime": Reason("its start time is in the future (sbatch --begin, or the delay after a requeue)"),
    "JobHeldUser": Reason("its owner holds it", "release"),
    "JobHeldAdmin": Reason("an administrator holds it", "ask"),
    "JobHoldMaxRequeue": Reason("it was requeued so often that Slurm holds it", "ask"),
    "JobArrayTaskLimit": Reason("the maximum number of its array tasks is running (sbatch --array=...%N)"),
    "Licenses": Reason("a license that it requests is in use"),
    "Reservation": Reason("the reservation that it requests has not begun, or is full"),
    "ReservationDeleted": Reason("the reservation that it requests no longer exists", "mend"),
    "ReqNodeNotAvail": Reason("a node that it needs is down, drained or reserved, possibly for maintenance"),
    "NodeDown": Reason("a node that it needs is down", "ask"),
    "PartitionDown": Reason("its partition is down, so no jobs start in it", "ask"),
    "PartitionInactive": Reason("its partition is inactive, so no jobs start in it", "ask"),
    "PartitionNodeLimit": Reason("it requests more or fewer nodes than its partition allows or has", "mend"),
    "PartitionTimeLimit": Reason("it requests more time than its partition allows", "mend"),
    "PartitionConfig": Reason("its partition does not allow what it requests", "mend"),
    "TimeLimit": Reason("it requests more time than it may have", "mend"),
    "BadConstraints": Reason("no node can satisfy its request", "mend"),
    "AccountNotAllowed": Reason("its account may not use its partition", "mend"),
    "QOSNotAllowed": Reason("its QOS may not be used with its account or partition", "mend"),
    "InvalidAccount": Reason("its account is not valid", "mend"),
    "InvalidQOS": Reason("its QOS is not valid", "mend"),
    "QOSJobLimit": Reason("its QOS has reached its limit of concurrent jobs"),
    "QOSResourceLimit": Reason("its QOS has reached its limit of concurrent resources"),
    "QOSTimeLimit": Reason("its QOS has used up its time limit"),
    "AssociationJobLimit": Reason("its account has reached its limit of concurrent jobs"),
    "AssociationResourceLimit": Reason("its account has reached its limit of concurrent resources"),
    "AssociationTimeLimit": Reason("its account has used up its time limit"),
    "QOSUsageThreshold": Reason("its account has used so much that the QOS accepts no jobs from it for now"),
    "Cleaning": Reason("it was requeued, and its last attempt is still being cleaned up"),
    "Prolog": Reason("the prolog is still running on its nodes"),
    "JobLaunchFailure": Reason("it could not be launched", "ask"),
    "launch failed requeued held": Reason("it could not be launched, was requeued, and is held", "ask"),
    "SystemFailure": Reason("Slurm, a file system or the network failed", "ask"),
    "SchedDefer": Reason("it requested an immediate start, which the scheduler defers"),
    "BurstBufferResources": Reason("not enough of the burst buffer is free"),
    "BurstBufferStageIn": Reason("its files are still being copied into the burst buffer"),
    "FedJobLock": Reason("the clusters of the federation are deciding which one starts it"),
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


def pending_reason(name: str) -> Reason | None:
    """The meaning of a reason as printed by squeue, scontrol or sacct; None for an unknown reason."""
    name = name.strip().strip("()").replace("_", " ")
    reason = REASONS.get(name) or REASONS.get(re.split(r"[,:]", name, maxsplit=1)[0].strip())
    if reason is not None:
        return reason
    if name.lower().startswith("nodes required for job are down"):
        return REASONS["ReqNodeNotAvail"]
    match = _LIMIT.match(name)
    return None if match is None else _limit(match)


def _limit(match: re.Match[str]) -> Reason:
    owner, resource = _OWNERS[match["of"]], _RESOURCES[match["what"].lower()]
    if match["kind"] == "Min":
        return Reason(f"it requests fewer {resource} than {owner} requires per job", "mend")
    resource = f"minutes of {resource}" if match["minutes"] else resource
    if match["kind"] == "Max" and match["per"] in ("Job", "Node", None) and resource != "jobs":
        return Reason(f"it requests more {resource} than {owner} allows per job", "mend")
    if match["kind"] == "Grp":
        return Reason(f"the jobs of {owner} together have reached the limit of {resource}")
    jobs = "this account's jobs" if match["per"] == "Account" else "this user's jobs"
    return Reason(f"{jobs} have reached the limit of {resource} that {owner} allows at once")
