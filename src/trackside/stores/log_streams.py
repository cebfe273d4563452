"""Which streams of a log store concern a run: found by labels, the same way in every store.

A job's own lines are those whose label has its id; where no label has it, those of files that are named after it. Of
the run's nodes it is what is not some job's: the kernel and the system. Each stream is asked for by the values of all
labels that tell job, node, rank or file, so that no line is in two streams.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from trackside.catalog.labels import Label, normalized
from trackside.catalog.streams import candidates, label_value, short
from trackside.http.client import HttpClient
from trackside.stores.log_store import LogOptions, LogStore, LogStream, Streams, Wanted

NUMERIC = "[0-9]+([_+][0-9]+)?([.][0-9a-z]+)?"
"""What the id of a Slurm job looks like, as a label's whole value. Regular expressions here are such as RE2 and Lucene
both know."""
OUTPUT = ".*slurm-[0-9].*"
"""Paths of output files that name some job."""
MOST_SHOWN = 20
_NODE = Label("node", "host")


class Condition(NamedTuple):
    """What a label must be: this ``value`` (empty: not there), one ``in`` several, or all of it (un)like a pattern."""

    name: str
    operator: Literal["is", "in", "like", "unlike"]
    value: str = ""
    values: tuple[str, ...] = ()


Conditions = tuple[Condition, ...]
"""All of them."""


class LogServer(LogStore, ABC):
    """A log store that is asked over HTTP, whose labels tell which streams concern a run.

    What differs from store to store is left to each. Windows are in nanoseconds; all of it raises Unanswered.
    """

    title: ClassVar[str]
    """What it is, in messages."""

    def __init__(self, options: LogOptions, endpoint: HttpClient | None = None) -> None:
        self.options = options
        self.endpoint = endpoint or HttpClient(options.endpoint)

    @property
    def name(self) -> str:
        return f"{self.title} {self.endpoint.name}"

    def streams(self, wanted: Wanted) -> Streams:
        start, end = wanted.window(self.options, time.time())
        names = _Names(self.names(start, end), self.options)
        notes = []
        of_jobs = _of_jobs(self, names, wanted.jobs, start, end) if wanted.jobs else []
        if wanted.jobs and not of_jobs:
            notes.append(f"holds no stream of job {', '.join(wanted.jobs)} there and then{names.shown('job')}")
        of_nodes = list(_of_nodes(self, names, wanted.nodes, start, end)) if wanted.nodes else []
        if wanted.nodes and not of_nodes:
            notes.append(f"holds no stream of the run's {len(wanted.nodes)} nodes there and then{names.shown('node')}")
        return Streams((*of_jobs, *of_nodes), tuple(notes))

    def all_of(self, conditions: Conditions) -> Conditions:
        """These, and what the site says that every stream must meet."""
        fixed = (Condition(name, "is", value) for name, value in sorted(self.options.match.items()))
        return (*conditions, *fixed)

    @abstractmethod
    def names(self, start: int, end: int) -> Sequence[str]:
        """The names of labels in a window, at least."""

    @abstractmethod
    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        """The values of a label in a window, at least."""

    @abstractmethod
    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """The values of these labels that occur together where any of the conditions is met; absent ones left out."""

    @abstractmethod
    def selector(self, conditions: Conditions) -> str:
        """How the store is asked for the lines that meet them, and what the site says."""


class _Names:
    """A store's labels that may tell whose a line is, the surest first."""

    def __init__(self, names: Sequence[str], options: LogOptions) -> None:
        self.all = sorted(set(names))
        self.job, self.node, rank, self.file, unit = (
            tuple(candidates(role, self.all, options.labels)) for role in ("job", "node", "rank", "file", "unit")
        )
        self.telling = tuple(dict.fromkeys((*self.job, *self.node, *rank, *self.file, *unit)))
        """All of them."""

    @property
    def no_job(self) -> Conditions:
        """No job's line, by its labels."""
        return tuple(Condition(name, "unlike", NUMERIC) for name in self.job)

    def shown(self, role: str) -> str:
        """What there is instead."""
        more = ", ..." if len(self.all) > MOST_SHOWN else ""
        there = ", ".join(self.all[:MOST_SHOWN]) + more
        return f"; its labels are {there}: map the one that tells the {role}" if there else "; it has no labels then"


def _of_jobs(store: LogServer, names: _Names, jobs: Sequence[str], start: int, end: int) -> list[LogStream]:
    by_label: list[Conditions] = [(Condition(name, "in", values=tuple(jobs)),) for name in names.job]
    found = store.groups(names.telling, by_label, start, end) if by_label else []
    if not found and names.file:
        named = f"(.*[^0-9])?({'|'.join(map(re.escape, jobs))})([^0-9].*)?"
        by_file = [(Condition(name, "like", named), *names.no_job) for name in names.file]
        found = store.groups(names.telling, by_file, start, end)
    groups = {tuple((name, labels.get(name, "")) for name in names.telling) for labels in found}
    return [
        LogStream(
            "job",
            _owned({name: value for name, value in group if value}, store.options, jobs),
            store.selector(tuple(Condition(name, "is", value) for name, value in group)),
            start,
            end,
        )
        for group in sorted(groups)
    ]


def _of_nodes(store: LogServer, names: _Names, nodes: Sequence[str], start: int, end: int) -> Iterator[LogStream]:
    there = {short(node).lower() for node in nodes}
    no_file = tuple(Condition(name, "unlike", OUTPUT) for name in names.file)
    for name in names.node:
        values = sorted(set(store.values(name, start, end)))
        theirs = [value for value in values if short(normalized(value, _NODE)).lower() in there]
        for value in theirs:
            conditions = (Condition(name, "is", value), *names.no_job, *no_file)
            yield LogStream("node", {name: value}, store.selector(conditions), start, end)
        if theirs:
            return


def _owned(labels: dict[str, str], options: LogOptions, jobs: Sequence[str]) -> Mapping[str, str]:
    """The labels, with the job's where only the file's name tells it."""
    if label_value("job", labels, options.labels) in jobs:
        return labels
    file = label_value("file", labels, options.labels)
    job = next((job for job in jobs if re.search(rf"(?<!\d){re.escape(job)}(?!\d)", file)), "")
    name = next((name for name, role in options.labels.items() if role == "job"), "slurm_job_id")
    return {**labels, name: job} if job else labels
