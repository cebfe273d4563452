"""``sacct`` as text: ``-P``, ``-p``, ``--delimiter``, CSV, or its default columns under dashes."""

from __future__ import annotations

import re

from trackside.catalog.job_states import ALL_STATES
from trackside.catalog.slurm.columns import SACCT
from trackside.catalog.slurm.fields import job_record, step_record
from trackside.catalog.slurm.values import split_job_id
from trackside.model import Record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give
from trackside.read.sacct_columns import headerless_rows, is_job_row
from trackside.read.slurm_table import SlurmRow, first_lines, header_of

_STATE = re.compile(rf"(?:CANCELLED by \S+|{'|'.join(sorted(ALL_STATES))})\Z")


def _sniff(source: InputSource) -> Match | None:
    lines = first_lines(source.text, 12)
    table = header_of(lines, SACCT)
    if table is not None and not lines[0].isupper():
        if (table.separator is None and not table.spans) or not table.covers(source.text):
            return None
        what = "fixed columns" if table.spans else f"{len(table.columns)} columns"
        return Match(0.95, f"sacct, {what}")
    return Match(0.7, "sacct without its header") if _headerless(lines) or _is_aligned(lines) else None


def _headerless(lines: list[str]) -> bool:
    """Whether most lines have a job id and a state in the same columns."""
    counts: dict[tuple[int, int], int] = {}
    for line in lines:
        fields = line.split("|")
        ids = [index for index, value in enumerate(fields[:40]) if split_job_id(value)]
        states = [index for index, value in enumerate(fields) if _STATE.match(value)]
        if len(fields) > 2 and ids and states:
            columns = ids[0], states[0]
            counts[columns] = counts.get(columns, 0) + 1
    return bool(counts) and max(counts.values()) >= 0.6 * len(lines)


def _is_aligned(lines: list[str]) -> bool:
    """Whether most lines are rows of sacct's aligned columns."""
    return bool(lines) and sum(1 for line in lines if is_job_row(line.split())) >= 0.8 * len(lines)


def _read(source: InputSource, sink: Sink) -> Result:
    table = header_of(first_lines(source.text), SACCT)
    if table is None:
        count = give((record_of(source.path, row) for row in headerless_rows(source)), sink)
        return Result(count, note="columns recognized by their values") if count else Result(0, "empty", "no job")
    if not {"jobid", "jobidraw"} & set(table.columns):
        raise ValueError("no job id: add JobID to the columns of sacct --format")
    count = give((record_of(source.path, row) for row in table.rows(source.lines())), sink)
    return table.result(count, "a header without jobs", " (a separator or line break inside a name)")


def record_of(path: str, row: SlurmRow) -> Record:
    """The record of a row: a job or a step, depending on its id."""
    id_ = row.get("jobid", "jobidraw") or ""
    job, array, step = split_job_id(id_) or (id_, None, None)
    get = row.values.get
    if step is not None:
        fields = step_record("sacct", get, f"{job}.{step}", source="sacct")
        return Record("step", row.at(path), "scheduler", fields, row.text)
    raw = split_job_id(row.get("jobidraw") or "")
    fields = job_record("sacct", get, id=job, raw_id=raw[0] if raw else None, array_id=array, source="sacct")
    return Record("job", row.at(path), "scheduler", fields, row.text)


FORMAT = Format("sacct-text", "Slurm accounting, sacct as text", "scheduler", _sniff, _read)
