"""A consistent view of a store, for reading: its tables as SQL, unaffected by later commits."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from trackside.errors import StoreError
from trackside.stores.embedded.checksums import damaged_blocks, is_intact
from trackside.stores.embedded.layout import (
    Directory,
    Lock,
    StoreDamaged,
    StoreManifest,
    TableSegment,
    not_a_store_message,
)
from trackside.stores.embedded.tables import TABLES, connect, parquet


class Snapshot:
    """What one manifest names. It stays complete while it is open, and does not show later commits."""

    def __init__(
        self,
        directory: Directory,
        manifest: StoreManifest,
        lock: Lock | None = None,
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        self.directory, self.manifest = directory, manifest
        self._lock = lock
        self._checked_names: set[str] = set()
        """Segments whose checksums fit."""
        self.connection = connect() if connection is None else connection

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Snapshot:
        """Read a store. Raises StoreError."""
        directory = Directory(path)
        if not directory.exists:
            raise StoreError(not_a_store_message(path))
        lock = Lock.for_reader(directory)  # before the manifest is read, so that no writer deletes what it names
        try:
            return cls(directory, directory.read(), lock)
        except BaseException:
            if lock is not None:
                lock.close()
            raise

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End reading, so that old segments may be deleted."""
        self.connection.close()
        if self._lock is not None:
            self._lock.close()

    def segments(
        self, table: str, inputs: Collection[int] | None = None, times_ms: tuple[int, int] | None = None
    ) -> list[TableSegment]:
        """The segments of a table that may hold rows of these inputs, or samples in ``(from, to]``."""
        segments = self.manifest.of(table)
        if inputs is not None:
            input_ids = np.array(sorted(inputs), dtype=np.int64)
            segments = [segment for segment in segments if _any_within(input_ids, segment.inputs)]
        if times_ms is not None:
            first, last = times_ms
            segments = [
                segment
                for segment in segments
                if segment.times_ms is None or (segment.times_ms[1] > first and segment.times_ms[0] <= last)
            ]
        return segments

    def table(self, table: str, inputs: Collection[int] | None = None, times_ms: tuple[int, int] | None = None) -> str:
        """SQL for a table's valid rows, or for a superset of those of some inputs or times."""
        return self.source(table, self.segments(table, inputs, times_ms))

    def source(self, table: str, segments: Sequence[TableSegment]) -> str:
        """SQL for the valid rows in some segments of a table. Raises StoreDamaged."""
        if not segments:
            empty_columns = ", ".join(f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in TABLES[table].items())
            return f"(SELECT {empty_columns} WHERE false)"
        for segment in segments:
            self._check(segment)
        files = [self.directory.file(segment) for segment in segments]
        dead = [
            number
            for number in self.manifest.dead
            if any(segment.inputs[0] <= number <= segment.inputs[1] for segment in segments)
        ]
        where = f" WHERE input NOT IN ({', '.join(map(str, dead))})" if dead else ""
        return f"(SELECT * FROM {parquet(files)}{where})"

    def rows(self, sql: str, parameters: Sequence[object] | dict[str, object] | None = None) -> list[tuple[Any, ...]]:
        """The result as tuples."""
        try:
            return self.connection.execute(sql, parameters).fetchall()
        except (duckdb.Error, OSError) as error:
            raise self._explain(error) from error

    def arrays(
        self, sql: str, parameters: Sequence[object] | dict[str, object] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The result as columns; none may hold NULL."""
        try:
            # Not execute(): it returns results while they arrive, and takes twice as long to fill arrays with them.
            columns = self.connection.sql(sql, params=parameters).fetchnumpy()
        except (duckdb.Error, OSError) as error:
            raise self._explain(error) from error
        return {name: np.ma.getdata(column) for name, column in columns.items()}

    def _check(self, segment: TableSegment) -> None:
        """Compare a segment with its checksums, once."""
        if segment.name in self._checked_names or not segment.checksums:
            return
        try:
            fits = is_intact(self.directory.file(segment), segment.checksums)
        except OSError:
            fits = False
        if not fits:
            raise self._damage_error(segment, self.fault(segment) or "damaged")
        self._checked_names.add(segment.name)

    def require_intact(self, segment: TableSegment) -> None:
        """Read all of a segment. Raises StoreDamaged."""
        if fault := self.fault(segment):
            raise self._damage_error(segment, fault)

    def _explain(self, error: Exception) -> StoreError:
        """An error for a failed query that names the damaged segment, if there is one."""
        text = str(error)
        if not isinstance(error, duckdb.OutOfMemoryException):
            named_segments = [segment for segment in self.manifest.segments if segment.name in text]
            for segment in named_segments or self.manifest.segments:
                damage = self.fault(segment)
                if damage:
                    return self._damage_error(segment, damage)
        return StoreError(f"{self.directory.path} cannot be read: {text.partition(chr(10))[0]}")

    def _damage_error(self, segment: TableSegment, damage: str) -> StoreDamaged:
        return StoreDamaged(
            f"{self.directory.file(segment)} is {damage}: restore it from a copy, or let 'trackside check --store"
            f" {self.directory.path} --repair' rebuild the store from the rest and list what to ingest again"
        )

    def fault(self, segment: TableSegment) -> str:
        """What is wrong with a segment; empty if nothing is. Reads all of it."""
        path = self.directory.file(segment)
        try:
            size = os.stat(path).st_size
            if size != segment.bytes:
                return f"damaged ({size:,} bytes of {segment.bytes:,})"
            if segment.checksums:
                blocks = damaged_blocks(path, segment.checksums)
                return f"damaged (bytes {_join_ranges(blocks)} changed since they were written)" if blocks else ""
        except OSError as error:
            return "missing" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
        try:
            columns = ", ".join(f'bit_xor(hash("{name}"))' for name in TABLES[segment.table])
            row = self.connection.execute(f"SELECT count(*), {columns} FROM {parquet([path])}").fetchone()
        except (duckdb.Error, OSError) as error:
            return f"damaged ({str(error).partition(chr(10))[0]})"
        return "" if row is not None and row[0] == segment.rows else "damaged (rows are missing)"


def _join_ranges(blocks: Sequence[range]) -> str:
    """Ranges of offsets as text; the first and the number of the others."""
    first = f"{blocks[0].start:,} to {blocks[0].stop - 1:,}"
    return first + (f" and in {len(blocks) - 1} other blocks" if len(blocks) > 1 else "")


def _any_within(input_ids: NDArray[np.int64], bounds: tuple[int, int]) -> bool:
    index = int(np.searchsorted(input_ids, bounds[0]))
    return index < len(input_ids) and int(input_ids[index]) <= bounds[1]
