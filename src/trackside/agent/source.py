"""What a source declares and what it gets: the interface of :mod:`trackside.agent.sources`."""

from __future__ import annotations

import importlib
import pkgutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.errors import TracksideError

Labels = tuple[tuple[str, str], ...]
"""(name, value) pairs sorted by name; values are never empty."""


class AgentSourceUnavailable(TracksideError):
    """A source cannot be read on this node. ``reason`` and ``remedy`` (how to change it) are one line each."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement, in the name and unit of :mod:`trackside.catalog.metrics`."""

    metric: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of text. ``labels`` identify its origin: ``node``, ``slurm_job_id``, ``rank``, ``filename``,
    ``unit``..., as :mod:`trackside.catalog.streams` reads them."""

    time_ns: int
    labels: Labels
    text: str


@dataclass(slots=True)
class Reading:
    """The result of one collection. ``time_ns``: time of its samples, POSIX nanoseconds."""

    time_ns: int = field(default_factory=time.time_ns)
    samples: list[Sample] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    """Number of items that the source had to drop since the last reading, by kind (lines, bytes, events...)."""
    warnings: list[str] = field(default_factory=list)
    """What could not be read this time although the reading succeeded; one line each, for the agent's own log."""

    def sample(self, metric: str, value: float, **labels: str | int | None) -> None:
        """Add a measurement. Labels that are None or empty are left out; the node label is added when sending."""
        self.samples.append(Sample(metric, pairs(labels), float(value)))

    def line(self, text: str, time_ns: int | None = None, **labels: str | int | None) -> None:
        """Add a line of text; ``time_ns``: when it was written, as precisely as known."""
        self.lines.append(LogLine(self.time_ns if time_ns is None else time_ns, pairs(labels), text))


def pairs(labels: Mapping[str, str | int | None]) -> Labels:
    """Labels in the canonical form that identifies a series."""
    return tuple(sorted((name, str(value)) for name, value in labels.items() if value is not None and value != ""))


class Collector(ABC):
    """An open source. All its methods are called from its own thread."""

    def __init__(self, context: Context) -> None:
        """Raises AgentSourceUnavailable if this node does not have the source, or the agent may not read it."""

    @abstractmethod
    def collect(self, reading: Reading) -> None:
        """Add the current readings. Raises AgentSourceUnavailable if the source went away; the runner then reopens it
        after growing pauses. Any other exception fails this reading only."""

    def accepted(self) -> None:
        """Called when the last reading is on disk for all receivers. If it is not called, the source should offer that
        reading again."""

    def close(self) -> None:
        """Release its resources."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a source is opened with."""

    node: LocalNode
    owners: Owners
    options: Any
    """An instance of the source's ``options``, or None if it has none."""
    say: Callable[[str], object]
    """Writes a line to the agent's own log."""
    state: Path | None = None
    """A folder that outlives the agent, where a source saves how far it has read, in a file such as ``ID.json``; None:
    there is no such folder."""
    newest: Callable[[], Mapping[str, Sequence[Sample]]] = dict
    """Source id -> samples of its last reading, for every working source, including this one."""


@dataclass(frozen=True, slots=True)
class AgentSource:
    """One source of readings. ``open`` raises AgentSourceUnavailable if this node does not have it, or the agent may
    not read it."""

    id: str
    """Its name in settings, flags and ``trackside_collector_*{collector=...}``."""
    title: str
    """What it reads, in a few words."""
    open: Callable[[Context], Collector]
    metrics: tuple[str, ...] = ()
    """Names of :mod:`trackside.catalog.metrics` that it may give."""
    lines: str = ""
    """What lines of text it gives, if any."""
    interval_s: float = 15.0
    timeout_s: float = 10.0
    on: bool = True
    """Whether it runs by default."""
    needs: str = ""
    """What an unprivileged process lacks to read it: a group, a capability; empty: nothing."""
    capabilities: tuple[str, ...] = ()
    """Those without which it reads only processes and files of the agent's own user."""
    options: type | None = None
    """A frozen dataclass with the keys of ``[collect.ID]`` other than ``on``, ``interval_s`` and ``timeout_s``."""


@cache
def sources() -> Mapping[str, AgentSource]:
    """All sources by id."""
    import trackside.agent.sources as package

    by_id: dict[str, AgentSource] = {}
    for module in pkgutil.iter_modules(package.__path__):
        source = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "SOURCE", None)
        if source is not None:
            by_id[source.id] = source
    return by_id
