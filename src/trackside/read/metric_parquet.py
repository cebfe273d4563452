"""Tables of metrics as Parquet: a column a metric, or a row a value; in any dialect's names.

DuckDB reads it, from a copy beside which nothing else lies: of a file that turns out to hold something else only the
end is copied, where Parquet keeps its schema.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from trackside.catalog.dialect import BLANK
from trackside.model import Position
from trackside.read.format import Format, Match, Result, Sink, Source, TooLarge
from trackside.read.table_columns import Columns, columns_of, numbers_of

if TYPE_CHECKING:  # these take a while to import, and only metrics need them
    import duckdb
    import numpy as np
    from numpy.typing import NDArray

    from trackside.read.measurements import Measurements

_MAGIC = b"PAR1"
MOST_BYTES = 16 << 30
"""Largest file that is copied."""
_PIECE = 8 << 20
WINDOW = 1 << 20
"""Rows that are held at once."""
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "1GB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def _sniff(source: Source) -> Match | None:
    return Match(0.6, "Parquet") if source.head.startswith(_MAGIC) else None


def _read(source: Source, sink: Sink) -> Result:
    import duckdb

    with tempfile.TemporaryDirectory(prefix="trackside-") as folder:
        path = Path(folder) / "table.parquet"
        with path.open("wb") as copy, duckdb.connect(config={**_CONFIG, "temp_directory": folder}) as connection:
            try:
                if _footer(source, copy) and _shape(connection, path) is None:
                    return _other()
                _whole(source, copy)
                shape = _shape(connection, path)
                return _other() if shape is None else _Reading(source.path, connection, path, shape).read(sink)
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
    """Copy all. Raises TooLarge beyond MOST_BYTES and beyond what the disk has room for."""
    copy.seek(0)
    done = 0
    room = min(MOST_BYTES, shutil.disk_usage(copy.name).free)
    while piece := source.stream.read(_PIECE):
        done += len(piece)
        if done > room:
            raise TooLarge(f"larger than the {room >> 20:,} MiB that there is room for")
        copy.write(piece)
    copy.flush()


Shape = tuple[Columns, list[str], list[str]]
"""What the columns are, their names and their types."""


def _shape(connection: duckdb.DuckDBPyConnection, path: Path) -> Shape | None:
    described = connection.execute(f"DESCRIBE SELECT * FROM {_table(path)}").fetchall()
    names = [str(row[0]) for row in described]
    columns = columns_of(names)
    return None if columns is None else (columns, names, [str(row[1]) for row in described])


def _table(path: Path, options: str = "") -> str:
    text = str(path).replace("'", "''")
    return f"read_parquet('{text}'{options})"


class _Reading:
    """One table on its way through."""

    def __init__(self, path: str, connection: duckdb.DuckDBPyConnection, file: Path, shape: Shape) -> None:
        self._path, self._connection = path, connection
        self._table = _table(file, ", file_row_number = true")
        self._columns, self._names, self._types = shape

    def read(self, sink: Sink) -> Result:
        """Hand on all rows, a window at a time."""
        from trackside.read.measurements import Measurements, milliseconds

        found = Measurements(self._path, sink, holes=self._columns.value is None)
        for name in self._columns.others:
            found.unasked(name)
        self._connection.execute("SET TimeZone = 'UTC'")
        series = self._series(found)
        places = [place for place, _, _ in self._columns.metrics]
        places = places if self._columns.value is None else [self._columns.value]
        (total,) = self._connection.execute(f"SELECT count(*) FROM {self._table}").fetchone() or (0,)
        for first in range(0, total, WINDOW):
            window = self._window(places, first)
            times_ms, _ = milliseconds(window["time"])
            for metric, place in enumerate(places):
                found.add(series[window["key"], metric], times_ms, window[f"value{place}"])
        return found.result()

    def _series(self, found: Measurements) -> NDArray[np.intp]:
        """Make the table ``keys``, of all sets of labels; the numbers of each one's series, shape (sets, metrics)."""
        import numpy as np

        telling = self._columns.telling
        texts = ", ".join(f"{self._text(place)} AS k{place}" for place in telling)
        grouped = f"SELECT min(file_row_number) AS first{', ' + texts if texts else ''} FROM {self._table}"
        self._connection.execute(
            "CREATE TEMP TABLE keys AS SELECT row_number() OVER (ORDER BY first) - 1 AS key, * "
            f"FROM ({grouped} GROUP BY ALL) WHERE first IS NOT NULL"
        )
        rows = self._connection.execute("SELECT * EXCLUDE (key) FROM keys ORDER BY key")
        numbers = []
        while some := rows.fetchmany(10_000):
            for first, *cells in some:
                row = [""] * len(self._names)
                for place, cell in zip(telling, cells, strict=True):
                    row[place] = (cell or "").strip()
                numbers.append(numbers_of(found, self._columns, row, Position(self._path, first + 1)))
        return np.array(numbers, dtype=np.intp)

    def _window(self, places: list[int], first: int) -> Mapping[str, NDArray[np.float64]]:
        values = (f"coalesce(TRY_CAST({_quoted(self._names[at])} AS DOUBLE), {BLANK}) AS value{at}" for at in places)
        same = " AND ".join(f"{self._text(at)} IS NOT DISTINCT FROM k{at}" for at in self._columns.telling) or "true"
        found: Mapping[str, NDArray[np.float64]] = self._connection.execute(
            f"SELECT key, {self._time()} AS time, {', '.join(values)} FROM {self._table} AS rows JOIN keys ON {same} "
            "WHERE file_row_number >= ? AND file_row_number < ?",
            [first, first + WINDOW],
        ).fetchnumpy()
        return found

    def _text(self, place: int) -> str:
        name = _quoted(self._names[place])
        nested = self._types[place].startswith(("STRUCT", "MAP"))
        return f"CAST(to_json({name}) AS VARCHAR)" if nested else f"CAST({name} AS VARCHAR)"

    def _time(self) -> str:
        """The time as a number, 0 where there is none: in ms where the type says what it is, else as it stands."""
        name, kind = _quoted(self._names[self._columns.time]), self._types[self._columns.time]
        if kind == "VARCHAR":
            moment = f"coalesce(TRY_CAST({name} AS DOUBLE), epoch_ms(TRY_CAST({name} AS TIMESTAMPTZ)))"
        elif kind.startswith(("TIMESTAMP", "DATE")):
            moment = f"epoch_ms(CAST({name} AS {'TIMESTAMPTZ' if 'TIME ZONE' in kind else 'TIMESTAMP'}))"
        else:
            moment = f"TRY_CAST({name} AS DOUBLE)"
        return f"coalesce(CAST({moment} AS DOUBLE), 0)"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


FORMAT = Format(
    "metric-parquet", "Parquet of metrics: times, and a column a metric or a row a value", "metric", _sniff, _read
)
