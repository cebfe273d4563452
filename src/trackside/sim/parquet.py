"""Metrics as Parquet, one row per sample: ts_ms, metric, labels (as Prometheus writes them) and value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.sim.exposition import Array, Style, labels_text

MAX_BUFFERED_SAMPLES = 245_760
"""Samples kept in memory at most: whole row groups of DuckDB, so that no row group of the table is cut short."""
_CONFIG: Mapping[str, Any] = {
    "threads": "1",
    "memory_limit": "256MB",
    "disabled_optimizers": "statistics_propagation",  # it would omit some null flags and so change the bytes
    "autoinstall_known_extensions": False,
}
_QUIET = "SET enable_progress_bar = false"
_CREATE = "CREATE TABLE file (ts_ms BIGINT, metric VARCHAR, labels VARCHAR, value DOUBLE)"
_INSERT = """
    INSERT INTO file SELECT ts_ms, metric, labels, value FROM samples JOIN series USING (number) ORDER BY row
"""
_WRITE = "COPY file TO '{path}' (FORMAT parquet, COMPRESSION zstd)"


class ParquetTable:
    """A file of samples in the order in which they came, written when it is closed. Use as a context manager.

    Until then the samples are in a temporary database next to it, so that memory does not grow with the run.
    """

    def __init__(self, path: Path, lower_case: bool = False) -> None:
        import duckdb

        self._path = path
        self._lower_case = lower_case
        self._name = ""
        self._series: list[tuple[str, str]] = []
        self._times: list[NDArray[np.int64]] = []
        self._values: list[Array] = []
        self._buffered = 0
        self.samples = 0
        self._folder = TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
        self._connection = duckdb.connect(str(Path(self._folder.name) / "samples"), config=dict(_CONFIG))
        self._connection.execute(_QUIET)
        self._connection.execute(_CREATE)

    def __enter__(self) -> ParquetTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._folder, self._connection:
            if kind is None and self.samples:
                self._flush()
                self._connection.execute(_WRITE.format(path=str(self._path).replace("'", "''")))

    def begin_metric(self, name: str, kind: str, help_text: str) -> None:
        """Start a new metric."""
        self._name = name.lower() if self._lower_case else name

    def series(self, labels: Mapping[str, str], times_ms: NDArray[np.int64], values: Array, style: Style) -> None:
        """Write the samples of one series, in order of time, rounded to the digits that text would have."""
        digits = {"whole": 0, "ratio": 6, "decimal": 3}.get(style)
        values = values if digits is None else np.round(values, digits)
        self.samples += len(values)
        while len(values):
            free_samples = MAX_BUFFERED_SAMPLES - self._buffered
            self._series.append((self._name, labels_text(labels)))
            self._times.append(times_ms[:free_samples])
            self._values.append(values[:free_samples])
            self._buffered += len(values[:free_samples])
            if self._buffered == MAX_BUFFERED_SAMPLES:
                self._flush()
            times_ms, values = times_ms[free_samples:], values[free_samples:]

    def _flush(self) -> None:
        """Move the buffered samples to the database."""
        if not self._buffered:
            return
        lengths = [len(values) for values in self._values]
        samples = {
            "row": np.arange(self._buffered),
            "number": np.repeat(np.arange(len(lengths)), lengths),
            "ts_ms": np.concatenate(self._times),
            "value": np.concatenate(self._values).astype(np.float64),
        }
        names = np.array([name for name, _ in self._series], dtype=object)
        labels = np.array([text for _, text in self._series], dtype=object)
        series = {"number": np.arange(len(lengths)), "metric": names, "labels": labels}
        self._connection.register("samples", samples)
        self._connection.register("series", series)
        self._connection.execute(_INSERT)
        self._series, self._times, self._values, self._buffered = [], [], [], 0
