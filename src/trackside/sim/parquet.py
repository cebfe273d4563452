"""Metrics as Parquet, a row a sample: ts_ms, metric, labels (as Prometheus writes them) and value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from trackside.sim.exposition import Array, Style, labels_text

_WRITE = """
    COPY (SELECT ts_ms, metric, labels, value FROM samples JOIN series USING (number) ORDER BY row)
    TO '{path}' (FORMAT parquet, COMPRESSION zstd)
"""


class ParquetTable:
    """A file of samples, written when it is closed. Use as a context manager."""

    def __init__(self, path: Path, lower: bool = False) -> None:
        self._path = path
        self._lower = lower
        self._name = ""
        self._series: list[tuple[str, str]] = []
        self._times: list[NDArray[np.int64]] = []
        self._values: list[Array] = []
        self.samples = 0

    def __enter__(self) -> ParquetTable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and self._series:
            self._write()

    def family(self, name: str, kind: str, help_text: str) -> None:
        """A new metric begins."""
        self._name = name.lower() if self._lower else name

    def curve(self, labels: Mapping[str, str], times_ms: NDArray[np.int64], values: Array, style: Style) -> None:
        """Samples of one series, in order of time, with the digits that text would have."""
        if not len(values):
            return
        digits = {"whole": 0, "ratio": 6, "decimal": 3}.get(style)
        self._series.append((self._name, labels_text(labels)))
        self._times.append(times_ms)
        self._values.append(values if digits is None else np.round(values, digits))
        self.samples += len(values)

    def _write(self) -> None:
        import duckdb

        lengths = [len(values) for values in self._values]
        samples = {
            "row": np.arange(self.samples),
            "number": np.repeat(np.arange(len(lengths)), lengths),
            "ts_ms": np.concatenate(self._times),
            "value": np.concatenate(self._values).astype(np.float64),
        }
        names = np.array([name for name, _ in self._series], dtype=object)
        labels = np.array([text for _, text in self._series], dtype=object)
        series = {"number": np.arange(len(lengths)), "metric": names, "labels": labels}
        with duckdb.connect(config={"threads": "1", "autoinstall_known_extensions": False}) as connection:
            connection.register("samples", samples)
            connection.register("series", series)
            connection.execute(_WRITE.format(path=str(self._path).replace("'", "''")))
