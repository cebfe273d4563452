"""Tables of metrics as Parquet: one column per metric, or one row per value, with names of any dialect.

DuckDB reads a copy in a folder of its own. First only the end of the file is copied, where Parquet keeps its schema and
sizes, to reject other tables cheaply. Column names from the file never appear in SQL: the columns are ``c0``, ``c1``
and so on.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK
from trackside.model import Position
from trackside.read.compression import FREE_BYTES, MAX_RATIO
from trackside.read.format import Format, InputSource, InputTooLarge, Match, Result, Sink
from trackside.read.measurements import MAX_SERIES, Measurements, milliseconds
from trackside.read.table_columns import TableColumns, columns_of, series_numbers

if TYPE_CHECKING:
    import duckdb

_MAGIC = b"PAR1"
MAX_FILE_BYTES = 16 << 30
"""Largest file that is read, bytes."""
FREE_VALUES = 32 << 20
"""A table may always hold this many values, however small the file."""
MAX_VALUES_PER_BYTE = 50
"""Maximum number of values per byte of the file beyond FREE_VALUES. A sample takes about 3 bytes; in a hundred columns
that hardly ever change, a thirtieth of a byte; one value repeated a million times takes almost none."""
MAX_CELL_BYTES = 64 << 10
"""Longest cell that identifies a row's series, bytes; a longer cell counts as empty."""
_PIECE_BYTES = 8 << 20
WINDOW_ROWS = 1 << 20
"""Maximum number of rows in memory at once; fewer for a wide table."""
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "1GB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def _sniff(source: InputSource) -> Match | None:
    return Match(0.6, "Parquet") if source.head.startswith(_MAGIC) else None


def _read(source: InputSource, sink: Sink) -> Result:
    import duckdb  # only runs with a Parquet file need it

    with tempfile.TemporaryDirectory(prefix="trackside-") as folder:
        path = Path(folder) / "table.parquet"
        with path.open("wb") as copy, duckdb.connect(config={**_CONFIG, "temp_directory": folder}) as connection:
            try:
                if _copy_footer(source, copy) and _shape(connection, path) is None:
                    return _not_metrics()
                _copy_all(source, copy)
                shape = _shape(connection, path)
                return (
                    _not_metrics() if shape is None else _TableReader(source.path, connection, path, shape).read(sink)
                )
            except duckdb.BinderException:  # our query is wrong, not the file
                raise
            except duckdb.Error as error:
                message_lines = str(error).replace(str(path), source.name).splitlines()
                raise ValueError(f"damaged or truncated: {message_lines[0][:200]}") from None


def _not_metrics() -> Result:
    return Result(0, "unrecognised", "no time column or no known metric")


def _copy_footer(source: InputSource, copy: IO[bytes]) -> bool:
    """Copy the end of the file, which holds the schema; False for a stream that cannot seek."""
    stream = source.stream
    if not stream.seekable():
        return False
    size = stream.seek(0, 2)
    stream.seek(max(0, size - 8))
    length, magic = struct.unpack("<I4s", stream.read(8).rjust(8, b"\0"))
    if magic != _MAGIC or length + 12 > size:
        raise ValueError("damaged or truncated: no Parquet footer at its end")
    stream.seek(size - 8 - length)
    copy.truncate(size)
    copy.seek(0)
    copy.write(_MAGIC)
    copy.seek(size - 8 - length)
    shutil.copyfileobj(stream, copy, _PIECE_BYTES)
    copy.flush()
    stream.seek(0)
    return True


def _copy_all(source: InputSource, copy: IO[bytes]) -> None:
    """Copy the whole file. Raises InputTooLarge beyond MAX_FILE_BYTES or half of the free disk space.

    A compressed file or archive member ends when the expansion budget of the file on disk is exhausted.
    """
    copy.seek(0)
    copied_bytes = 0
    max_bytes = min(MAX_FILE_BYTES, shutil.disk_usage(copy.name).free // 2)
    while piece := source.stream.read(_PIECE_BYTES):
        copied_bytes += len(piece)
        if copied_bytes > max_bytes:
            raise InputTooLarge(f"larger than the limit of {max_bytes >> 20:,} MiB")
        copy.write(piece)
    copy.flush()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The columns, their names and types, and the number of rows."""

    columns: TableColumns
    names: list[str]
    types: list[str]
    rows: int

    @property
    def value_columns(self) -> list[int]:
        """Indices of the columns that hold values."""
        value = self.columns.value
        return [index for index, _, _ in self.columns.metrics] if value is None else [value]


def _shape(connection: duckdb.DuckDBPyConnection, path: Path) -> _Shape | None:
    """The shape from the Parquet footer; None if the table holds no metrics. Raises InputTooLarge."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {_table(path)}").fetchall()
    names = [str(row[0]) for row in described]
    columns = columns_of(names)
    if columns is None:
        return None
    # Row counts of the groups, not of the file as a whole: DuckDB reads rows by group.
    ((groups, expanded),) = connection.execute(
        "SELECT list(DISTINCT (row_group_id, row_group_num_rows)), sum(total_uncompressed_size)::DOUBLE "
        "FROM parquet_metadata(?)",
        [str(path)],
    ).fetchall()
    shape = _Shape(columns, names, [str(row[1]) for row in described], sum(rows for _, rows in groups or ()))
    size = path.stat().st_size
    values = shape.rows * len(shape.value_columns)
    if values > max(FREE_VALUES, MAX_VALUES_PER_BYTE * size):
        raise InputTooLarge(
            f"holds {values:,} values in {size:,} bytes; the limit beyond {FREE_VALUES:,} values is"
            f" {MAX_VALUES_PER_BYTE} per byte"
        )
    if (expanded or 0) > max(FREE_BYTES, MAX_RATIO * size):
        raise InputTooLarge(f"expands more than {MAX_RATIO}:1, to more than {FREE_BYTES >> 20:,} MiB")
    return shape


def _table(path: Path, names: str = "") -> str:
    text = str(path).replace("'", "''")
    # Names of parent folders must not become columns.
    options = "hive_partitioning = false, filename = false, union_by_name = false"
    return f"read_parquet('{text}', {options}){names}"


class _TableReader:
    """Reads one table."""

    def __init__(self, path: str, connection: duckdb.DuckDBPyConnection, file: Path, shape: _Shape) -> None:
        self._path, self._connection = path, connection
        self._table = _table(file, f" AS cells({', '.join(f'c{index}' for index in range(len(shape.names)))})")
        self._shape, self._columns = shape, shape.columns
        self._texts = {index: self._text(index) for index in self._columns.identifying_columns}
        self._same = " AND ".join(f"{text} IS NOT DISTINCT FROM keys.k{index}" for index, text in self._texts.items())

    def read(self, sink: Sink) -> Result:
        """Read all rows, a window at a time."""
        measurements = Measurements(self._path, sink, nan_is_blank=self._columns.value is None)
        for name in self._columns.others:
            measurements.add_unknown(name)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute(
            f"CREATE TEMP TABLE keys (key BIGINT{''.join(f', k{column} VARCHAR' for column in self._texts)})"
        )
        value_columns = self._shape.value_columns
        series = np.empty((0, len(value_columns)), dtype=np.intp)
        max_sets, is_full = max(1, MAX_SERIES // len(value_columns)), False
        rows = max(1, WINDOW_ROWS >> 9, min(WINDOW_ROWS, 4 * WINDOW_ROWS // (2 + len(value_columns))))
        for first in range(0, self._shape.rows, rows):
            if not is_full:
                numbers, is_full = self._add_label_sets(measurements, first, rows, len(series), max_sets)
                series = np.concatenate([series, numbers]) if len(numbers) else series
            window = self._window(value_columns, first, rows)
            times_ms, _ = milliseconds(window["time"])
            for metric, column in enumerate(value_columns):
                measurements.add(series[window["key"], metric], times_ms, window[f"value{column}"])
        if is_full:
            measurements.count_rejected()
        return measurements.result([f"split it into files of fewer than {max_sets:,} label sets"] if is_full else ())

    def _add_label_sets(
        self, measurements: Measurements, first: int, rows: int, known_sets: int, max_sets: int
    ) -> tuple[NDArray[np.intp], bool]:
        """Add the label sets that first occur in this window to ``keys``, up to ``max_sets`` in all.

        Returns their series numbers, shape (sets, metrics), and whether the limit was exceeded.
        """
        texts = "".join(f", {text} AS k{index}" for index, text in self._texts.items())
        same_labels = (
            " AND ".join(f"met.k{index} IS NOT DISTINCT FROM keys.k{index}" for index in self._texts) or "true"
        )
        self._connection.execute(
            f"""CREATE OR REPLACE TEMP TABLE fresh AS
            SELECT row_number() OVER (ORDER BY met.first) - 1 + {known_sets} AS key, met.*
            FROM (SELECT min(cells.file_row_number) AS first{texts} FROM {self._table}
                  WHERE {_within(first, rows)} GROUP BY ALL) AS met ANTI JOIN keys ON {same_labels}
            WHERE met.first IS NOT NULL ORDER BY met.first LIMIT {max_sets - known_sets + 1}"""
        )
        self._connection.execute(f"INSERT INTO keys SELECT * EXCLUDE (first) FROM fresh WHERE key < {max_sets}")
        new_sets = self._connection.execute("SELECT * EXCLUDE (key) FROM fresh ORDER BY key")
        numbers: list[tuple[int, ...]] = []
        set_count = 0
        while batch := new_sets.fetchmany(10_000):
            set_count += len(batch)
            for line, *cells in batch[: max(0, max_sets - known_sets - len(numbers))]:
                row = [""] * len(self._shape.names)
                for index, cell in zip(self._texts, cells, strict=True):
                    row[index] = (cell or "").strip()
                numbers.append(series_numbers(measurements, self._columns, row, Position(self._path, line + 1)))
        return np.array(numbers, dtype=np.intp), known_sets + set_count > max_sets

    def _window(self, columns: list[int], first: int, rows: int) -> Mapping[str, NDArray[np.float64]]:
        values = (f"coalesce(TRY_CAST(cells.c{column} AS DOUBLE), {BLANK}) AS value{column}" for column in columns)
        arrays: Mapping[str, NDArray[np.float64]] = self._connection.execute(
            f"SELECT keys.key, {self._time()} AS time, {', '.join(values)} FROM {self._table} "
            f"JOIN keys ON {self._same or 'true'} WHERE {_within(first, rows)} ORDER BY cells.file_row_number"
        ).fetchnumpy()
        return arrays

    def _text(self, index: int) -> str:
        nested = self._shape.types[index].startswith(("STRUCT", "MAP"))
        text = f"CAST({f'to_json(cells.c{index})' if nested else f'cells.c{index}'} AS VARCHAR)"
        return f"if(strlen({text}) <= {MAX_CELL_BYTES}, {text}, NULL)"

    def _time(self) -> str:
        """SQL for the time as a number, 0 if missing: in ms if the type is a timestamp, else the raw value."""
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
    "metric-parquet",
    "metrics as Parquet: a time column, and one column per metric or one row per value",
    "metric",
    _sniff,
    _read,
)
