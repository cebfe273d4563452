"""Logs of Slurm's job completion plugins: jobcomp/filetxt, and the JSON lines of jobcomp/elasticsearch and kafka."""

from __future__ import annotations

import re

import msgspec

from trackside.catalog.slurm.columns import JOBCOMP_KEYS
from trackside.catalog.slurm.fields import job_ids, job_record
from trackside.model import Position, Record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give
from trackside.read.slurm_entries import entries
from trackside.read.slurm_table import SlurmRow


def _sniff(source: InputSource) -> Match | None:
    if re.match(r"\s*JobId=\d+ UserId=\S+ GroupId=\S+ Name=", source.text):
        return Match(0.97, "jobcomp/filetxt")
    first = source.text.lstrip().partition("\n")[0]
    if first.startswith("{") and all(f'"{key}"' in first for key in ("jobid", "@start", "@end", "state")):
        return Match(0.95, "jobcomp as JSON lines")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    if source.text.lstrip().startswith("{"):
        return _read_json(source, sink)
    return Result(give((_record(entry, source.path) for entry in entries(source.lines(), "JobId", JOBCOMP_KEYS)), sink))


def _record(entry: SlurmRow, path: str) -> Record:
    get = entry.values.get
    fields = job_record("scontrol", get, **job_ids("scontrol", get), source="jobcomp")
    return Record("job", entry.at(path), "scheduler", fields, entry.text.strip())


def _read_json(source: InputSource, sink: Sink) -> Result:
    count = lost_lines = 0
    for number, offset, text in source.lines():
        if not text.strip():
            continue
        try:
            entry = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or "jobid" not in entry:
            lost_lines += 1
            continue
        count += 1
        get = {key: str(value) for key, value in entry.items() if isinstance(value, (str, int, float))}.get
        fields = job_record("jobcomp", get, **job_ids("jobcomp", get), source="jobcomp")
        position = Position(source.path, number, offset, len(text.encode()))
        sink.record(Record("job", position, "scheduler", fields, f"job {fields.get('id')} {fields.get('state')}"))
    return Result(count, "partial" if lost_lines else "read", f"{lost_lines} lines without a job" if lost_lines else "")


FORMAT = Format("jobcomp", "Slurm job completion log", "scheduler", _sniff, _read)
