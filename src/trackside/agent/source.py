"""What a source of readings declares, and what it is handed: the contract of :mod:`trackside.agent.sources`."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trackside.agent.node import Node
from trackside.agent.owners import Owners
from trackside.errors import TracksideError

Labels = tuple[tuple[str, str], ...]
"""(name, value) pairs sorted by name; values are never empty."""


class Unavailable(TracksideError):
    """A source that can't be read on this node: why, and what would change that. Each a line."""

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
    """One line of text. ``labels`` say whose: ``node``, ``slurm_job_id``, ``rank``, ``filename``, ``unit``... as
    :mod:`trackside.catalog.streams` reads them."""

    time_ns: int
    labels: Labels
    text: str


@dataclass(slots=True)
class Reading:
    """What one collection gives. ``time_ns``: of its samples, POSIX nanoseconds."""

    time_ns: int = field(default_factory=time.time_ns)
    samples: list[Sample] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    """What the source could not keep since the last reading, by what was lost (lines, bytes, events...)."""
    warnings: list[str] = field(default_factory=list)
    """What it could not read this time though the rest went well, for the agent's own log; a line each."""

    def sample(self, metric: str, value: float, **labels: str | int | None) -> None:
        """Add a measurement. Labels that are None or empty are left out; the node's is added when it is sent."""
        self.samples.append(Sample(metric, pairs(labels), float(value)))

    def line(self, text: str, time_ns: int | None = None, **labels: str | int | None) -> None:
        """Add a line of text; ``time_ns`` is when it was written, as near as is known."""
        self.lines.append(LogLine(self.time_ns if time_ns is None else time_ns, pairs(labels), text))


def pairs(labels: Mapping[str, str | int | None]) -> Labels:
    """Labels as a curve's identity has them."""
    return tuple(sorted((name, str(value)) for name, value in labels.items() if value is not None and value != ""))


class Collector:
    """A source that was opened. Its methods are called from one thread, which is its own."""

    def __init__(self, context: Context) -> None:
        """Raises Unavailable where this node hasn't got the source, or it may not be read."""

    def collect(self, reading: Reading) -> None:
        """Add what there is now. Raises Unavailable where the source went away; it is opened again then, ever more
        seldom. Any other exception counts as a failure of this reading alone."""
        raise NotImplementedError

    def accepted(self) -> None:
        """Everything that is sent on has the last reading on disk. Where it has not, nothing is said, and what that
        reading held is wanted again."""

    def close(self) -> None:
        """Let go of what it holds."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a source is opened with."""

    node: Node
    owners: Owners
    options: Any
    """An instance of the source's ``options``, or None where it has none."""
    say: Callable[[str], object]
    """Takes a line for the agent's own log."""
    state: Path | None = None
    """A folder that outlives the agent, where a source keeps how far it has read in a file ``ID.json`` or such; None:
    there is none."""
    newest: Callable[[], Mapping[str, Sequence[Sample]]] = dict
    """What each source that works, this one too, gave last: its id -> samples."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source of readings. ``open`` raises Unavailable where this node hasn't got it, or it may not be read."""

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
    """Whether it runs unless it is switched off."""
    needs: str = ""
    """What a process without privileges lacks to read it: a group, a capability; empty: nothing."""
    options: type | None = None
    """A frozen dataclass: the keys of its table ``[collect.ID]`` beside ``on``, ``interval_s`` and ``timeout_s``."""


@cache
def sources() -> Mapping[str, Source]:
    """All sources by id."""
    import trackside.agent.sources as room

    found: dict[str, Source] = {}
    for module in pkgutil.iter_modules(room.__path__):
        source = getattr(importlib.import_module(f"{room.__name__}.{module.name}"), "SOURCE", None)
        if source is not None:
            found[source.id] = source
    return found
