"""Tables that tell no times or no metric that is known, and no training step: left alone, with what would help."""

from __future__ import annotations

import re

from trackside.read.format import HEAD, Format, Match, Result, Sink, Source
from trackside.read.formats.job_log import empty_output, looks_like_text
from trackside.read.formats.metric_table import DELIMITERS, LOOK, cells_of
from trackside.read.table_columns import TIMES

_NAME = re.compile(r"[A-Za-z_][\w .:/%()\[\]{}=\"#-]{0,120}")
_TRAINING = re.compile(r"step|epoch|iter|loss|batch|acc|reward|perplexity|ppl|\blr\b", re.IGNORECASE)
"""Columns of a job that prints its progress as a table: for the log scan."""
LEAST_COLUMNS, LEAST_ROWS = 3, 3
SHOWN = 6
"""Columns that the note names."""


def _sniff(source: Source) -> Match | None:
    if not looks_like_text(source.head) or empty_output(source.path) is not None:
        return None
    lines = source.text.split("\n", LOOK + 1)[: LOOK + 1]
    if len(source.head) >= HEAD and len(lines) <= LOOK:
        lines.pop()  # the head's end cuts it
    lines = [line.rstrip("\r") for line in lines if line.strip()]
    if len(lines) <= LEAST_ROWS:
        return None
    delimiter = max(DELIMITERS, key=lines[0].count)
    heading, *rows = (cells_of(line, delimiter) for line in lines)
    names = [name.strip() for name in heading]
    if not _is_heading(names) or any(len(row) != len(names) for row in rows):
        return None
    first = ", ".join(name or "one without a name" for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return Match(0.15, f"a table without times or without a metric that is known: {first}{more}")


def _is_heading(names: list[str]) -> bool:
    named = names[1:] if names[:1] == [""] else names  # a table written with its row numbers
    if len(named) < LEAST_COLUMNS or len(set(named)) < len(named):
        return False
    return all(_NAME.fullmatch(name) and not _TRAINING.search(name) for name in named)


def _read(source: Source, sink: Sink) -> Result:
    times = ", ".join(TIMES[:3])
    return Result(0, "unrecognised", f"metrics need a column of times ({times} ...) and names as in docs/metrics.md")


FORMAT = Format("other-table", "tables without a known metric: left alone", "metric", _sniff, _read)
