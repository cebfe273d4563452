"""The newest readings of all sources in the Prometheus text format 0.0.4, as served at ``/metrics``."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence

from trackside.agent.delivery.identity import Identity
from trackside.agent.source import Labels, LogLine, Reading, Sample
from trackside.catalog.metrics import METRICS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_CACHED_SERIES = 50_000
"""Maximum number of series whose text is cached."""
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPED_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


class LatestSamples:
    """The newest samples of each source; methods may be called from any thread."""

    def __init__(self, identity: Identity) -> None:
        self._identity, self._lock = identity, threading.Lock()
        self._newest: dict[str, tuple[Sample, ...]] = {}
        self._cache: dict[tuple[str, Labels], str] = {}

    def replace(self, source: str, reading: Reading) -> None:
        """Replace a source's samples."""
        samples = tuple(reading.samples)
        with self._lock:
            self._newest[source] = samples

    def forget(self, source: str) -> None:
        """Drop a source's samples, because it failed or ended."""
        with self._lock:
            self._newest.pop(source, None)

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        """Source -> its newest samples."""
        with self._lock:
            return dict(self._newest)

    def text(self) -> str:
        """All samples as exposition text, grouped by metric."""
        with self._lock:
            newest = [self._newest[source] for source in sorted(self._newest)]
        return "".join(self._lines(sample for samples in newest for sample in samples))

    def _lines(self, samples: Iterable[Sample]) -> Iterable[str]:
        by_metric: dict[str, dict[str, float]] = {}
        for sample in samples:
            text = self._series(sample)
            by_metric.setdefault(sample.metric, {}).setdefault(text, sample.value)  # the first of duplicates
        for name in sorted(by_metric):
            yield metric_header(name)
            for series, value in by_metric[name].items():
                yield f"{series} {value_text(value)}\n"

    def _series(self, sample: Sample) -> str:
        key = sample.metric, sample.labels
        text = self._cache.get(key)
        if text is None:
            if len(self._cache) >= MAX_CACHED_SERIES:
                self._cache.clear()  # processes and jobs come and go, so old entries are dropped
            text = self._cache[key] = series_text(sample.metric, dict(self._identity.of_sample(sample.labels)))
        return text


def metric_header(name: str) -> str:
    """The HELP and TYPE lines of a metric."""
    metric = METRICS.get(name)
    if metric is None:
        return f"# TYPE {name} untyped\n"
    kind = "counter" if metric.kind == "counter" else "gauge"
    return f"# HELP {name} {metric.meaning.translate(_ESCAPED_HELP)}\n# TYPE {name} {kind}\n"


def series_text(name: str, labels: Mapping[str, str]) -> str:
    """A series in the exposition format: name and labels."""
    label_list = ",".join(f'{label}="{value.translate(_ESCAPED)}"' for label, value in labels.items())
    return f"{name}{{{label_list}}}" if label_list else name


def value_text(value: float) -> str:
    """A value in the exposition format."""
    if math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def line_text(line: LogLine, identity: Identity) -> str:
    """A log line as printed by ``--print``: time in seconds, labels, text."""
    seconds, ns = divmod(line.time_ns, 1_000_000_000)
    return f"{seconds}.{ns:09} {series_text('', dict(identity.of_line(line.labels)))} {line.text}"
