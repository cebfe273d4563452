"""The newest readings of all sources in Prometheus' text format 0.0.4, as ``/metrics`` gives them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence

from trackside.agent.out.identity import Identity
from trackside.agent.source import Labels, LogLine, Reading, Sample
from trackside.catalog.metrics import METRICS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_KNOWN = 50_000
"""Series whose text is remembered."""
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPED_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Board:
    """The newest samples of each source, to be asked for from any thread."""

    def __init__(self, identity: Identity) -> None:
        self._identity, self._lock = identity, threading.Lock()
        self._newest: dict[str, tuple[Sample, ...]] = {}
        self._known: dict[tuple[str, Labels], str] = {}

    def take(self, source: str, reading: Reading) -> None:
        """What a source gave, in the place of what it gave before."""
        samples = tuple(reading.samples)
        with self._lock:
            self._newest[source] = samples

    def forget(self, source: str) -> None:
        """It failed or ended: what it gave is no longer so."""
        with self._lock:
            self._newest.pop(source, None)

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        """Source -> its newest samples, as of now."""
        with self._lock:
            return dict(self._newest)

    def text(self) -> str:
        """All samples, by metric."""
        with self._lock:
            newest = [self._newest[source] for source in sorted(self._newest)]
        return "".join(self._lines(sample for samples in newest for sample in samples))

    def _lines(self, samples: Iterable[Sample]) -> Iterable[str]:
        by_metric: dict[str, dict[str, float]] = {}
        for sample in samples:
            series = self._series(sample)
            by_metric.setdefault(sample.metric, {}).setdefault(series, sample.value)  # of two, the first
        for name in sorted(by_metric):
            yield head(name)
            for series, value in by_metric[name].items():
                yield f"{series} {number(value)}\n"

    def _series(self, sample: Sample) -> str:
        key = sample.metric, sample.labels
        text = self._known.get(key)
        if text is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()  # processes and jobs come and go
            text = self._known[key] = series(sample.metric, dict(self._identity.of_sample(sample.labels)))
        return text


def head(name: str) -> str:
    """A metric's HELP and TYPE."""
    metric = METRICS.get(name)
    if metric is None:
        return f"# TYPE {name} untyped\n"
    kind = "counter" if metric.kind == "counter" else "gauge"
    return f"# HELP {name} {metric.meaning.translate(_ESCAPED_HELP)}\n# TYPE {name} {kind}\n"


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as the format writes it."""
    inside = ",".join(f'{label}="{value.translate(_ESCAPED)}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name


def number(value: float) -> str:
    """A value as the format writes it."""
    if math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def line_text(line: LogLine, identity: Identity) -> str:
    """A line of text as it is shown: its time in seconds, its labels, and itself."""
    seconds, ns = divmod(line.time_ns, 1_000_000_000)
    return f"{seconds}.{ns:09} {series('', dict(identity.of_line(line.labels)))} {line.text}"
