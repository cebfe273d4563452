"""The basic types of Trackside: events, records, series, inputs, runs. Imports no other module of Trackside.

Units are part of a name if it would be ambiguous without (``_s`` seconds, ``_bytes``);
times are POSIX seconds, UTC.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # numpy takes a tenth of a second to import, and most of this needs none of it
    import numpy as np
    from numpy.typing import NDArray

Scalar = str | int | float | bool | None
TimeRange = tuple[float, float]
"""Start and end, POSIX seconds."""

Plane = Literal["log", "metric", "scheduler", "kernel", "collective", "trace"]
GpusBy = Literal["label", "scheduler", "whole", "tracer", "occupancy", "all"]
"""How the GPUs of a run are known. label: the job label of their series; scheduler: its record of GPUs; whole: the job
had all GPUs of its nodes; tracer: its ranks; occupancy: memory in use during the run; all: unknown, these are the
possible ones."""
InputStatus = Literal["read", "partial", "empty", "unrecognised", "unreadable", "refused"]


class EventRole(enum.StrEnum):
    """What a log line is evidence of. Only a ROOT line can name a cause by itself."""

    ROOT = "root"
    CASCADE = "cascade"  # a failure elsewhere, seen from this process
    CONFIRMATION = "confirmation"  # agrees with a cause named elsewhere
    TEARDOWN = "teardown"  # the run was already ending
    ADVICE = "advice"  # a hint printed by a library; never a cause
    OBSERVATION = "fact"  # progress, configuration, life cycle


@dataclass(frozen=True, slots=True)
class Position:
    """A location in an input: 1-based ``line``, byte ``offset`` of the text and its ``length``.

    Formats that are not text put the record's ordinal in ``line`` and leave ``offset`` 0.
    """

    path: str
    line: int
    offset: int = 0
    length: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, according to one input. ``kind`` and ``fields``: :mod:`trackside.catalog.events`."""

    kind: str
    at: Position
    plane: Plane
    text: str = ""
    time: float | None = None
    rank: int | None = None
    node: str | None = None
    role: EventRole = EventRole.OBSERVATION
    parser: str = ""
    fields: Mapping[str, Scalar] = field(default_factory=dict)

    def get(self, name: str) -> Scalar:
        """A field, or one of kind, file (the input; also path, unless a field has that name), line, offset, time, rank,
        node, role, text, parser; None if unknown."""
        if name in self.fields:
            return self.fields[name]
        match name:
            case "file":
                return self.at.path
            case "path" | "line" | "offset":
                location: Scalar = getattr(self.at, name)
                return location
            case "role":
                return self.role.value
            case "kind" | "time" | "rank" | "node" | "text" | "parser":
                value: Scalar = getattr(self, name)
                return value
        return None


@dataclass(frozen=True, slots=True)
class Record:
    """One row that a scheduler or a tool keeps: a job, a step, a node, a rank's flight recorder."""

    kind: str
    at: Position
    plane: Plane
    fields: Mapping[str, Scalar | tuple[Scalar, ...]] = field(default_factory=dict)
    text: str = ""

    def get(self, name: str) -> Scalar:
        """A field as a scalar (tuples joined by commas), or file / path / line / offset / text / kind."""
        if name in self.fields:
            value = self.fields[name]
            return ",".join(str(v) for v in value) if isinstance(value, tuple) else value
        match name:
            case "file":
                return self.at.path
            case "path" | "line" | "offset":
                location: Scalar = getattr(self.at, name)
                return location
            case "kind" | "text":
                return self.kind if name == "kind" else self.text
        return None

    def many(self, name: str) -> tuple[str, ...]:
        """A list-valued field as strings; an unknown one is empty."""
        value = self.fields.get(name)
        if value is None:
            return ()
        return tuple(str(v) for v in value) if isinstance(value, tuple) else (str(value),)


@dataclass(frozen=True, slots=True)
class Series:
    """One series: a metric of :mod:`trackside.catalog.metrics` and the labels that identify it.

    ``labels`` are (name, value) pairs sorted by name, in the catalog's names (node, gpu, job, rank, ...).
    """

    metric: str
    labels: tuple[tuple[str, str], ...]
    at: Position
    """Where it was first seen."""

    def get(self, name: str) -> str | None:
        """A label's value."""
        for (
            label,
            value,
        ) in self.labels:  # called a million times for a large run: a generator takes three times as long
            if label == name:
                return value
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """A block of measurements as columns of equal length, in the catalog's units."""

    series: Sequence[Series]
    index: NDArray[np.int32]
    """Index into ``series``, one per measurement."""
    times_ms: NDArray[np.int64]
    """POSIX milliseconds, UTC."""
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Input:
    """One row of a verdict's ``inputs``: the detected format of a file and the result of reading it."""

    path: str
    format: str | None
    status: InputStatus
    note: str = ""
    rows: int = 0
    plane: Plane | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job by the scheduler (or by a restarting launcher)."""

    number: int
    state: str | None = None
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileRun:
    """One of several runs in a file: its first and last line, and a batch system's report of its end."""

    first: int
    last: int
    report: Event | None = None


@dataclass(frozen=True, slots=True)
class AppendedRuns:
    """The runs in a file, in order; the last one is the run."""

    path: str
    runs: tuple[FileRun, ...]
    more: bool = False
    """Whether there are more, among lines of which not all were kept."""
    started: int | None = None
    """Line where another run starts of which nothing is known; None if there is none."""


@dataclass(frozen=True, slots=True)
class Run:
    """The run that the evidence is about. Unknown fields are None or empty."""

    id: str | None = None
    name: str | None = None
    user: str | None = None
    cluster: str | None = None
    disposition: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    time_limit_s: float | None = None
    nodes: tuple[str, ...] = ()
    n_ranks: int | None = None
    n_gpus: int | None = None
    gpus: tuple[str, ...] = ()
    """The GPUs of the run as ``node:index``, in rank order; empty if no metric shows them."""
    gpus_by: GpusBy | None = None
    """How they were distinguished from other GPUs of the nodes."""
    metric_offset_s: float = 0.0
    """Added to the times of metrics so that they line up with the scheduler's."""
    attempts: tuple[Attempt, ...] = ()
    framework: str | None = None
    parent: str | None = None
    """Id of the run that this one continues (dependency, requeue or restart)."""
    parent_by: str | None = None
    """dependency, requeue, restart or order: how the parent was found."""
    log_paths: tuple[str, ...] = ()
    parent_log_paths: tuple[str, ...] = ()
    clock_offset_s: float = 0.0
    """Added to naive log times so that they line up with the scheduler's."""
    has_time_zone: bool = True
    """False if all times stem from stamps without a time zone, which are read as UTC."""
    aliases: tuple[str, ...] = ()
    """Other ids of the same job (array and het spellings)."""
    other_jobs: tuple[str, ...] = ()
    """Other jobs that the run's log names, if only the log says which job it was."""
    appended: AppendedRuns | None = None
    """If a log of the run holds several runs: where they are, in the log with the most."""
