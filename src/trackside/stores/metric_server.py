"""Metric stores that are queried for a run's series: how they are found and named, and what each engine implements.

An engine is a module of :mod:`trackside.stores.metrics` with a :class:`MetricServer` as its ``METRIC_SERVER``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from trackside.http.client import HttpClient, HttpTraffic
from trackside.http.options import HttpOptions
from trackside.settings.secrets import url_without_secrets
from trackside.stores.metric_backend import MetricBackend
from trackside.stores.registry import DEFAULT_METRICS, METRICS, check_kind, engine

HIDDEN_S = 31.0
"""Age of the newest samples that are not read: VictoriaMetrics shows them late, and fills in older ones instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """A metric store, and how its site names things.

    ``kind``: a module of :mod:`trackside.stores.metrics`. ``match``: conditions of every selector, as label -> value or
    in PromQL (``cluster="a"``). ``labels``: the site's label -> ours (node, gpu, job, rank ...); it overrides other
    sources of the same fact. ``extra_params``: sent with each request (``extra_label``, ``dedup``, ``partial_response``
    ...). ``allow_partial``: whether to accept an answer that the server marks as partial.

    Raises ValueError for an unknown kind.
    """

    kind: str = DEFAULT_METRICS
    endpoint: HttpOptions
    match: Mapping[str, str] | tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    extra_params: Mapping[str, str] = field(default_factory=dict)
    allow_partial: bool = False

    def __post_init__(self) -> None:
        check_kind(METRICS, self.kind, "metric store")


@dataclass(frozen=True, slots=True)
class RunScope:
    """Which part of a store concerns the run. ``start``, ``end``: POSIX seconds. Give all that is known."""

    start: float | None = None
    end: float | None = None
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class MetricServer(MetricBackend):
    """The series of one run in a store that is queried over HTTP. A store that gives single samples is also a
    :class:`trackside.stores.metric_backend.SampleBackend`.

    Every method may raise SourceUnavailable. Close it, or the process waits for running requests when it ends.
    """

    title: ClassVar[str]
    """The product's name, for messages."""

    def __init__(self, options: MetricOptions, scope: RunScope | None = None) -> None:
        """Raises ValueError for unusable certificates."""
        self.options, self.scope = options, scope or RunScope()
        self.endpoint = HttpClient(options.endpoint)
        self.name = f"{self.title} {self.endpoint.name}"
        """Product and URL, without credentials."""

    @property
    def traffic(self) -> HttpTraffic:
        """Requests and bytes so far."""
        return self.endpoint.traffic

    def close(self) -> None:
        """Cancel running requests and make no more."""
        self.endpoint.close()

    def prefetch(self) -> None:
        """Start to look for the run's series in the background."""

    def has_series(self) -> bool:
        """Whether any series is in the scope, here of a job whose time and nodes are unknown. An engine that can tell
        without a full lookup overrides this."""
        return bool(self.series())


def open_metrics(options: MetricOptions, scope: RunScope | None = None) -> MetricServer:
    """The store's series of a run. Raises ValueError for unusable certificates."""
    return _engine(options)(options, scope)


def name_of(options: MetricOptions) -> str:
    """How messages call the store; does not open it."""
    return f"{_engine(options).title} {url_without_secrets(options.endpoint.url)}"


def _engine(options: MetricOptions) -> type[MetricServer]:
    server: type[MetricServer] = engine(METRICS, options.kind, "METRIC_SERVER")
    return server
