"""Measurements written out as JSON lines that VictoriaMetrics imports and our own reader reads: the catalogue's names,
units and labels. It is what is left of a metrics file of which only a part is wanted, or whose bytes can't be redacted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from trackside.model import Event, Record, Run, Samples, Series
from trackside.read.detect import read_source
from trackside.read.format import Source

MARGIN_S = 3600.0
"""Kept before the run's start and after its end."""
_NAMES = {"gpu_health": "DCGM_EXP_GPU_HEALTH_STATUS"}
"""Names of ours that other sources use in another sense."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which samples: of these nodes (all where none are named), between two moments in milliseconds."""

    nodes: frozenset[str] = frozenset()
    start_ms: float = float("-inf")
    end_ms: float = float("inf")

    @classmethod
    def of(cls, run: Run) -> Wanted:
        """Those of a run, and some before and after it."""
        nodes = {*run.nodes, *(node for attempt in run.attempts for node in attempt.nodes)}
        starts = [each for each in (run.start, *(attempt.start for attempt in run.attempts)) if each is not None]
        margin = MARGIN_S + abs(run.metric_offset_s)
        return cls(
            frozenset(_host(node) for node in nodes),
            (min(starts) - margin) * 1000 if starts else float("-inf"),
            (run.end + margin) * 1000 if run.end is not None else float("inf"),
        )

    def has(self, series: Series) -> bool:
        """Whether a series may be the run's."""
        node = series.get("node")
        return not self.nodes or node is None or _host(node) in self.nodes


def _host(node: str) -> str:
    return node.partition(".")[0].lower()


class Written:
    """A sink that writes samples to a file, and leaves out what else a reader finds."""

    def __init__(self, file: IO[bytes], wanted: Wanted) -> None:
        self._file, self._wanted = file, wanted
        self.kept = self.left_out = 0

    def event(self, event: Event) -> None:
        """Not a sample."""

    def record(self, record: Record) -> None:
        """Not a sample."""

    def samples(self, samples: Samples) -> None:
        """Write those that are wanted, a line a series."""
        times, wanted = samples.times_ms, self._wanted
        inside = (times >= wanted.start_ms) & (times <= wanted.end_ms)
        order = np.flatnonzero(inside)[np.argsort(samples.index[inside], kind="stable")]
        index = samples.index[order]
        edges = np.flatnonzero(np.diff(index)) + 1
        self.left_out += len(samples) - len(order)
        for rows in np.split(order, edges) if len(order) else ():
            series = samples.series[int(samples.index[rows[0]])]
            if wanted.has(series):
                self._line(series, times[rows], samples.values[rows])
                self.kept += len(rows)
            else:
                self.left_out += len(rows)

    def _line(self, series: Series, times: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        name = _NAMES.get(series.metric, series.metric)
        # JSON has no infinity: a reader takes the word.
        listed = [each if -1e308 <= each <= 1e308 else str(each) for each in values.tolist()]
        row = {"metric": {"__name__": name, **dict(series.labels)}, "values": listed, "timestamps": times.tolist()}
        self._file.write(_encode(row) + b"\n")

    def lines(self) -> Iterator[bytes]:
        """What was written, once; the file is closed then."""
        with self._file:
            self._file.seek(0)
            while data := self._file.read(1 << 20):
                yield data


def export(source: Source, wanted: Wanted) -> Written:
    """Read a source and write its samples out, into a temporary file that is gone once its lines were read."""
    written = Written(tempfile.TemporaryFile(), wanted)  # noqa: SIM115 - it goes with what was written
    read_source(source, written)
    return written
