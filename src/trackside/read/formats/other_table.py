"""Tables without times or without a known metric, and without a training step: not read; the note says what they
lack."""

from __future__ import annotations

import re

from trackside.read.format import HEAD_BYTES, Format, InputSource, Match, Result, Sink
from trackside.read.formats.job_log import empty_output, looks_like_text
from trackside.read.formats.metric_table import DELIMITERS, SNIFF_ROWS, cells_of
from trackside.read.table_columns import TIMES

_NAME = re.compile(r"[A-Za-z_][\w .:/%()\[\]{}=\"#-]{0,120}")
_TRAINING = re.compile(r"step|epoch|iter|loss|batch|acc|reward|perplexity|ppl|\blr\b", re.IGNORECASE)
"""Column names of a job's progress table, which is left to the log scan."""
MIN_COLUMNS, MIN_ROWS = 3, 3
MAX_NOTED_COLUMNS = 6
"""Maximum number of columns that the note names."""


def _sniff(source: InputSource) -> Match | None:
    if not looks_like_text(source.head) or empty_output(source.path) is not None:
        return None
    lines = source.text.split("\n", SNIFF_ROWS + 1)[: SNIFF_ROWS + 1]
    if len(source.head) >= HEAD_BYTES and len(lines) <= SNIFF_ROWS:
        lines.pop()  # cut off by the end of the head
    lines = [line.rstrip("\r") for line in lines if line.strip()]
    if len(lines) <= MIN_ROWS:
        return None
    delimiter = max(DELIMITERS, key=lines[0].count)
    heading, *rows = (cells_of(line, delimiter) for line in lines)
    names = [name.strip() for name in heading]
    if not _is_heading(names) or any(len(row) != len(names) for row in rows):
        return None
    first_names = ", ".join(name or "an unnamed one" for name in names[:MAX_NOTED_COLUMNS])
    more_text = f" and {len(names) - MAX_NOTED_COLUMNS:,} more" if len(names) > MAX_NOTED_COLUMNS else ""
    return Match(0.15, f"a table without times or without a known metric: {first_names}{more_text}")


def _is_heading(names: list[str]) -> bool:
    named_columns = names[1:] if names[:1] == [""] else names  # a table with an unnamed column of row numbers
    if len(named_columns) < MIN_COLUMNS or len(set(named_columns)) < len(named_columns):
        return False
    return all(_NAME.fullmatch(name) and not _TRAINING.search(name) for name in named_columns)


def _read(source: InputSource, sink: Sink) -> Result:
    times = ", ".join(TIMES[:3])
    return Result(0, "unrecognised", f"metrics need a time column ({times} ...) and names as in docs/metrics.md")


FORMAT = Format("other-table", "tables without a known metric: not read", "metric", _sniff, _read)
