"""The tables of a store: their columns, and how a segment is written.

Every segment is a plain Parquet file: ``SELECT * FROM 'DIR/segments/samples-*.parquet'`` works in any tool (files that
the newest manifest does not name are obsolete).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np

from trackside.errors import StoreError
from trackside.stores.embedded.checksums import checksums_of
from trackside.stores.embedded.layout import Directory, TableSegment, sync

ColumnArrays = Mapping[str, Any]
"""Column name -> numpy array, all of one length."""

MINUTE_MS = 60_000
"""Length of the aggregates to which old samples are reduced."""
TABLES: Mapping[str, Mapping[str, str]] = {
    # A file that was read or tried: ``place`` orders inputs as they were first seen, ``root`` is the folder that was
    # given, ``label`` the path below it, ``path`` the name in citations. ``planes``: those of its rows; ``owner``: the
    # job that the log's own lines name; ``training``: JSON of the series of its points.
    "inputs": {
        "input": "INTEGER", "place": "INTEGER", "path": "VARCHAR", "root": "VARCHAR", "label": "VARCHAR",
        "format": "VARCHAR", "status": "VARCHAR", "note": "VARCHAR", "rows": "BIGINT", "plane": "VARCHAR",
        "bytes": "BIGINT", "hash": "VARCHAR", "read_at": "DOUBLE", "planes": "VARCHAR", "is_log": "BOOLEAN",
        "owner": "VARCHAR", "training": "VARCHAR",
    },
    "events": {
        "input": "INTEGER", "seq": "INTEGER", "kind": "VARCHAR", "plane": "VARCHAR", "time": "DOUBLE",
        "rank": "BIGINT", "node": "VARCHAR", "role": "VARCHAR", "parser": "VARCHAR", "job": "VARCHAR",
        "path": "VARCHAR", "line": "BIGINT", "offset": "BIGINT", "length": "BIGINT", "text": "VARCHAR",
        "fields": "VARCHAR",
    },
    # ``job``, ``raw_id``, ``array_id``, ``name``, ``end``, ``node`` repeat fields, for lookups; ``number``: the number
    # at the start of the id; ``outputs``: the names of its output files as recorded, joined with "/".
    "records": {
        "input": "INTEGER", "seq": "INTEGER", "kind": "VARCHAR", "plane": "VARCHAR", "job": "VARCHAR",
        "number": "VARCHAR", "raw_id": "VARCHAR", "array_id": "VARCHAR", "name": "VARCHAR", "end": "DOUBLE",
        "node": "VARCHAR", "outputs": "VARCHAR", "path": "VARCHAR", "line": "BIGINT", "offset": "BIGINT",
        "length": "BIGINT", "text": "VARCHAR", "fields": "VARCHAR",
    },
    # Distinct logged steps as one parser read them in one log; ``pinned`` ones are never thinned, ``held`` ones were
    # still open at its end.
    "points": {
        "input": "INTEGER", "parser": "VARCHAR", "ordinal": "BIGINT", "pinned": "BOOLEAN", "held": "BOOLEAN",
        "time": "DOUBLE", "rank": "BIGINT", "node": "VARCHAR", "step": "DOUBLE", "loss": "DOUBLE",
        "path": "VARCHAR", "line": "BIGINT", "offset": "BIGINT", "length": "BIGINT", "text": "VARCHAR",
        "fields": "VARCHAR",
    },
    # One row per series, permanent; ``labels`` is JSON, ``node`` and ``job`` repeat two of the labels.
    "series": {
        "series": "INTEGER", "hash": "BIGINT", "metric": "VARCHAR", "labels": "VARCHAR", "node": "VARCHAR",
        "job": "VARCHAR",
    },
    # The part of a series that came from one input, and its position there.
    "spans": {
        "input": "INTEGER", "series": "INTEGER", "first_ms": "BIGINT", "last_ms": "BIGINT", "count": "BIGINT",
        "path": "VARCHAR", "line": "BIGINT", "offset": "BIGINT", "length": "BIGINT",
    },
    # Sorted by metric, series, time. ``time_ms``: POSIX milliseconds, UTC; ``value`` in the catalog's unit.
    "samples": {
        "metric": "VARCHAR", "series": "INTEGER", "time_ms": "BIGINT", "value": "DOUBLE", "input": "INTEGER",
    },
    # Pushed values whose unit is unknown until a larger value arrives: unchanged, under their foreign name.
    "waiting": {
        "name": "VARCHAR", "metric": "VARCHAR", "series": "INTEGER", "time_ms": "BIGINT", "value": "DOUBLE",
        "input": "INTEGER",
    },
    # Per-minute aggregates of old samples: those in ``(time_ms - 60000, time_ms]``; ``last`` is the one at ``last_ms``.
    "minutes": {
        "metric": "VARCHAR", "series": "INTEGER", "time_ms": "BIGINT", "min": "DOUBLE", "max": "DOUBLE",
        "sum": "DOUBLE", "count": "INTEGER", "last": "DOUBLE", "last_ms": "BIGINT", "input": "INTEGER",
    },
}  # fmt: skip
ORDER: Mapping[str, str] = {
    "inputs": "input",
    "events": "input, seq",
    "records": "input, seq",
    "points": "input, parser, held, ordinal",
    "series": "series",
    "spans": "input, series",
    "samples": "metric, series, time_ms, value",
    "waiting": "name, series, time_ms, value",
    "minutes": "metric, series, time_ms",
}
"""Sort order of the rows of a segment."""
ROW_GROUP_ROWS = 122_880
"""Rows that are skipped or read together."""
MEMORY_LIMIT = "1GB"
"""Memory limit of DuckDB, beyond which it spills to disk."""


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB connection in this process with bounded memory, which writes no database and uses no network."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spill_folder = tempfile.mkdtemp(prefix="trackside-duckdb-")  # private: nobody else can create or read it
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "threads": threads,
        "temp_directory": spill_folder,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(":memory:", config=settings)
    weakref.finalize(connection, shutil.rmtree, spill_folder, ignore_errors=True)
    connection.execute("SET parquet_metadata_cache = true")  # a segment never changes
    connection.execute("SET enable_progress_bar = false")
    return connection


def parquet(files: Sequence[str]) -> str:
    """SQL for the rows of Parquet files. Names of parent folders do not become columns."""
    literals = ", ".join(map(sql_literal, files))
    return f"read_parquet([{literals}], hive_partitioning = false, filename = false, union_by_name = false)"


def write(connection: duckdb.DuckDBPyConnection, directory: Directory, table: str, source: str) -> str:
    """Write a query's result as a segment of a table, synced; returns its name. Raises StoreError."""
    name = f"{table}-{secrets.token_hex(8)}.parquet"
    final = directory.segments / name
    temporary = directory.segments / f".{name}.new"
    columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in TABLES[table].items())
    options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS}, PARQUET_VERSION V2"
    try:
        connection.execute(f"COPY (SELECT {columns} FROM ({source})) TO {sql_literal(str(temporary))} ({options})")
        sync(temporary)
        os.rename(temporary, final)
    except (duckdb.Error, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(
            f"{final} cannot be written: {_write_failure(error)}; what was committed before is intact"
        ) from error
    return name


def _write_failure(error: Exception) -> str:
    """The reason of a failed write: the system's message if there is one, which DuckDB wraps."""
    number = re.search(r'"errno":"(\d+)"', str(error))
    return os.strerror(int(number[1])) if number else str(error).partition("\n")[0]


def write_columns(
    connection: duckdb.DuckDBPyConnection,
    directory: Directory,
    table: str,
    columns: ColumnArrays,
    metrics: Sequence[str] | None = None,
) -> TableSegment:
    """Write columns as a segment. ``metrics``: the names that the numbers in a column ``code`` stand for."""
    connection.register("block", dict(columns))
    source = "SELECT * FROM block"
    if metrics is not None:  # a join would not keep the order
        literals = ", ".join(sql_literal(metric) for metric in metrics)
        source = f"SELECT [{literals}][code + 1] AS metric, * FROM block"
    try:
        name = write(connection, directory, table, source)
    finally:
        connection.unregister("block")
    inputs, times = columns.get("input"), columns.get("time_ms")
    return segment_of(
        directory,
        table,
        name,
        len(next(iter(columns.values()))),
        (0, 0) if inputs is None else (int(np.min(inputs)), int(np.max(inputs))),
        None if times is None else (int(np.min(times)), int(np.max(times))),
    )


def segment_of(
    directory: Directory,
    table: str,
    name: str,
    rows: int,
    inputs: tuple[int, int],
    times_ms: tuple[int, int] | None,
    level: int = 0,
) -> TableSegment:
    """What the manifest says of a segment that was just written. Raises StoreError."""
    path = directory.segments / name
    try:
        return TableSegment(table, name, rows, path.stat().st_size, inputs, times_ms, level, checksums_of(path))
    except OSError as error:
        raise StoreError(f"{path} cannot be read after it was written: {error.strerror}") from error


def sql_literal(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
