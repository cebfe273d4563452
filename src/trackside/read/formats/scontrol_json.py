"""What the controller answers in JSON: jobs, steps and nodes of scontrol, squeue, sinfo and slurmrestd."""

from __future__ import annotations

import re
from collections.abc import Callable

from trackside.catalog.job_states import ALIVE
from trackside.model import Position, Record
from trackside.read import slurm, slurm_json
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.slurm_json import Object, dig, number, text, when


def _sniffs(key: str, *words: str) -> Callable[[Source], Match | None]:
    def sniff(source: Source) -> Match | None:
        if slurm_json.looks_like(source, key, *words):
            return Match(0.95, f"Slurm {key} as JSON")
        # A failed or empty answer holds nothing but its meta.
        bare = slurm_json.looks_like(source, key, "meta") and re.search(r"openapi\\?/v|data_parser", source.text)
        return Match(0.85, f"Slurm {key} as JSON") if bare else None

    return sniff


def _read_jobs(source: Source, sink: Sink) -> Result:
    answer = slurm_json.document(source)
    jobs = slurm_json.objects(answer, "jobs")
    shared: dict[str, slurm.Field] = {
        "source": "scontrol" if slurm_json.command(answer) in ("scontrol", "show") else "squeue",
        "as_of": when(answer.get("last_update")),
    }
    for ordinal, job in enumerate(jobs, 1):
        fields = _job(job, shared)
        told = f"job {fields.get('id')} {fields.get('state')}"
        sink.record(Record("job", Position(source.path, ordinal), "scheduler", fields, told))
    return Result(len(jobs)) if jobs else Result(0, "empty", "no job in it")


def _job(job: Object, shared: dict[str, slurm.Field]) -> dict[str, slurm.Field]:
    numbers = ("job_id", "array_job_id", "array_task_id", "array_task_string", "het_job_id", "het_job_offset")
    ids = slurm_json.job_ids(*(job.get(name) for name in numbers))
    code, signal = slurm_json.exit_of(job.get("exit_code"))
    derived, _ = slurm_json.exit_of(job.get("derived_exit_code"))
    state = slurm.state_among(slurm_json.words(job.get("job_state")))
    start, end = when(job.get("start_time")), when(job.get("end_time"))
    last = shared["as_of"] if state in ALIVE else end
    elapsed = last - start if isinstance(last, float) and start is not None and last >= start else None
    nodes = slurm_json.nodes(job.get("nodes"))
    dependency = text(job.get("dependency"))
    return slurm.job_fields(
        {
            **ids,
            "name": text(job.get("name")),
            "user": text(job.get("user_name")),
            "uid": number(job.get("user_id")),
            "cluster": text(job.get("cluster")),
            "partition": text(job.get("partition")),
            "state": state,
            "exit_code": code,
            "signal": signal,
            "derived_exit_code": derived,
            "reason": text(job.get("state_reason")),
            "submit": when(job.get("submit_time")),
            "eligible": when(job.get("eligible_time")),
            "start": start,
            "end": end,
            "elapsed_s": elapsed,
            "time_limit_s": slurm_json.minutes(job.get("time_limit")),
            "nodes": nodes,
            "failed_node": text(job.get("failed_node")),
            "restarts": number(job.get("restart_cnt")),
            "requeue": job.get("requeue") if isinstance(job.get("requeue"), bool) else None,
            "n_nodes": number(job.get("node_count")) or len(nodes) or None,
            "n_tasks": number(job.get("tasks")),
            "n_cpus": number(job.get("cpus")),
            "n_gpus": slurm.gpus_of(text(job.get("tres_alloc_str")) or text(job.get("tres_req_str"))),
            "gpus": _gpus(job.get("gres_detail"), nodes),
            "dependency": dependency,
            "parents": slurm.parents_of(dependency),
            "command": text(job.get("command")),
            "work_dir": text(job.get("current_working_directory")),
            "std_out": text(job.get("standard_output")),
            "std_err": text(job.get("standard_error")),
        },
        **shared,
    )


def _gpus(detail: object, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs of ``gres_detail``: one text for each of the job's nodes, in their order."""
    if not isinstance(detail, list) or len(detail) != len(nodes):
        return ()
    return tuple(
        gpu for node, gres in zip(nodes, detail, strict=True) if isinstance(gres, str)
        for gpu in slurm.held_gpus((node,), gres)
    )  # fmt: skip


def _read_steps(source: Source, sink: Sink) -> Result:
    steps = slurm_json.objects(slurm_json.document(source), "steps")
    for ordinal, step in enumerate(steps, 1):
        fields = _step(step)
        told = f"step {fields.get('id')} {fields.get('state')}"
        sink.record(Record("step", Position(source.path, ordinal), "scheduler", fields, told))
    return Result(len(steps)) if steps else Result(0, "empty", "no step in it")


def _step(step: Object) -> dict[str, slurm.Field]:
    name = dig(step, "step", "id") or step.get("id")
    if isinstance(name, dict):
        name = f"{number(name.get('job_id'))}.{name.get('step_id')}"
    parts = slurm.split_job_id(name) if isinstance(name, str) else None
    return slurm.job_fields(
        {
            "id": name,
            "job": parts[0] if parts else None,
            "name": text(dig(step, "step", "name")) or text(step.get("name")),
            "state": slurm.state_among(slurm_json.words(step.get("state"))),
            "start": when(dig(step, "time", "start") or step.get("start_time")),
            "nodes": slurm_json.nodes(step.get("nodes")),
            "n_tasks": number(dig(step, "tasks", "count")) or number(step.get("number_tasks")),
            "source": "scontrol",
        }
    )


def _read_nodes(source: Source, sink: Sink) -> Result:
    answer = slurm_json.document(source)
    nodes = slurm_json.objects(answer, "nodes")
    as_of = when(answer.get("last_update"))
    caller = "scontrol" if slurm_json.command(answer) in ("scontrol", "show") else "sinfo"
    for ordinal, node in enumerate(nodes, 1):
        state = slurm_json.words(node.get("state")) + slurm_json.words(node.get("state_flags"))
        fields = slurm.node_fields(
            str(node.get("name") or node.get("hostname") or ""),
            [flag for word in state for flag in word.split("+")],
            reason=text(node.get("reason")),
            reason_time=when(node.get("reason_changed_at")),
            reason_user=text(node.get("reason_set_by_user")),
            boot_time=when(node.get("boot_time")),
            as_of=as_of,
            source=caller,
        )
        _node(source.path, ordinal, fields, sink)
    return Result(len(nodes)) if nodes else Result(0, "empty", "no node in it")


def _read_sinfo(source: Source, sink: Sink) -> Result:
    """sinfo --json since 23.02: groups of nodes of one state, once a partition."""
    groups = slurm_json.objects(slurm_json.document(source), "sinfo")
    seen: set[str] = set()
    for group in groups:
        for name in slurm_json.nodes(group.get("nodes")):
            if name in seen:
                continue
            seen.add(name)
            fields = slurm.node_fields(
                name,
                slurm_json.words(dig(group, "node", "state")),
                reason=text(dig(group, "reason", "description")),
                reason_time=when(dig(group, "reason", "time")),
                reason_user=text(dig(group, "reason", "user")),
                source="sinfo",
            )
            _node(source.path, len(seen), fields, sink)
    return Result(len(seen)) if seen else Result(0, "empty", "no node in it")


def _node(path: str, ordinal: int, fields: dict[str, slurm.Field], sink: Sink) -> None:
    told = f"node {fields.get('name')} {fields.get('state')} {fields.get('reason') or ''}".strip()
    sink.record(Record("node", Position(path, ordinal), "scheduler", fields, told))


_TITLE = "Slurm controller, {} as JSON"
FORMATS = (
    Format(
        "slurm-jobs-json",
        _TITLE.format("jobs"),
        "scheduler",
        _sniffs("jobs", "job_state", "accrue_time", "allocating_node", "batch_flag"),
        _read_jobs,
    ),
    Format(
        "slurm-steps-json",
        _TITLE.format("steps"),
        "scheduler",
        _sniffs("steps", "ResourceManager", "number_tasks", "CPU", "SrunHost", "step"),
        _read_steps,
    ),
    Format(
        "slurm-nodes-json",
        _TITLE.format("nodes"),
        "scheduler",
        _sniffs("nodes", "slurmd_start_time", "real_memory", "next_state_after_reboot"),
        _read_nodes,
    ),
    Format("sinfo-json", _TITLE.format("sinfo"), "scheduler", _sniffs("sinfo", "node", "port"), _read_sinfo),
)
