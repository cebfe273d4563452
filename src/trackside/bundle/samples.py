"""Writes samples as JSON lines that VictoriaMetrics can import and Trackside can read, with the catalog's names, units
and labels. Replaces metrics files of which only a part is included, or whose bytes cannot be redacted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from trackside.catalog.streams import host_of
from trackside.model import Event, Record, Run, Samples, Series
from trackside.read.detect import read_source
from trackside.read.format import InputSource

MARGIN_S = 3600.0
"""Time included before the run's start and after its end, seconds."""
_NAMES = {"gpu_health": "DCGM_EXP_GPU_HEALTH_STATUS"}
"""Metric names that other sources use with another meaning -> an unambiguous name."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Selects samples of these nodes (all nodes if empty) between two times in milliseconds."""

    nodes: frozenset[str] = frozenset()
    start_ms: float = float("-inf")
    end_ms: float = float("inf")

    @classmethod
    def of(cls, run: Run) -> SampleFilter:
        """The filter for a run, with a margin before and after it."""
        nodes = {*run.nodes, *(node for attempt in run.attempts for node in attempt.nodes)}
        starts = [time for time in (run.start, *(attempt.start for attempt in run.attempts)) if time is not None]
        margin = MARGIN_S + abs(run.metric_offset_s)
        return cls(
            frozenset(host_of(node) for node in nodes),
            (min(starts) - margin) * 1000 if starts else float("-inf"),
            (run.end + margin) * 1000 if run.end is not None else float("inf"),
        )

    def selects(self, series: Series) -> bool:
        """Whether a series may belong to the run."""
        node = series.get("node")
        return not self.nodes or node is None or host_of(node) in self.nodes


class SampleWriter:
    """A sink that writes samples to a file and ignores events and records."""

    def __init__(self, file: IO[bytes], sample_filter: SampleFilter) -> None:
        self._file, self._sample_filter = file, sample_filter
        self.written_count = self.left_out_count = 0

    def event(self, event: Event) -> None:
        """Ignore it."""

    def record(self, record: Record) -> None:
        """Ignore it."""

    def samples(self, samples: Samples) -> None:
        """Write the selected samples, one line per series."""
        times, sample_filter = samples.times_ms, self._sample_filter
        inside = (times >= sample_filter.start_ms) & (times <= sample_filter.end_ms)
        order = np.flatnonzero(inside)[np.argsort(samples.index[inside], kind="stable")]
        index = samples.index[order]
        edges = np.flatnonzero(np.diff(index)) + 1
        self.left_out_count += len(samples) - len(order)
        for rows in np.split(order, edges) if len(order) else ():
            series = samples.series[int(samples.index[rows[0]])]
            if sample_filter.selects(series):
                self._line(series, times[rows], samples.values[rows])
                self.written_count += len(rows)
            else:
                self.left_out_count += len(rows)

    def _line(self, series: Series, times: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        name = _NAMES.get(series.metric, series.metric)
        # JSON has no infinity; readers accept it as text.
        json_values = [value if -1e308 <= value <= 1e308 else str(value) for value in values.tolist()]
        row = {"metric": {"__name__": name, **dict(series.labels)}, "values": json_values, "timestamps": times.tolist()}
        self._file.write(_encode(row) + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Yield what was written and close the file; usable once."""
        with self._file:
            self._file.seek(0)
            while data := self._file.read(1 << 20):
                yield data


def export(source: InputSource, sample_filter: SampleFilter) -> SampleWriter:
    """Read a source and write its samples to a temporary file, which is deleted when its lines were read."""
    writer = SampleWriter(tempfile.TemporaryFile(), sample_filter)  # noqa: SIM115 - closed by lines()
    read_source(source, writer)
    return writer
