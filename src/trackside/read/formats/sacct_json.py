"""``sacct --json`` and slurmdbd's REST response: jobs with nested steps."""

from __future__ import annotations

import re

from trackside.catalog.slurm.fields import SlurmValue, job_ids, job_record, step_record
from trackside.catalog.slurm.values import dig, number
from trackside.read import slurm_json
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.slurm_json import Object


def _sniff(source: InputSource) -> Match | None:
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


def _read(source: InputSource, sink: Sink) -> Result:
    document = slurm_json.document(source)
    jobs = slurm_json.objects(document, "jobs")
    steps = 0
    for ordinal, job in enumerate(jobs, 1):
        fields = _job(job)
        sink.record(slurm_json.record("job", source.path, ordinal, fields))
        for step in job.get("steps") or ():
            if isinstance(step, dict):
                steps += 1
                sink.record(slurm_json.record("step", source.path, steps, _step(step, str(fields.get("id")))))
    return Result(len(jobs) + steps) if jobs else Result(0, "empty", "no jobs")


def _job(job: Object) -> dict[str, SlurmValue]:
    get = slurm_json.getter(job)
    fields = job_record("slurmdbd", get, **job_ids("slurmdbd", get), source="sacct")
    if fields.get("state") != "CANCELLED":
        fields.pop("cancelled_by", None)
    if dig(job, "derived_exit_code", "status") == "SUCCESS":
        fields.pop("derived_exit_code", None)
    return _without_false_exit(fields, job)


def _step(step: Object, job: str) -> dict[str, SlurmValue]:
    name = dig(step, "step", "id")
    if isinstance(name, dict):
        name = name.get("step_id")
    part = str(name if isinstance(name, str) else number(name)).rpartition(".")[2]
    fields = step_record("slurmdbd", slurm_json.getter(step), f"{job}.{part}", source="sacct")
    return _without_false_exit(fields, step)


def _without_false_exit(fields: dict[str, SlurmValue], row: Object) -> dict[str, SlurmValue]:
    """Drop a wrong exit code: before 23.11 it is always a success, even for a failed job (status is a string there)."""
    if dig(row, "exit_code", "status") == "SUCCESS" and fields.get("state") in ("FAILED", "REQUEUED", "SPECIAL_EXIT"):
        return {name: value for name, value in fields.items() if name not in ("exit_code", "signal")}
    return fields


FORMAT = Format("sacct-json", "Slurm accounting, sacct --json", "scheduler", _sniff, _read)
