"""Records the readings of the agent's sources while a training runs, as a file that Trackside reads."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.agent.source import (
    AgentSource,
    AgentSourceUnavailable,
    Collector,
    Context,
    Labels,
    LogLine,
    Reading,
    Sample,
)

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def open_source(source: AgentSource, messages: list[str]) -> Collector:
    """Open a source as the agent does; tracing sources also trace processes without a job. Raises AgentSourceUnavailable."""
    options = source.options() if source.options is not None else None
    if options is not None and any(option.name == "everything" for option in fields(options)):
        options = replace(options, everything=True)
    return source.open(Context(LocalNode("gpu-01"), Owners(), options, messages.append))


class GpuRecorder:
    """Reads sources every ``interval_s`` until stopped. Times are POSIX milliseconds."""

    def __init__(self, collectors: Mapping[str, Collector], interval_s: float) -> None:
        self._collectors, self._interval_s = collectors, interval_s
        self._end = threading.Event()
        self.samples: dict[tuple[str, Labels], list[tuple[int, float]]] = {}
        self.lines: list[LogLine] = []
        self.warnings: dict[str, int] = {}
        self.read_times: dict[str, list[tuple[float, float]]] = {name: [] for name in collectors}
        """Source -> seconds of CPU and of wall time of each reading."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> GpuRecorder:
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
        except AgentSourceUnavailable as error:
            reading.warnings.append(f"{name}: {error.reason}")
        except Exception as error:  # noqa: BLE001  it is reported as a warning
            reading.warnings.append(f"{name}: {type(error).__name__}: {error}")
        self.read_times[name].append((time.thread_time() - cpu, time.monotonic() - wall))
        self.lines += reading.lines
        for warning in reading.warnings:
            self.warnings[warning] = self.warnings.get(warning, 0) + 1
        for sample in reading.samples:
            key = sample.metric, sample.labels
            self.samples.setdefault(key, []).append((reading.time_ns // 1_000_000, sample.value))

    def values_of(self, metric: str) -> list[float]:
        """All values of a metric, with any labels."""
        return [value for (name, _), points in self.samples.items() if name == metric for _, value in points]

    def write(self, path: Path, node: str) -> None:
        """Write the samples as compressed Prometheus text with times; the same samples give the same bytes."""
        text = "".join(_lines(self.samples, node))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _lines(samples: Mapping[tuple[str, Labels], list[tuple[int, float]]], node: str) -> Iterable[str]:
    for metric, labels in sorted(samples):
        pairs = sorted([*labels, ("node", node)])
        label_text = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in pairs)
        for time_ms, value in samples[metric, labels]:
            yield f"{metric}{{{label_text}}} {value:.10g} {time_ms}\n"


def conforms(sample: Sample, source: AgentSource) -> str:
    """How a sample violates the catalog; empty if it does not."""
    from trackside.catalog.metrics import METRICS, labels_of

    metric = METRICS.get(sample.metric)
    if metric is None or sample.metric not in source.metrics:
        return "a metric that the source does not declare"
    if unknown := {name for name, _ in sample.labels} - labels_of(sample.metric):
        return f"labels that it may not have: {', '.join(sorted(unknown))}"
    if not metric.low <= sample.value <= metric.high:
        return f"{sample.value:g} is not within {metric.low:g} to {metric.high:g}"
    return ""
