"""JSON responses of the controller: jobs, steps and nodes from scontrol, squeue, sinfo and slurmrestd."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from trackside.catalog.job_states import ACTIVE_STATES
from trackside.catalog.slurm import values
from trackside.catalog.slurm.fields import SlurmValue, job_ids, job_record, node_record, step_record
from trackside.catalog.slurm.values import dig, time
from trackside.model import Position, Record
from trackside.read import slurm_json
from trackside.read.format import Format, InputSource, Match, Result, Sink, give
from trackside.read.slurm_json import Object


def _format(
    id_: str,
    key: str,
    kind: str,
    words: tuple[str, ...],
    records_in: Callable[[Object, list[Object], str], Iterator[Record]],
) -> Format:
    """The format of responses with a list ``key``, recognized by one of ``words`` in it."""

    def sniff(source: InputSource) -> Match | None:
        if slurm_json.looks_like(source, key, *words):
            return Match(0.95, f"Slurm {key} as JSON")
        # A failed or empty response contains only meta.
        bare = slurm_json.looks_like(source, key, "meta") and re.search(r"openapi\\?/v|data_parser", source.text)
        return Match(0.85, f"Slurm {key} as JSON") if bare else None

    def read(source: InputSource, sink: Sink) -> Result:
        document = slurm_json.document(source)
        count = give(records_in(document, slurm_json.objects(document, key), source.path), sink)
        return Result(count) if count else Result(0, "empty", f"no {kind}s")

    return Format(id_, f"Slurm controller, {key} as JSON", "scheduler", sniff, read)


def _jobs(document: Object, jobs: list[Object], path: str) -> Iterator[Record]:
    shared: dict[str, SlurmValue | None] = {
        "source": _caller(document, "squeue"),
        "as_of": time(document.get("last_update")),
    }
    for ordinal, job in enumerate(jobs, 1):
        yield slurm_json.record("job", path, ordinal, _job(job, shared))


def _caller(document: Object, default: str) -> str:
    """The command that wrote the response, from ``meta`` (23.02 and newer); else ``default``."""
    command = dig(document, "meta", "command")
    program = str(command[0]).rpartition("/")[2] if isinstance(command, list) and command else ""
    return "scontrol" if program in ("scontrol", "show") else default


def _job(job: Object, shared: dict[str, SlurmValue | None]) -> dict[str, SlurmValue]:
    get = slurm_json.getter(job)
    state, start, end = (
        values.job_state(job.get("job_state"))[0],
        time(job.get("start_time")),
        time(job.get("end_time")),
    )
    last = shared["as_of"] if state in ACTIVE_STATES else end
    elapsed = last - start if isinstance(last, float) and start is not None and last >= start else None
    gpus = _gpus(job.get("gres_detail"), values.nodes(job.get("nodes")))
    return job_record("slurmctld", get, **job_ids("slurmctld", get), **shared, elapsed_s=elapsed, gpus=gpus)


def _gpus(detail: object, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs in ``gres_detail``, which has one text per node of the job, in node order."""
    if not isinstance(detail, list) or len(detail) != len(nodes):
        return ()
    return tuple(
        gpu for node, gres in zip(nodes, detail, strict=True) if isinstance(gres, str)
        for gpu in values.gpus_on((node,), gres)
    )  # fmt: skip


def _steps(document: Object, steps: list[Object], path: str) -> Iterator[Record]:
    for ordinal, step in enumerate(steps, 1):
        yield slurm_json.record("step", path, ordinal, _step(step))


def _step(step: Object) -> dict[str, SlurmValue]:
    name = dig(step, "step", "id") or step.get("id")
    if isinstance(name, dict):
        name = f"{values.number(name.get('job_id'))}.{name.get('step_id')}"
    id_ = name if isinstance(name, str) else None
    return step_record("slurmctld", slurm_json.getter(step), id_, source="scontrol")


def _nodes(document: Object, nodes: list[Object], path: str) -> Iterator[Record]:
    as_of, caller = time(document.get("last_update")), _caller(document, "sinfo")
    for ordinal, node in enumerate(nodes, 1):
        state = values.words(node.get("state")) + values.words(node.get("state_flags"))
        name = str(node.get("name") or node.get("hostname") or "")
        flags = [flag for word in state for flag in word.split("+")]
        fields = node_record("slurmctld", slurm_json.getter(node), name, flags, as_of=as_of, source=caller)
        yield _node(path, ordinal, fields)


def _groups(document: Object, groups: list[Object], path: str) -> Iterator[Record]:
    """sinfo --json since 23.02: groups of nodes with equal state, repeated for each partition."""
    group_by_node: dict[str, Object] = {}
    for group in groups:
        for name in values.nodes(group.get("nodes")):
            group_by_node.setdefault(name, group)
    for ordinal, (name, group) in enumerate(group_by_node.items(), 1):
        state = values.words(dig(group, "node", "state"))
        yield _node(path, ordinal, node_record("slurmctld", slurm_json.getter(group), name, state, source="sinfo"))


def _node(path: str, ordinal: int, fields: dict[str, SlurmValue]) -> Record:
    text = f"node {fields.get('name')} {fields.get('state')} {fields.get('reason') or ''}".strip()
    return Record("node", Position(path, ordinal), "scheduler", fields, text)


FORMATS = (
    _format("slurm-jobs-json", "jobs", "job", ("job_state", "accrue_time", "allocating_node", "batch_flag"), _jobs),
    _format(
        "slurm-steps-json", "steps", "step", ("ResourceManager", "number_tasks", "CPU", "SrunHost", "step"), _steps
    ),
    _format(
        "slurm-nodes-json", "nodes", "node", ("slurmd_start_time", "real_memory", "next_state_after_reboot"), _nodes
    ),
    _format("sinfo-json", "sinfo", "node", ("node", "port"), _groups),
)
