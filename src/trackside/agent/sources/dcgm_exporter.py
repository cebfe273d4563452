"""A dcgm-exporter on this node: its values are passed on, and the NVML sources leave them out.

The dialect ``dcgm`` translates its names and units. Fields whose unit differs between versions of the exporter are left
out: NVML reports them in a known unit.
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
from trackside.agent.preferred_source import DCGM_EXPORTER, SeriesKey, series_key
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Labels, Reading, Sample
from trackside.catalog.dialect import BLANK_RANGES, translate
from trackside.catalog.exposition import line_of, series_of
from trackside.catalog.metrics import METRICS

SCRAPE_TIMEOUT_S = 3.0
"""Time limit of a scrape, from connecting to the last byte."""
MAX_BYTES = 16 << 20
MAX_LINES, MAX_LINE_BYTES = 50_000, 8 << 10
MAX_SERIES = 20_000
_REMEDY = "not needed where the source gpu works; if an exporter listens elsewhere, set url in [collect.dcgm_exporter]"


@dataclass(frozen=True, slots=True)
class DcgmExporterOptions:
    """``url``: address of the exporter for this node's GPUs."""

    url: str = "http://127.0.0.1:9400/metrics"


class _TranslatedSeries(NamedTuple):
    """A series of the exporter in the catalog's terms. ``labels``: all its labels, including a job from the exporter's
    own job mapping."""

    metric: str
    labels: dict[str, str]
    scale: float


class _Exporter(Collector):
    def __init__(self, context: Context) -> None:
        """Raises AgentSourceUnavailable if no exporter answers."""
        self._owners: Owners = context.owners
        self._url = context.options.url
        self._translations: dict[bytes, _TranslatedSeries | None] = {}
        self._samples()

    def collect(self, reading: Reading) -> None:
        reading.samples.extend(self._samples().values())

    def _samples(self) -> dict[SeriesKey, Sample]:
        """Current samples, each series once, because some DCGM fields are the same value. Raises
        AgentSourceUnavailable."""
        samples: dict[SeriesKey, Sample] = {}
        owner_labels: dict[str, Labels] = {}
        for series, value in _parse_page(self._scrape()):
            translation = self._translate(series)
            if translation is None or any(low <= value <= high for low, high in BLANK_RANGES):
                continue
            value *= translation.scale
            metric = METRICS[translation.metric]
            if metric.low <= value <= metric.high:
                sample = Sample(translation.metric, self._labels(translation, owner_labels), value)
                key = series_key(sample.metric, sample.labels)
                if key not in samples or b"ENFORCED" in series:  # of two power limits, use the enforced one
                    samples[key] = sample
        if not samples:
            raise AgentSourceUnavailable(f"the page at {self._url} has no GPU metrics", _REMEDY)
        return samples

    def _labels(self, translation: _TranslatedSeries, owner_labels: dict[str, Labels]) -> Labels:
        """The labels including the GPU's owner: from the exporter's own job mapping if it is on, else from the process
        map."""
        if "job" in translation.labels:
            return tuple(sorted(translation.labels.items()))
        gpu = translation.labels.get("gpu", "")
        if gpu not in owner_labels:
            owner = self._owners.of_gpu(gpu) if gpu else None
            pairs = (("job", owner.job), ("user", owner.user)) if owner is not None else ()
            owner_labels[gpu] = tuple((name, value) for name, value in pairs if value)
        return tuple(sorted({**dict(owner_labels[gpu]), **translation.labels}.items()))

    def _translate(self, text: bytes) -> _TranslatedSeries | None:
        if text not in self._translations:
            if len(self._translations) >= MAX_SERIES:  # labels change with each scrape
                self._translations.clear()
            self._translations[text] = _translate_series(text)
        return self._translations[text]

    def _scrape(self) -> bytes:
        """The exporter's page. Raises AgentSourceUnavailable."""
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        try:
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("it must start with http:// or https:// and name a host")
            connection = kind(parts.hostname, parts.port, timeout=SCRAPE_TIMEOUT_S)
        except ValueError as error:
            raise AgentSourceUnavailable(f"the url {self._url!r} is invalid: {error}", _REMEDY) from None
        try:
            path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "text/plain", "Connection": "close"})
            with closing(connection.getresponse()) as response:
                if response.status != http.client.OK:
                    raise AgentSourceUnavailable(
                        f"{self._url} answers {response.status} {response.reason}"[:200], _REMEDY
                    )
                return b"".join(_chunks(response))
        except (OSError, http.client.HTTPException) as error:
            reason = (getattr(error, "strerror", None) or "").lower() or str(error)
            raise AgentSourceUnavailable(f"no dcgm-exporter answers at {self._url} ({reason})"[:300], _REMEDY) from None
        finally:
            connection.close()


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body, limited in size and total time. Raises OSError, TimeoutError."""
    deadline, size = time.monotonic() + SCRAPE_TIMEOUT_S, 0
    while chunk := response.read1(1 << 16):
        size += len(chunk)
        yield chunk
        if size > MAX_BYTES:
            raise OSError(f"its page is larger than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the response took longer than {SCRAPE_TIMEOUT_S:g} s")


def _parse_page(page: bytes) -> Iterator[tuple[bytes, float]]:
    """(series text, value) of the page's lines; other lines are skipped."""
    for text in page.split(b"\n", MAX_LINES)[:MAX_LINES]:
        if len(text) <= MAX_LINE_BYTES and not text.startswith(b"#") and (line := line_of(text)) is not None:
            yield line.series, line.value


def _translate_series(text: bytes) -> _TranslatedSeries | None:
    series = series_of(text.decode("utf-8", "replace"))
    if series is None:
        return None
    translated = translate(*series)
    if translated is None or not translated.metric.startswith("gpu_") or translated.guess:
        return None
    # The agent adds the node's name itself; the driver version is a label of gpu_present.
    labels = {name: value for name, value in translated.labels if name not in ("node", "driver", "source")}
    return _TranslatedSeries(translated.metric, labels, translated.scale)


SOURCE = AgentSource(
    id=DCGM_EXPORTER,
    title="GPU metrics of a dcgm-exporter on this node; gpu and gpm leave out what it has",
    open=_Exporter,
    metrics=tuple(name for name in METRICS if name.startswith("gpu_")),
    interval_s=10.0,
    options=DcgmExporterOptions,
)
