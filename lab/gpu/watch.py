"""What the agent's sources say while something runs, kept for a file that Trackside reads."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.agent.source import Collector, Context, Labels, LogLine, Reading, Sample, Source, Unavailable

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def opened(source: Source, messages: list[str]) -> Collector:
    """As the agent opens it; sources that trace are told to trace what belongs to no job. Raises Unavailable."""
    options = source.options() if source.options is not None else None
    if options is not None and any(option.name == "everything" for option in fields(options)):
        options = replace(options, everything=True)
    return source.open(Context(LocalNode("gpu-01"), Owners(), options, messages.append))


class Watch:
    """Reads sources every ``interval_s`` until it is ended. Times are POSIX milliseconds."""

    def __init__(self, collectors: Mapping[str, Collector], interval_s: float) -> None:
        self._collectors, self._interval_s = collectors, interval_s
        self._end = threading.Event()
        self.samples: dict[tuple[str, Labels], list[tuple[int, float]]] = {}
        self.lines: list[LogLine] = []
        self.warnings: dict[str, int] = {}
        self.read_times: dict[str, list[tuple[float, float]]] = {name: [] for name in collectors}
        """Source -> seconds of CPU and of wall time of each reading."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._end.is_set():
            begin = time.monotonic()
            for name, collector in self._collectors.items():
                self._read(name, collector)
            self._end.wait(max(0.0, self._interval_s - (time.monotonic() - begin)))

    def _read(self, name: str, collector: Collector) -> None:
        reading, cpu, wall = Reading(), time.thread_time(), time.monotonic()
        try:
            collector.collect(reading)
        except Unavailable as error:
            reading.warnings.append(f"{name}: {error.reason}")
        except Exception as error:  # noqa: BLE001  it is told in the report
            reading.warnings.append(f"{name}: {type(error).__name__}: {error}")
        self.read_times[name].append((time.thread_time() - cpu, time.monotonic() - wall))
        self.lines += reading.lines
        for warning in reading.warnings:
            self.warnings[warning] = self.warnings.get(warning, 0) + 1
        for sample in reading.samples:
            key = sample.metric, sample.labels
            self.samples.setdefault(key, []).append((reading.time_ns // 1_000_000, sample.value))

    def of(self, metric: str) -> list[float]:
        """All values of a metric, whatever its labels."""
        return [value for (name, _), points in self.samples.items() if name == metric for _, value in points]

    def write(self, path: Path, node: str) -> None:
        """As Prometheus' text with times, packed; the same each time for the same samples."""
        text = "".join(_lines(self.samples, node))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _lines(samples: Mapping[tuple[str, Labels], list[tuple[int, float]]], node: str) -> Iterable[str]:
    for metric, labels in sorted(samples):
        pairs = sorted([*labels, ("node", node)])
        inside = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in pairs)
        for time_ms, value in samples[metric, labels]:
            yield f"{metric}{{{inside}}} {value:.10g} {time_ms}\n"


def conforms(sample: Sample, source: Source) -> str:
    """What is wrong with a sample by the catalog; empty: nothing."""
    from trackside.catalog.metrics import METRICS, labels_of

    metric = METRICS.get(sample.metric)
    if metric is None or sample.metric not in source.metrics:
        return "a metric that the source does not declare"
    if strange := {name for name, _ in sample.labels} - labels_of(sample.metric):
        return f"labels that it may not carry: {', '.join(sorted(strange))}"
    if not metric.low <= sample.value <= metric.high:
        return f"{sample.value:g} is not within {metric.low:g} to {metric.high:g}"
    return ""
