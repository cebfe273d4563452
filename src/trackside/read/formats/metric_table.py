"""Tables of metrics with a heading, as CSV: a column a metric, or a row a value; in any dialect's names.

The heading and the first rows must tell times and a metric that is known: any other CSV is left to others.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import UTC, datetime

from trackside.catalog.dialect import BLANK
from trackside.logs.stamp import find_time
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.table_columns import Columns, columns_of, translated

_DELIMITERS = ",;\t"
_LOOK = 50
"""Rows of the head that may show that the table is one of metrics."""
_EPOCH_S = 946_684_800, 4_102_444_800
"""2000 to 2100."""
_NONE = frozenset({"", "n/a", "na", "null", "none", "-", "[n/a]"})


@dataclass(frozen=True, slots=True)
class Table:
    """How a file's rows are to be read."""

    delimiter: str
    width: int
    columns: Columns

    @classmethod
    def of(cls, heading: str) -> Table | None:
        """What a first line says; None if it is no heading of metrics."""
        delimiter = max(_DELIMITERS, key=heading.count)
        names = cells_of(heading, delimiter)
        columns = columns_of(names)
        return None if columns is None else cls(delimiter, len(names), columns)


def cells_of(line: str, delimiter: str) -> list[str]:
    """The cells of a row; none where quotes are amiss."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def number_of(text: str) -> float:
    """A cell as a number; BLANK for one that says there is none. Raises ValueError for other text."""
    try:
        return float(text)
    except ValueError:
        if text.strip().lower() in _NONE:
            return BLANK
        raise


def milliseconds_of(text: str) -> tuple[int, bool] | None:
    """A time in ms, and whether it names its zone: seconds or milliseconds told by size, ISO 8601, or as in logs.

    Without a zone it is read as UTC. A number in neither unit is given as it stands, to be refused; None for no time.
    """
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        if not abs(number) < 9e18:
            return None
        return round(number * 1000) if _EPOCH_S[0] <= number <= _EPOCH_S[1] else round(number), True
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        found = find_time(text)
        return None if found is None else (round(found * 1000), False)
    aware = moment.tzinfo is not None
    return round((moment if aware else moment.replace(tzinfo=UTC)).timestamp() * 1000), aware


def _read(source: Source, sink: Sink) -> Result:
    from trackside.read.table_rows import read_table  # imports numpy, which only metrics need

    table = Table.of(_lines(source)[0])
    if table is None:
        raise ValueError("its heading is cut off")
    return read_table(source, sink, table)


def _lines(source: Source) -> list[str]:
    return [line.rstrip("\r") for line in source.text.split("\n", _LOOK + 1)[: _LOOK + 1]]


def _sniff(source: Source) -> Match | None:
    heading, *lines = _lines(source)
    table = Table.of(heading)
    if table is None:
        return None
    columns = table.columns
    rows = [row for line in lines if len(row := cells_of(line, table.delimiter)) == table.width]
    timed = [row for row in rows if _plausible(milliseconds_of(row[columns.time]))]
    if columns.name is None:
        fits = timed or not any(lines)
        return Match(0.6, f"a table of {len(columns.metrics)} known metrics") if fits else None
    fits = any(translated(row[columns.name].strip(), {}) is not None for row in timed)
    return Match(0.6, "a table of metrics, a row a value") if fits else None


def _plausible(time: tuple[int, bool] | None) -> bool:
    return time is not None and _EPOCH_S[0] * 1000 <= time[0] <= _EPOCH_S[1] * 1000


FORMAT = Format(
    "metric-table", "CSV of metrics: times, and a column a metric or a row a value", "metric", _sniff, _read
)
