"""All kinds of records: plane, fields and meaning. Readers may set only these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackside.model import Plane


@dataclass(frozen=True, slots=True)
class RecordKind:
    """``fields``: name -> meaning and unit; times are POSIX seconds."""

    meaning: str
    plane: Plane
    fields: Mapping[str, str]


_EXIT = {
    "exit_code": "exit code as recorded (sacct before 25.11 subtracts 128 from codes above 127)",
    "signal": "signal number; 0 when none",
}

RECORDS: Mapping[str, RecordKind] = {
    "job": RecordKind(
        "one attempt of a job as recorded by the scheduler (one row per attempt and source)",
        "scheduler",
        {
            "id": "job id as users write it (array tasks 60_3, het parts 73+0)",
            "raw_id": "numeric id",
            "array_id": "id of the array, if any",
            "name": "job name",
            "user": "user name",
            "uid": "numeric user id",
            "cluster": "cluster",
            "partition": "partition",
            "state": "base state: COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, PREEMPTED, OUT_OF_MEMORY, REQUEUED, RUNNING, PENDING, DEADLINE, BOOT_FAIL, ...",
            "cancelled_by": "uid or user of 'CANCELLED by'",
            **_EXIT,
            "derived_exit_code": "highest exit code of the steps",
            "reason": "reason as recorded",
            "submit": "time",
            "eligible": "time",
            "start": "time",
            "zoned": "true if the start gives its time zone, or is POSIX seconds",
            "end": "time",
            "elapsed_s": "seconds",
            "time_limit_s": "seconds",
            "nodes": "tuple of node names, expanded",
            "failed_node": "node that failed, where recorded",
            "restarts": "restart count",
            "requeue": "true when the job may be requeued",
            "n_nodes": "nodes",
            "n_tasks": "tasks",
            "n_cpus": "CPUs",
            "n_gpus": "total GPUs allocated",
            "gpus": "tuple of the allocated GPUs as node:index, from scontrol show job -d",
            "dependency": "as recorded, e.g. afterany:41",
            "parents": "tuple of job ids it depends on",
            "submit_line": "command line",
            "command": "script",
            "work_dir": "folder",
            "std_out": "path",
            "std_err": "path",
            "max_rss_bytes": "largest resident size",
            "req_mem_bytes": "memory requested",
            "source": "sacct, scontrol, squeue, jobcomp, slurmctld, seff, slurm_mail, lsf, pbs, grid_engine, htcondor, flux, kubernetes, sagemaker",
            "as_of": "time of the record, where known",
        },
    ),
    "step": RecordKind(
        "one step of a job",
        "scheduler",
        {
            "id": "full step id, e.g. 7.batch",
            "job": "job id",
            "name": "step name",
            "state": "base state",
            **_EXIT,
            "start": "time",
            "zoned": "true if the start gives its time zone, or is POSIX seconds",
            "end": "time",
            "elapsed_s": "seconds",
            "nodes": "tuple of node names",
            "n_tasks": "tasks",
            "max_rss_bytes": "largest resident size of a task",
            "source": "sacct, scontrol",
        },
    ),
    "node": RecordKind(
        "a node's state as recorded at one moment",
        "scheduler",
        {
            "name": "node",
            "state": "base state in lower case: idle, allocated, mixed, down, error, future, unknown",
            "flags": "tuple of flags: drain, not_responding, fail, maint, ...",
            "reason": "reason",
            "reason_time": "time",
            "reason_end": "time when the node was back in service, if the event is over",
            "reason_user": "who set it",
            "boot_time": "time",
            "as_of": "time of the record, where known",
            "source": "scontrol, sinfo, sacctmgr",
        },
    ),
    "flight_recorder": RecordKind(
        "one rank's dump of the collectives it entered",
        "collective",
        {
            "rank": "global rank",
            "job": "job, if known from the source of the dump",
            "world_size": "ranks, if known",
            "entries": "entries in the ring buffer",
            "version": "dump version",
            "nccl_version": "NCCL",
            "last_enqueued": "highest last-enqueued sequence number over the groups",
            "last_completed": "highest last-completed sequence number over the groups",
            "time_s": "time of the newest entry",
        },
    ),
    "flight_recorder_group": RecordKind(
        "one rank's position in one process group",
        "collective",
        {
            "rank": "global rank",
            "job": "job, if known from the source of the dump",
            "group": "group id or name",
            "description": "group description",
            "ranks": "tuple of member ranks",
            "last_enqueued": "sequence number",
            "last_started": "sequence number",
            "last_completed": "sequence number",
            "pending_op": "oldest collective not completed",
            "pending_seq": "its sequence number",
            "pending_state": "scheduled or started",
            "pending_since": "time it was enqueued",
        },
    ),
}
"""kind -> its definition"""
