"""What the controller answers in JSON: jobs, steps and nodes of scontrol, squeue, sinfo and slurmrestd."""

from __future__ import annotations

import re
from collections.abc import Callable

from trackside.catalog.job_states import ALIVE
from trackside.catalog.slurm import values
from trackside.catalog.slurm.fields import Value, job_ids, job_record, node_record, step_record
from trackside.catalog.slurm.values import dig, time
from trackside.model import Position, Record
from trackside.read import slurm_json
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.slurm_json import Object


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
    shared: dict[str, Value | None] = {
        "source": "scontrol" if slurm_json.command(answer) in ("scontrol", "show") else "squeue",
        "as_of": time(answer.get("last_update")),
    }
    for ordinal, job in enumerate(jobs, 1):
        fields = _job(job, shared)
        told = f"job {fields.get('id')} {fields.get('state')}"
        sink.record(Record("job", Position(source.path, ordinal), "scheduler", fields, told))
    return Result(len(jobs)) if jobs else Result(0, "empty", "no job in it")


def _job(job: Object, shared: dict[str, Value | None]) -> dict[str, Value]:
    get = slurm_json.getter(job)
    state, start, end = values.state(job.get("job_state")), time(job.get("start_time")), time(job.get("end_time"))
    last = shared["as_of"] if state in ALIVE else end
    elapsed = last - start if isinstance(last, float) and start is not None and last >= start else None
    gpus = _gpus(job.get("gres_detail"), values.nodes(job.get("nodes")))
    return job_record("slurmctld", get, **job_ids("slurmctld", get), **shared, elapsed_s=elapsed, gpus=gpus)


def _gpus(detail: object, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs of ``gres_detail``: one text for each of the job's nodes, in their order."""
    if not isinstance(detail, list) or len(detail) != len(nodes):
        return ()
    return tuple(
        gpu for node, gres in zip(nodes, detail, strict=True) if isinstance(gres, str)
        for gpu in values.held_gpus((node,), gres)
    )  # fmt: skip


def _read_steps(source: Source, sink: Sink) -> Result:
    steps = slurm_json.objects(slurm_json.document(source), "steps")
    for ordinal, step in enumerate(steps, 1):
        fields = _step(step)
        told = f"step {fields.get('id')} {fields.get('state')}"
        sink.record(Record("step", Position(source.path, ordinal), "scheduler", fields, told))
    return Result(len(steps)) if steps else Result(0, "empty", "no step in it")


def _step(step: Object) -> dict[str, Value]:
    name = dig(step, "step", "id") or step.get("id")
    if isinstance(name, dict):
        name = f"{values.number(name.get('job_id'))}.{name.get('step_id')}"
    parts = values.split_job_id(name) if isinstance(name, str) else None
    job = parts[0] if parts else None
    return step_record("slurmctld", slurm_json.getter(step), id=name, job=job, source="scontrol")


def _read_nodes(source: Source, sink: Sink) -> Result:
    answer = slurm_json.document(source)
    nodes = slurm_json.objects(answer, "nodes")
    as_of = time(answer.get("last_update"))
    caller = "scontrol" if slurm_json.command(answer) in ("scontrol", "show") else "sinfo"
    for ordinal, node in enumerate(nodes, 1):
        state = values.words(node.get("state")) + values.words(node.get("state_flags"))
        name = str(node.get("name") or node.get("hostname") or "")
        flags = [flag for word in state for flag in word.split("+")]
        fields = node_record("slurmctld", slurm_json.getter(node), name, flags, as_of=as_of, source=caller)
        _node(source.path, ordinal, fields, sink)
    return Result(len(nodes)) if nodes else Result(0, "empty", "no node in it")


def _read_sinfo(source: Source, sink: Sink) -> Result:
    """sinfo --json since 23.02: groups of nodes of one state, once a partition."""
    groups = slurm_json.objects(slurm_json.document(source), "sinfo")
    seen: set[str] = set()
    for group in groups:
        for name in values.nodes(group.get("nodes")):
            if name in seen:
                continue
            seen.add(name)
            state = values.words(dig(group, "node", "state"))
            fields = node_record("slurmctld", slurm_json.getter(group), name, state, source="sinfo")
            _node(source.path, len(seen), fields, sink)
    return Result(len(seen)) if seen else Result(0, "empty", "no node in it")


def _node(path: str, ordinal: int, fields: dict[str, Value], sink: Sink) -> None:
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
