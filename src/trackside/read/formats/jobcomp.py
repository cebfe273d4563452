"""The log of Slurm's job completion plugins: jobcomp/filetxt, and JSON lines of jobcomp/elasticsearch or kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from trackside.model import Position, Record
from trackside.read import slurm
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.slurm_blocks import blocks, job_id_of, job_of
from trackside.read.slurm_row import Row

_KEYS = slurm.vocabulary(
    """
    JobId UserId GroupId Name JobState Partition TimeLimit StartTime EndTime NodeList NodeCnt ProcCnt WorkDir
    ReservationName Tres Gres Account QOS WcKey Cluster SubmitTime EligibleTime ArrayJobId ArrayTaskId HetJobId
    HetJobOffset PackJobId PackJobOffset DerivedExitCode ExitCode FailedNode BatchFlag
    """
)


def _sniff(source: Source) -> Match | None:
    if re.match(r"\s*JobId=\d+ UserId=\S+ GroupId=\S+ Name=", source.text):
        return Match(0.97, "jobcomp/filetxt")
    first = source.text.lstrip().partition("\n")[0]
    if first.startswith("{") and all(f'"{key}"' in first for key in ("jobid", "@start", "@end", "state")):
        return Match(0.95, "jobcomp as JSON lines")
    return None


def _read(source: Source, sink: Sink) -> Result:
    if source.text.lstrip().startswith("{"):
        return _read_json(source, sink)
    count = 0
    for block in blocks(source.lines(), "JobId", _KEYS):
        sink.record(Record("job", block.at(source.path), "scheduler", _job(block), block.text.strip()))
        count += 1
    return Result(count)


def _job(block: Row) -> dict[str, slurm.Field]:
    get = block.get
    minutes = slurm.number_of(get("TimeLimit"))
    return slurm.job_fields(
        job_of(block),
        id=job_id_of(block),
        name=get("Name"),
        time_limit_s=minutes * 60 if minutes else None,
        n_cpus=slurm.number_of(get("ProcCnt")),
        n_gpus=slurm.gpus_of(get("Tres")),
        source="jobcomp",
    )


def _read_json(source: Source, sink: Sink) -> Result:
    count = lost = 0
    for at, entry in _entries(source):
        if not isinstance(entry, dict) or "jobid" not in entry:
            lost += 1
            continue
        count += 1
        fields = _entry({key: value for key, value in entry.items() if isinstance(value, (str, int, float))})
        sink.record(Record("job", at, "scheduler", fields, f"job {fields.get('id')} {fields.get('state')}"))
    return Result(count, "partial" if lost else "read", f"{lost} lines are no job" if lost else "")


def _entries(source: Source) -> Iterator[tuple[Position, Any]]:
    for number, offset, text in source.lines():
        if text.strip():
            try:
                yield Position(source.path, number, offset, len(text.encode())), msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                yield Position(source.path, number, offset), None


def _entry(entry: dict[str, str | int | float]) -> dict[str, slurm.Field]:
    def get(key: str) -> str | None:
        return str(entry[key]) if key in entry else None

    array, task, raw = get("array_job_id"), get("array_task_id"), get("jobid")
    state, by = slurm.state_of(get("state"))
    signal = slurm.exit_of(get("derived_ec"))
    minutes = slurm.number_of(get("time_limit"))
    return slurm.job_fields(
        {
            "id": f"{array}_{task}" if array and array != "0" and task else raw,
            "raw_id": raw,
            "array_id": array if array != "0" else None,
            "name": get("job_name"),
            "user": get("username"),
            "cluster": get("cluster"),
            "partition": get("partition"),
            "state": state,
            "cancelled_by": by,
            "exit_code": slurm.number_of(get("exit_code")),
            "derived_exit_code": signal[0] if signal else None,
            "submit": slurm.time_of(get("@submit")),
            "eligible": slurm.time_of(get("@eligible")),
            "start": slurm.time_of(get("@start")),
            "end": slurm.time_of(get("@end")),
            "elapsed_s": slurm.number_of(get("elapsed")),
            "time_limit_s": minutes * 60 if minutes else None,
            "nodes": slurm.nodes_of(get("nodes")),
            "n_nodes": slurm.number_of(get("total_nodes")),
            "n_tasks": slurm.number_of(get("ntasks")),
            "n_cpus": slurm.number_of(get("total_cpus")),
            "n_gpus": slurm.gpus_of(get("tres_alloc") or get("tres_req")),
            "work_dir": get("work_dir"),
            "std_out": get("std_out"),
            "std_err": get("std_err"),
            "source": "jobcomp",
        }
    )


FORMAT = Format("jobcomp", "Slurm job completion log", "scheduler", _sniff, _read)
