"""``sacct --json`` (and slurmdbd's REST answer): jobs with their steps inside."""

from __future__ import annotations

import re

from trackside.model import Position, Record
from trackside.read import slurm, slurm_json
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.slurm_json import Object, dig, number, text, when

_IDS = (
    ("job_id",),
    ("array", "job_id"),
    ("array", "task_id"),
    ("array", "task"),
    ("het", "job_id"),
    ("het", "job_offset"),
)
"""Where a job's numbers stand, in the order of :func:`slurm_json.job_ids`."""


def _sniff(source: Source) -> Match | None:
    if (
        slurm_json.looks_like(source, "jobs", "allocation_nodes", "derived_exit_code")
        and '"job_state"' not in source.text
    ):
        if '"accrue_time"' in source.text or '"batch_flag"' in source.text:
            return None
        return Match(0.95, "sacct --json")
    empty = slurm_json.looks_like(source, "jobs", "meta") and re.search(
        r'openapi\\?/(?:slurm)?dbv?|"command"\s*:\s*\[\s*"[^"]*sacct"', source.text
    )
    return Match(0.9, "sacct --json") if empty else None


def _read(source: Source, sink: Sink) -> Result:
    answer = slurm_json.document(source)
    jobs = slurm_json.objects(answer, "jobs")
    steps = 0
    for ordinal, job in enumerate(jobs, 1):
        fields = _job(job)
        told = f"job {fields.get('id')} {fields.get('state')}"
        sink.record(Record("job", Position(source.path, ordinal), "scheduler", fields, told))
        for step in job.get("steps") or ():
            if isinstance(step, dict):
                steps += 1
                fields_ = _step(step, str(fields.get("id")))
                told = f"step {fields_.get('id')} {fields_.get('state')}"
                sink.record(Record("step", Position(source.path, steps), "scheduler", fields_, told))
    return Result(len(jobs) + steps) if jobs else Result(0, "empty", "no job in it")


def _state(value: object) -> str | None:
    return slurm.state_among(slurm_json.words(value))


def _exit(value: object, state: str | None) -> tuple[int | None, int | None]:
    """Before 23.11 the code of a job that failed is always given as a success (status is a string there)."""
    if dig(value, "status") == "SUCCESS" and state in ("FAILED", "REQUEUED", "SPECIAL_EXIT"):
        return None, None
    return slurm_json.exit_of(value)


def _job(job: Object) -> dict[str, slurm.Field]:
    times = job.get("time")
    state = _state(dig(job, "state", "current"))
    code, signal = _exit(job.get("exit_code"), state)
    derived, _ = slurm_json.exit_of(job.get("derived_exit_code"))
    nodes = slurm_json.nodes(job.get("nodes"))
    line = text(job.get("submit_line"))
    dependency = slurm.dependency_of(line)
    n_nodes, n_cpus = number(job.get("allocation_nodes")), number(dig(job, "required", "CPUs"))
    return slurm.job_fields(
        {
            **slurm_json.job_ids(*(dig(job, *where) for where in _IDS)),
            "name": text(job.get("name")),
            "user": text(job.get("user")) or text(dig(job, "association", "user")),
            "cluster": text(job.get("cluster")),
            "partition": text(job.get("partition")),
            "state": state,
            "cancelled_by": text(job.get("kill_request_user")) if state == "CANCELLED" else None,
            "exit_code": code,
            "signal": signal,
            "derived_exit_code": derived if dig(job, "derived_exit_code", "status") != "SUCCESS" else None,
            "reason": text(dig(job, "state", "reason")),
            "submit": when(dig(times, "submission")),
            "eligible": when(dig(times, "eligible")),
            "start": when(dig(times, "start")),
            "end": when(dig(times, "end")),
            "elapsed_s": _float(number(dig(times, "elapsed"))),
            "time_limit_s": slurm_json.minutes(dig(times, "limit")),
            "nodes": nodes,
            "failed_node": text(job.get("failed_node")),
            "restarts": number(job.get("restart_cnt")),
            "n_nodes": n_nodes or len(nodes) or None,
            "n_cpus": n_cpus,
            "n_gpus": slurm_json.gpus(dig(job, "tres", "allocated")) or slurm_json.gpus(dig(job, "tres", "requested")),
            "dependency": dependency,
            "parents": slurm.parents_of(dependency),
            "submit_line": line,
            "work_dir": text(job.get("working_directory")),
            "std_out": text(job.get("stdout_expanded")) or text(job.get("stdout")),
            "std_err": text(job.get("stderr_expanded")) or text(job.get("stderr")),
            "req_mem_bytes": _memory(job, n_nodes, n_cpus),
            "source": "sacct",
        }
    )


def _memory(job: Object, n_nodes: int | None, n_cpus: int | None) -> int | None:
    """Memory asked for, MiB in the answer; ``memory`` alone (22.05) doesn't say of what, and is left out."""
    node, cpu = (number(dig(job, "required", f"memory_per_{what}")) for what in ("node", "cpu"))
    if node and n_nodes:
        return node * n_nodes << 20
    return cpu * n_cpus << 20 if cpu and n_cpus else None


def _step(step: Object, job: str) -> dict[str, slurm.Field]:
    state = _state(step.get("state"))
    code, signal = _exit(step.get("exit_code"), state)
    name = dig(step, "step", "id")
    if isinstance(name, dict):
        name = name.get("step_id")
    part = str(name if isinstance(name, str) else number(name)).rpartition(".")[2]
    peaks = [count for kind, _, count in slurm_json.tres(dig(step, "tres", "requested", "max")) if kind == "mem"]
    times = step.get("time")
    return slurm.job_fields(
        {
            "id": f"{job}.{part}",
            "job": job,
            "name": text(dig(step, "step", "name")),
            "state": state,
            "exit_code": code,
            "signal": signal,
            "start": when(dig(times, "start")),
            "end": when(dig(times, "end")),
            "elapsed_s": _float(number(dig(times, "elapsed"))),
            "nodes": slurm_json.nodes(step.get("nodes")),
            "n_tasks": number(dig(step, "tasks", "count")),
            "max_rss_bytes": max(peaks, default=None) or None,
            "source": "sacct",
        }
    )


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


FORMAT = Format("sacct-json", "Slurm accounting, sacct --json", "scheduler", _sniff, _read)
