"""A store as it is at one moment, to be read: its tables as SQL, whoever writes meanwhile."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from trackside.stores.embedded.layout import Directory, Lock, Manifest, Segment, StoreError
from trackside.stores.embedded.tables import TABLES, connect, parquet


class Snapshot:
    """What one manifest names. Stays whole while it is open; a later commit is not seen."""

    def __init__(
        self,
        directory: Directory,
        manifest: Manifest,
        lock: Lock | None = None,
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        self.directory, self.manifest = directory, manifest
        self._lock = lock
        self.connection = connect() if connection is None else connection

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Snapshot:
        """Read a store. Raises StoreError."""
        directory = Directory(path)
        if not directory.exists:
            raise StoreError(f"{Path(path)} is no Trackside store; 'trackside ingest PATH --store {path}' makes one")
        lock = Lock.for_reader(directory)  # before the manifest is looked up: no writer deletes what it names
        return cls(directory, directory.read(), lock)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End reading: old segments may go."""
        self.connection.close()
        if self._lock is not None:
            self._lock.close()

    def segments(
        self, table: str, inputs: Collection[int] | None = None, times_ms: tuple[int, int] | None = None
    ) -> list[Segment]:
        """Those of a table that may hold rows of these inputs, or samples in ``(from, to]``."""
        found = self.manifest.of(table)
        if inputs is not None:
            wanted = np.array(sorted(inputs), dtype=np.int64)
            found = [each for each in found if _any_within(wanted, each.inputs)]
        if times_ms is not None:
            first, last = times_ms
            found = [
                each
                for each in found
                if each.times_ms is None or (each.times_ms[1] > first and each.times_ms[0] <= last)
            ]
        return found

    def table(self, table: str, inputs: Collection[int] | None = None, times_ms: tuple[int, int] | None = None) -> str:
        """SQL for a table's rows that count, or a superset of those of some inputs or times."""
        return self.source(table, self.segments(table, inputs, times_ms))

    def source(self, table: str, segments: Sequence[Segment]) -> str:
        """SQL for the rows that count in some segments of a table."""
        if not segments:
            nothing = ", ".join(f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in TABLES[table].items())
            return f"(SELECT {nothing} WHERE false)"
        files = [self.directory.file(each) for each in segments]
        dead = [
            number
            for number in self.manifest.dead
            if any(each.inputs[0] <= number <= each.inputs[1] for each in segments)
        ]
        where = f" WHERE input NOT IN ({', '.join(map(str, dead))})" if dead else ""
        return f"(SELECT * FROM {parquet(files)}{where})"

    def rows(self, sql: str, parameters: Sequence[object] | dict[str, object] | None = None) -> list[tuple[Any, ...]]:
        """The answer as tuples."""
        try:
            return self.connection.execute(sql, parameters).fetchall()
        except (duckdb.Error, OSError) as error:
            raise self._blamed(error) from error

    def arrays(
        self, sql: str, parameters: Sequence[object] | dict[str, object] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The answer as columns; none may hold NULL."""
        try:
            # Not execute(): that hands on what comes while it comes, and takes twice as long to fill arrays of it.
            found = self.connection.sql(sql, params=parameters).fetchnumpy()
        except (duckdb.Error, OSError) as error:
            raise self._blamed(error) from error
        return {name: np.ma.getdata(column) for name, column in found.items()}

    def _blamed(self, error: Exception) -> StoreError:
        """What to tell of a failed query: the segment that is damaged, if one is."""
        text = str(error)
        if not isinstance(error, duckdb.OutOfMemoryException):
            named = [each for each in self.manifest.segments if each.name in text]
            for each in named or self.manifest.segments:
                why = self.fault(each)
                if why:
                    return StoreError(
                        f"{self.directory.file(each)} is {why}: restore it, or let 'trackside compact --store"
                        f" {self.directory.path} --drop-damaged' take it out and say what to ingest again"
                    )
        return StoreError(f"{self.directory.path} can't be read: {text.partition(chr(10))[0]}")

    def fault(self, segment: Segment) -> str:
        """What is wrong with a segment, empty if nothing is. Reads all of it."""
        path = self.directory.file(segment)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            return "missing" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
        if size != segment.bytes:
            return f"damaged ({size:,} bytes of {segment.bytes:,})"
        try:
            columns = ", ".join(f'bit_xor(hash("{name}"))' for name in TABLES[segment.table])
            found = self.connection.execute(f"SELECT count(*), {columns} FROM {parquet([path])}").fetchone()
        except (duckdb.Error, OSError) as error:
            return f"damaged ({str(error).partition(chr(10))[0]})"
        return "" if found is not None and found[0] == segment.rows else "damaged (rows are missing)"


def _any_within(wanted: NDArray[np.int64], bounds: tuple[int, int]) -> bool:
    place = int(np.searchsorted(wanted, bounds[0]))
    return place < len(wanted) and int(wanted[place]) <= bounds[1]
