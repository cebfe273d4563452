"""Metric stores that are asked for a run's curves: how one is found and named, and what each engine must be.

An engine is a module of :mod:`trackside.stores.metrics` with a :class:`MetricServer` as its ``METRIC_STORE``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trackside.http.client import HttpClient, Traffic
from trackside.http.options import HttpOptions
from trackside.http.unanswered import Unanswered
from trackside.settings.secrets import shown_url
from trackside.stores.curves import Engine, Held
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


class MetricServer(ABC):
    """The curves of one run in a store that is asked over HTTP.

    It is :class:`trackside.stores.curves.Failing` curves; of what curves may offer beyond that (samples, batches) an
    engine has what it can. All of it raises Unanswered. Close it, or questions under way are waited for at the end.
    """

    title: ClassVar[str]
    """What it is, in messages."""

    def __init__(self, options: MetricOptions, scope: Scope | None = None) -> None:
        """Raises ValueError for certificates that can't be used."""
        self.options, self.scope = options, scope or Scope()
        self.endpoint = HttpClient(options.endpoint)

    @property
    def name(self) -> str:
        """What it is and where, without credentials."""
        return f"{self.title} {self.endpoint.name}"

    @property
    def traffic(self) -> Traffic:
        """What was asked so far."""
        return self.endpoint.traffic

    @property
    def failed(self) -> Mapping[str, Unanswered]:
        """Metric -> why it could not be looked at. It isn't held; but that doesn't mean that it was not measured."""
        return {}

    def close(self) -> None:
        """Ask no more, and end what is under way."""
        self.endpoint.close()

    def begin(self) -> None:  # noqa: B027  an engine may leave it
        """Look for the run's series from now on, while other things are done until they are wanted."""

    def anything(self) -> bool:
        """Whether the store has a series under the job's id at all, whenever it was."""
        return bool(self.held())

    @abstractmethod
    def held(self) -> Sequence[Held]:
        """See :class:`trackside.stores.curves.Curves`."""

    @abstractmethod
    def rollup(
        self, groups: Sequence[Sequence[int]], start_ms: int, end_ms: int, step_ms: int, how: Engine
    ) -> tuple[NDArray[np.float64], int]:
        """See :class:`trackside.stores.curves.Curves`."""


def open_metrics(options: MetricOptions, scope: Scope | None = None) -> MetricServer:
    """What a store of this kind holds of a run. Raises ValueError for certificates that can't be used."""
    return _engine(options)(options, scope)


def name_of(options: MetricOptions) -> str:
    """How messages call the store, without opening it."""
    return f"{_engine(options).title} {shown_url(options.endpoint.url)}"


def _engine(options: MetricOptions) -> type[MetricServer]:
    found: type[MetricServer] = engine(METRICS, options.kind, "METRIC_STORE")
    return found
