"""The tables of a store: their columns, and how a segment of one is written.

Every segment is a plain Parquet file: ``SELECT * FROM 'DIR/segments/samples-*.parquet'`` works in any tool (files that
the newest manifest doesn't name are left-overs).
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

from trackside.stores.embedded.layout import Directory, Segment, StoreError, sync

Columns = Mapping[str, Any]
"""Column name -> numpy array; all of one length."""

TABLES: Mapping[str, Mapping[str, str]] = {
    # A file read, or tried: ``place`` orders inputs as they were first seen, ``root`` is the folder that was given,
    # ``label`` the path below it, ``path`` what citations call it. ``planes``: those of its rows; ``owner``: the job
    # that the log's own lines name; ``training``: JSON of the series of its points.
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
    # ``job``, ``raw_id``, ``array_id``, ``name``, ``end``, ``node`` repeat fields, to be found by; ``number``: what the
    # id begins with; ``outputs``: the names of its output files as recorded, with "/" between them.
    "records": {
        "input": "INTEGER", "seq": "INTEGER", "kind": "VARCHAR", "plane": "VARCHAR", "job": "VARCHAR",
        "number": "VARCHAR", "raw_id": "VARCHAR", "array_id": "VARCHAR", "name": "VARCHAR", "end": "DOUBLE",
        "node": "VARCHAR", "outputs": "VARCHAR", "path": "VARCHAR", "line": "BIGINT", "offset": "BIGINT",
        "length": "BIGINT", "text": "VARCHAR", "fields": "VARCHAR",
    },
    # Distinct training points as one parser read them in one log; ``pinned`` ones are never thinned away, ``held``
    # ones were still open at its end.
    "points": {
        "input": "INTEGER", "parser": "VARCHAR", "ordinal": "BIGINT", "pinned": "BOOLEAN", "held": "BOOLEAN",
        "time": "DOUBLE", "rank": "BIGINT", "node": "VARCHAR", "step": "DOUBLE", "loss": "DOUBLE",
        "path": "VARCHAR", "line": "BIGINT", "offset": "BIGINT", "length": "BIGINT", "text": "VARCHAR",
        "fields": "VARCHAR",
    },
    # One curve each, for good; ``labels`` is JSON, ``node`` and ``job`` repeat two of them.
    "series": {
        "series": "INTEGER", "hash": "BIGINT", "metric": "VARCHAR", "labels": "VARCHAR", "node": "VARCHAR",
        "job": "VARCHAR",
    },
    # What of a series came from one input, and where in it that begins.
    "spans": {
        "input": "INTEGER", "series": "INTEGER", "first_ms": "BIGINT", "last_ms": "BIGINT", "count": "BIGINT",
        "path": "VARCHAR", "line": "BIGINT", "offset": "BIGINT", "length": "BIGINT",
    },
    # Sorted by metric, series, time. ``time_ms``: POSIX milliseconds, UTC; ``value`` in the catalogue's unit.
    "samples": {
        "metric": "VARCHAR", "series": "INTEGER", "time_ms": "BIGINT", "value": "DOUBLE", "input": "INTEGER",
    },
    # Values that were sent and whose unit only a larger one can tell: as they came, under the name they came by.
    "waiting": {
        "name": "VARCHAR", "metric": "VARCHAR", "series": "INTEGER", "time_ms": "BIGINT", "value": "DOUBLE",
        "input": "INTEGER",
    },
    # The samples of minutes gone by: those in ``(time_ms - 60000, time_ms]``; ``last`` is the one at ``last_ms``.
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
"""How the rows of a segment are sorted."""
ROW_GROUP = 122_880
"""Rows that are skipped or read together."""
MEMORY = "1GB"
"""What DuckDB may hold, beyond which it spills."""


def connect() -> duckdb.DuckDBPyConnection:
    """An engine in this process, with bounded memory, that neither writes a database nor goes to the network."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spilled = tempfile.mkdtemp(prefix="trackside-duckdb-")  # nobody else can have made it, or reads in it
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "threads": threads,
        "temp_directory": spilled,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(":memory:", config=settings)
    weakref.finalize(connection, shutil.rmtree, spilled, ignore_errors=True)
    connection.execute("SET parquet_metadata_cache = true")  # a segment never changes
    connection.execute("SET enable_progress_bar = false")
    return connection


def parquet(files: Sequence[str]) -> str:
    """SQL for the rows of Parquet files: nothing that the folders above them are called becomes a column of them."""
    listed = ", ".join(map(quoted, files))
    return f"read_parquet([{listed}], hive_partitioning = false, filename = false, union_by_name = false)"


def write(connection: duckdb.DuckDBPyConnection, directory: Directory, table: str, source: str) -> str:
    """Write what a query gives as a segment of a table, synced; gives its name. Raises StoreError."""
    name = f"{table}-{secrets.token_hex(8)}.parquet"
    final = directory.segments / name
    temporary = directory.segments / f".{name}.new"
    columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in TABLES[table].items())
    options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP}, PARQUET_VERSION V2"
    try:
        connection.execute(f"COPY (SELECT {columns} FROM ({source})) TO {quoted(str(temporary))} ({options})")
        sync(temporary)
        os.rename(temporary, final)
    except (duckdb.Error, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{final} can't be written: {_reason(error)}; what was committed before is safe") from error
    return name


def _reason(error: Exception) -> str:
    """What to tell of a failed write: the system's word where there is one, which DuckDB wraps up."""
    number = re.search(r'"errno":"(\d+)"', str(error))
    return os.strerror(int(number[1])) if number else str(error).partition("\n")[0]


def write_columns(
    connection: duckdb.DuckDBPyConnection,
    directory: Directory,
    table: str,
    columns: Columns,
    metrics: Sequence[str] | None = None,
) -> Segment:
    """Write columns as a segment. ``metrics`` are the words that the numbers in a column ``code`` stand for."""
    connection.register("block", dict(columns))
    source = "SELECT * FROM block"
    if metrics is not None:  # a join would not keep the order
        words = ", ".join(quoted(metric) for metric in metrics)
        source = f"SELECT [{words}][code + 1] AS metric, * FROM block"
    try:
        name = write(connection, directory, table, source)
    finally:
        connection.unregister("block")
    inputs, times = columns.get("input"), columns.get("time_ms")
    return Segment(
        table,
        name,
        len(next(iter(columns.values()))),
        os.stat(directory.segments / name).st_size,
        (0, 0) if inputs is None else (int(np.min(inputs)), int(np.max(inputs))),
        None if times is None else (int(np.min(times)), int(np.max(times))),
    )


def quoted(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
