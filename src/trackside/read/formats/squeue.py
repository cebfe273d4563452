"""``squeue`` as text: its default and long columns, ``-o`` and ``-O`` formats, ``-o %all``, and ``-s`` for steps."""

from __future__ import annotations

import re

from trackside.catalog.slurm.columns import SQUEUE
from trackside.catalog.slurm.fields import SlurmValue, job_record, step_record
from trackside.catalog.slurm.values import split_job_id
from trackside.logs.stamp import find_time
from trackside.model import Record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give
from trackside.read.slurm_table import SlurmRow, SlurmTable, first_lines, header_of

_DATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\s*\Z")
"""The date that ``-l`` prints above its table; read as UTC."""


def table_of(text: str, column_names: frozenset[str]) -> tuple[SlurmTable, float | None] | None:
    """The table at the top of a text, whose header must be in capitals, and the date above it; None without one."""
    lines = first_lines(text, 2)
    as_of = find_time(lines[0]) if lines and _DATE.match(lines[0]) else None
    lines = lines[1:] if as_of is not None else lines
    if not lines or lines[0].upper() != lines[0]:
        return None
    table = header_of(lines[:1], column_names)
    return None if table is None else (table, as_of)


def _sniff(source: InputSource) -> Match | None:
    table_and_date = table_of(source.text, SQUEUE)
    if table_and_date is None or not table_and_date[0].covers(source.text):
        return None
    columns = set(table_and_date[0].columns)
    if "stepid" in columns:
        return Match(0.9, "squeue, steps")
    if not columns & {"jobid", "jobarrayid", "array_job_id"} or not columns & {"st", "state", "statecompact"}:
        return None
    return Match(0.93, f"squeue, {len(columns)} columns")


def _read(source: InputSource, sink: Sink) -> Result:
    table_and_date = table_of(source.text, SQUEUE)
    if table_and_date is None:
        raise ValueError("the header of squeue cannot be read: run it without -h")
    table, as_of = table_and_date
    count = give((_record(row, source.path, as_of) for row in table.rows(source.lines())), sink)
    return table.result(count, "a header without jobs: they ended or never existed")


def _record(row: SlurmRow, path: str, as_of: float | None) -> Record:
    text = row.text.strip()
    if "stepid" not in row.values:
        return Record("job", row.at(path), "scheduler", _job(row, as_of), text)
    fields = step_record("squeue", row.values.get, row.get("stepid"), state="RUNNING", source="squeue")
    return Record("step", row.at(path), "scheduler", fields, text)


def _job(row: SlurmRow, as_of: float | None) -> dict[str, SlurmValue]:
    printed_id = row.get("jobarrayid", "jobid") or ""
    if row.get("jobid#2") and "_" not in printed_id and "+" not in printed_id:
        printed_id = next(
            (row.values[name] for name in ("jobid", "jobid#2") if re.search("[_+]", row.values[name])), printed_id
        )
    parts = split_job_id(printed_id)
    raw = split_job_id(row.get("jobid#2") or "")
    return job_record(
        "squeue",
        row.values.get,
        id=printed_id,
        raw_id=raw[0] if raw else (printed_id if printed_id.isdecimal() else None),
        array_id=parts[1] if parts else None,
        source="squeue",
        as_of=as_of,
    )


FORMAT = Format("squeue", "Slurm queue, squeue as text", "scheduler", _sniff, _read)
