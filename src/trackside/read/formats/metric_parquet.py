"""Tables of metrics as Parquet: a column a metric, or a row a value; in any dialect's names.

DuckDB reads it, from a copy beside which nothing else lies: of a file that turns out to hold something else only the
end is copied, where Parquet keeps its schema and says how much there is. What a column is called is asked for once:
in the SQL the columns are ``c0``, ``c1`` and so on.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import duckdb
import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK
from trackside.model import Position
from trackside.read.compression import FREE_BYTES, MAX_RATIO
from trackside.read.format import Format, Match, Result, Sink, Source, TooLarge
from trackside.read.measurements import MOST_SERIES, Measurements, milliseconds
from trackside.read.table_columns import Columns, columns_of, numbers_of

_MAGIC = b"PAR1"
MOST_BYTES = 16 << 30
"""Largest file that is copied."""
FREE_VALUES = 32 << 20
"""A table may hold so many values in however few bytes."""
VALUES_A_BYTE = 50
"""Beyond FREE_VALUES: values to each byte of the file. A sample takes about 3 bytes, one of a hundred columns that
hardly ever change a thirtieth of one; one value written a million times takes none."""
MOST_TEXT = 64 << 10
"""Bytes of a cell that tells which series a row is of; a longer one counts as empty."""
_PIECE = 8 << 20
WINDOW = 1 << 20
"""Rows that are held at once; fewer of a wide table."""
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "1GB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def _sniff(source: Source) -> Match | None:
    return Match(0.6, "Parquet") if source.head.startswith(_MAGIC) else None


def _read(source: Source, sink: Sink) -> Result:
    with tempfile.TemporaryDirectory(prefix="trackside-") as folder:
        path = Path(folder) / "table.parquet"
        with path.open("wb") as copy, duckdb.connect(config={**_CONFIG, "temp_directory": folder}) as connection:
            try:
                if _footer(source, copy) and _shape(connection, path) is None:
                    return _other()
                _whole(source, copy)
                shape = _shape(connection, path)
                return _other() if shape is None else _Reading(source.path, connection, path, shape).read(sink)
            except duckdb.BinderException:  # what we ask is wrong, not the file
                raise
            except duckdb.Error as error:
                said = str(error).replace(str(path), source.name).splitlines()
                raise ValueError(f"damaged or cut off: {said[0][:200]}") from None


def _other() -> Result:
    return Result(0, "unrecognised", "no column of it is a time, or none a metric that is known")


def _footer(source: Source, copy: IO[bytes]) -> bool:
    """Copy the end, which holds the schema, to its place; False for a stream that can only be read once."""
    stream = source.stream
    if not stream.seekable():
        return False
    size = stream.seek(0, 2)
    stream.seek(max(0, size - 8))
    length, magic = struct.unpack("<I4s", stream.read(8).rjust(8, b"\0"))
    if magic != _MAGIC or length + 12 > size:
        raise ValueError("damaged or cut off: no Parquet footer at its end")
    stream.seek(size - 8 - length)
    copy.truncate(size)
    copy.seek(0)
    copy.write(_MAGIC)
    copy.seek(size - 8 - length)
    shutil.copyfileobj(stream, copy, _PIECE)
    copy.flush()
    stream.seek(0)
    return True


def _whole(source: Source, copy: IO[bytes]) -> None:
    """Copy all. Raises TooLarge beyond MOST_BYTES and half of what the disk has room for.

    What is compressed, or in an archive, ends where the budget of the file on disk ends, and so does its copy.
    """
    copy.seek(0)
    done = 0
    room = min(MOST_BYTES, shutil.disk_usage(copy.name).free // 2)
    while piece := source.stream.read(_PIECE):
        done += len(piece)
        if done > room:
            raise TooLarge(f"larger than the {room >> 20:,} MiB that there is room for")
        copy.write(piece)
    copy.flush()


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the columns are, their names and their types; and how many rows there are."""

    columns: Columns
    names: list[str]
    types: list[str]
    rows: int

    @property
    def places(self) -> list[int]:
        """Of the columns that hold values."""
        value = self.columns.value
        return [place for place, _, _ in self.columns.metrics] if value is None else [value]


def _shape(connection: duckdb.DuckDBPyConnection, path: Path) -> _Shape | None:
    """What the end says of the table; None if it is none of metrics. Raises TooLarge."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {_table(path)}").fetchall()
    names = [str(row[0]) for row in described]
    columns = columns_of(names)
    if columns is None:
        return None
    # Not what it says of the file as a whole: rows are read as the groups say.
    ((groups, expanded),) = connection.execute(
        "SELECT list(DISTINCT (row_group_id, row_group_num_rows)), sum(total_uncompressed_size)::DOUBLE "
        "FROM parquet_metadata(?)",
        [str(path)],
    ).fetchall()
    shape = _Shape(columns, names, [str(row[1]) for row in described], sum(rows for _, rows in groups or ()))
    size = path.stat().st_size
    values = shape.rows * len(shape.places)
    if values > max(FREE_VALUES, VALUES_A_BYTE * size):
        raise TooLarge(
            f"holds {values:,} values in {size:,} bytes, and of more than {FREE_VALUES:,} no more than {VALUES_A_BYTE}"
            " a byte are read"
        )
    if (expanded or 0) > max(FREE_BYTES, MAX_RATIO * size):
        raise TooLarge(f"expands more than {MAX_RATIO}:1, to more than {FREE_BYTES >> 20:,} MiB")
    return shape


def _table(path: Path, names: str = "") -> str:
    text = str(path).replace("'", "''")
    # Nothing that the folders above it are called becomes a column.
    options = "hive_partitioning = false, filename = false, union_by_name = false"
    return f"read_parquet('{text}', {options}){names}"


class _Reading:
    """One table on its way through."""

    def __init__(self, path: str, connection: duckdb.DuckDBPyConnection, file: Path, shape: _Shape) -> None:
        self._path, self._connection = path, connection
        self._table = _table(file, f" AS cells({', '.join(f'c{place}' for place in range(len(shape.names)))})")
        self._shape, self._columns = shape, shape.columns
        self._texts = {place: self._text(place) for place in self._columns.telling}
        self._same = " AND ".join(f"{text} IS NOT DISTINCT FROM keys.k{at}" for at, text in self._texts.items())

    def read(self, sink: Sink) -> Result:
        """Hand on all rows, a window at a time."""
        found = Measurements(self._path, sink, holes=self._columns.value is None)
        for name in self._columns.others:
            found.unasked(name)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute(
            f"CREATE TEMP TABLE keys (key BIGINT{''.join(f', k{place} VARCHAR' for place in self._texts)})"
        )
        places = self._shape.places
        series = np.empty((0, len(places)), dtype=np.intp)
        most, full = max(1, MOST_SERIES // len(places)), False
        rows = max(1, WINDOW >> 9, min(WINDOW, 4 * WINDOW // (2 + len(places))))
        for first in range(0, self._shape.rows, rows):
            if not full:
                numbers, full = self._fresh(found, first, rows, len(series), most)
                series = np.concatenate([series, numbers]) if len(numbers) else series
            window = self._window(places, first, rows)
            times_ms, _ = milliseconds(window["time"])
            for metric, place in enumerate(places):
                found.add(series[window["key"], metric], times_ms, window[f"value{place}"])
        if full:
            found.refuse()
        return found.result([f"split it into files of fewer than {most:,} sets of labels"] if full else ())

    def _fresh(
        self, found: Measurements, first: int, rows: int, known: int, most: int
    ) -> tuple[NDArray[np.intp], bool]:
        """Enter the sets of labels that a window is the first to hold into ``keys``, up to ``most`` in all.

        Gives the numbers of each one's series, shape (sets, metrics), and whether there were more.
        """
        texts = "".join(f", {text} AS k{place}" for place, text in self._texts.items())
        held = " AND ".join(f"met.k{place} IS NOT DISTINCT FROM keys.k{place}" for place in self._texts) or "true"
        self._connection.execute(
            f"""CREATE OR REPLACE TEMP TABLE fresh AS
            SELECT row_number() OVER (ORDER BY met.first) - 1 + {known} AS key, met.*
            FROM (SELECT min(cells.file_row_number) AS first{texts} FROM {self._table}
                  WHERE {_within(first, rows)} GROUP BY ALL) AS met ANTI JOIN keys ON {held}
            WHERE met.first IS NOT NULL ORDER BY met.first LIMIT {most - known + 1}"""
        )
        self._connection.execute(f"INSERT INTO keys SELECT * EXCLUDE (first) FROM fresh WHERE key < {most}")
        fresh = self._connection.execute("SELECT * EXCLUDE (key) FROM fresh ORDER BY key")
        numbers: list[tuple[int, ...]] = []
        met = 0
        while some := fresh.fetchmany(10_000):
            met += len(some)
            for line, *cells in some[: max(0, most - known - len(numbers))]:
                row = [""] * len(self._shape.names)
                for place, cell in zip(self._texts, cells, strict=True):
                    row[place] = (cell or "").strip()
                numbers.append(numbers_of(found, self._columns, row, Position(self._path, line + 1)))
        return np.array(numbers, dtype=np.intp), known + met > most

    def _window(self, places: list[int], first: int, rows: int) -> Mapping[str, NDArray[np.float64]]:
        values = (f"coalesce(TRY_CAST(cells.c{place} AS DOUBLE), {BLANK}) AS value{place}" for place in places)
        found: Mapping[str, NDArray[np.float64]] = self._connection.execute(
            f"SELECT keys.key, {self._time()} AS time, {', '.join(values)} FROM {self._table} "
            f"JOIN keys ON {self._same or 'true'} WHERE {_within(first, rows)} ORDER BY cells.file_row_number"
        ).fetchnumpy()
        return found

    def _text(self, place: int) -> str:
        nested = self._shape.types[place].startswith(("STRUCT", "MAP"))
        text = f"CAST({f'to_json(cells.c{place})' if nested else f'cells.c{place}'} AS VARCHAR)"
        return f"if(strlen({text}) <= {MOST_TEXT}, {text}, NULL)"

    def _time(self) -> str:
        """The time as a number, 0 where there is none: in ms where the type says what it is, else as it stands."""
        name, kind = f"cells.c{self._columns.time}", self._shape.types[self._columns.time]
        if kind == "VARCHAR":
            moment = f"coalesce(TRY_CAST({name} AS DOUBLE), epoch_ms(TRY_CAST({name} AS TIMESTAMPTZ)))"
        elif kind.startswith(("TIMESTAMP", "DATE")):
            moment = f"epoch_ms(CAST({name} AS {'TIMESTAMPTZ' if 'TIME ZONE' in kind else 'TIMESTAMP'}))"
        else:
            moment = f"TRY_CAST({name} AS DOUBLE)"
        return f"coalesce(CAST({moment} AS DOUBLE), 0)"


def _within(first: int, rows: int) -> str:
    return f"cells.file_row_number >= {first} AND cells.file_row_number < {first + rows}"


FORMAT = Format(
    "metric-parquet", "Parquet of metrics: times, and a column a metric or a row a value", "metric", _sniff, _read
)
