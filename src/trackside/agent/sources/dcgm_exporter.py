"""A dcgm-exporter that serves this node: its values are passed on, and the sources of NVML leave them out.

Its names and units become ours by the dialect ``dcgm``. Left out are fields whose unit differs between versions of the
exporter: NVML tells the same in a known one.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from trackside.agent.owners import Owners
from trackside.agent.source import Collector, Context, Labels, Reading, Sample, Source, Unavailable
from trackside.agent.taken_over import DCGM_EXPORTER, Curve, curve
from trackside.catalog.dialect import BLANK_RANGES, translate
from trackside.catalog.exposition import line_of, series_of
from trackside.catalog.metrics import METRICS

WITHIN_S = 3.0
"""One scrape, from the connection to the last byte."""
MOST_BYTES = 16 << 20
MOST_LINES, MOST_LINE = 50_000, 8 << 10
MOST_SERIES = 20_000
_REMEDY = "none is needed: NVML is read instead; where one listens elsewhere, set url in [collect.dcgm_exporter]"


@dataclass(frozen=True, slots=True)
class Options:
    """``url``: where the exporter serves this node's GPUs."""

    url: str = "http://127.0.0.1:9400/metrics"


class _Known(NamedTuple):
    """A series of the exporter's in our terms, ``gpu`` and its own word of the job apart."""

    metric: str
    labels: dict[str, str]
    scale: float


class _Exporter(Collector):
    def __init__(self, context: Context) -> None:
        """Raises Unavailable where nothing of the kind answers."""
        self._owners: Owners = context.owners
        self._url = context.options.url
        self._known: dict[bytes, _Known | None] = {}
        self._samples()

    def collect(self, reading: Reading) -> None:
        reading.samples.extend(self._samples().values())

    def _samples(self) -> dict[Curve, Sample]:
        """What it serves now, each curve once: some fields of DCGM are the same thing. Raises Unavailable."""
        found: dict[Curve, Sample] = {}
        owned: dict[str, Labels] = {}
        for series, value in _measured(self._scrape()):
            known = self._translated(series)
            if known is None or any(low <= value <= high for low, high in BLANK_RANGES):
                continue
            value *= known.scale
            metric = METRICS[known.metric]
            if metric.low <= value <= metric.high:
                sample = Sample(known.metric, self._labels(known, owned), value)
                key = curve(sample.metric, sample.labels)
                if key not in found or b"ENFORCED" in series:  # of two power limits, the one that holds
                    found[key] = sample
        if not found:
            raise Unavailable(f"what answers at {self._url} tells nothing of a GPU", _REMEDY)
        return found

    def _labels(self, known: _Known, owned: dict[str, Labels]) -> Labels:
        """With whose the GPU is: by the exporter's word, where its own job mapping is on, else by ours."""
        if "job" in known.labels:
            return tuple(sorted(known.labels.items()))
        gpu = known.labels.get("gpu", "")
        if gpu not in owned:
            owner = self._owners.of_gpu(gpu) if gpu else None
            pairs = (("job", owner.job), ("user", owner.user)) if owner is not None else ()
            owned[gpu] = tuple((name, value) for name, value in pairs if value)
        return tuple(sorted({**dict(owned[gpu]), **known.labels}.items()))

    def _translated(self, text: bytes) -> _Known | None:
        if text not in self._known:
            if len(self._known) >= MOST_SERIES:  # labels that change with each scrape
                self._known.clear()
            self._known[text] = _in_our_terms(text)
        return self._known[text]

    def _scrape(self) -> bytes:
        """The exporter's page. Raises Unavailable."""
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        try:
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("it must begin with http:// or https:// and name a host")
            connection = kind(parts.hostname, parts.port, timeout=WITHIN_S)
        except ValueError as error:
            raise Unavailable(f"the url {self._url!r} can't be read: {error}", _REMEDY) from None
        try:
            path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "text/plain", "Connection": "close"})
            with closing(connection.getresponse()) as answer:
                if answer.status != http.client.OK:
                    raise Unavailable(f"{self._url} answers {answer.status} {answer.reason}"[:200], _REMEDY)
                return b"".join(_pieces(answer))
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no dcgm-exporter answers at {self._url}: {error}"[:300], _REMEDY) from None
        finally:
            connection.close()


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body, bounded in size and in time: a server that drips gives up its turn. Raises TimeoutError."""
    until, taken = time.monotonic() + WITHIN_S, 0
    while piece := answer.read1(1 << 16):
        taken += len(piece)
        yield piece
        if taken > MOST_BYTES:
            raise OSError(f"its page is over {MOST_BYTES >> 20} MiB")
        if time.monotonic() > until:
            raise TimeoutError(f"its page takes over {WITHIN_S:g} s")


def _measured(page: bytes) -> Iterator[tuple[bytes, float]]:
    """(series as it stands there, value) of the page's lines; what is none is passed over."""
    for text in page.split(b"\n", MOST_LINES)[:MOST_LINES]:
        if len(text) <= MOST_LINE and not text.startswith(b"#") and (line := line_of(text)) is not None:
            yield line.series, line.value


def _in_our_terms(text: bytes) -> _Known | None:
    series = series_of(text.decode("utf-8", "replace"))
    if series is None:
        return None
    ours = translate(*series)
    if ours is None or not ours.metric.startswith("gpu_") or ours.guess:
        return None
    # The node's name is the agent's to give; the driver's version stands on gpu_present.
    labels = {name: value for name, value in ours.labels if name not in ("node", "driver", "source")}
    return _Known(ours.metric, labels, ours.scale)


SOURCE = Source(
    id=DCGM_EXPORTER,
    title="a dcgm-exporter on this node, in place of reading the same twice",
    open=_Exporter,
    metrics=tuple(name for name in METRICS if name.startswith("gpu_")),
    interval_s=10.0,
    options=Options,
)
