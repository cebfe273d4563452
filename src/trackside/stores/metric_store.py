"""Metric stores that are asked for a run's curves: how one is found and named, and what each engine must be.

An engine is a module of :mod:`trackside.stores.metrics` with a :class:`MetricServer` as its ``METRIC_STORE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from trackside.http.client import HttpClient, Traffic
from trackside.http.options import HttpOptions
from trackside.settings.secrets import shown_url
from trackside.stores.curves import Curves
from trackside.stores.registry import DEFAULT_METRICS, METRICS, check_kind, engine

HIDDEN_S = 31.0
"""The newest samples, which VictoriaMetrics shows late and would fill in with older ones: they are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """A metric store, and how its site names things.

    ``kind``: a module of :mod:`trackside.stores.metrics`. ``match``: conditions of every selector, as label -> value or
    as PromQL writes them (``cluster="a"``). ``labels``: the site's label -> ours (node, gpu, job, rank ...); where it
    stands, it holds above what else may tell. ``extra_params``: sent with each request (``extra_label``, ``dedup``,
    ``partial_response`` ...). ``allow_partial``: whether an answer counts that the server itself calls a part.

    Raises ValueError for a kind that there is not.
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
class Scope:
    """Which part of a store concerns the run. ``start``, ``end``: POSIX seconds. All that is known may be given."""

    start: float | None = None
    end: float | None = None
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class MetricServer(Curves):
    """The curves of one run in a store that is asked over HTTP; with samples, it is
    :class:`trackside.stores.curves.Sampled` too.

    All of it raises SourceUnavailable. Close it, or questions under way are waited for at the end.
    """

    title: ClassVar[str]
    """What it is, in messages."""

    def __init__(self, options: MetricOptions, scope: Scope | None = None) -> None:
        """Raises ValueError for certificates that can't be used."""
        self.options, self.scope = options, scope or Scope()
        self.endpoint = HttpClient(options.endpoint)
        self.name = f"{self.title} {self.endpoint.name}"
        """What it is and where, without credentials."""

    @property
    def traffic(self) -> Traffic:
        """What was asked so far."""
        return self.endpoint.traffic

    def close(self) -> None:
        """Ask no more, and end what is under way."""
        self.endpoint.close()

    def begin(self) -> None:
        """Look for the run's series from now on, while other things are done until they are wanted."""

    def anything(self) -> bool:
        """Whether the store has a series under the job's id at all, whenever it was."""
        return bool(self.held())


def open_metrics(options: MetricOptions, scope: Scope | None = None) -> MetricServer:
    """What a store of this kind holds of a run. Raises ValueError for certificates that can't be used."""
    return _engine(options)(options, scope)


def name_of(options: MetricOptions) -> str:
    """How messages call the store, without opening it."""
    return f"{_engine(options).title} {shown_url(options.endpoint.url)}"


def _engine(options: MetricOptions) -> type[MetricServer]:
    found: type[MetricServer] = engine(METRICS, options.kind, "METRIC_STORE")
    return found
