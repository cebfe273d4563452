"""Finds the streams of a log store that concern a run, by labels, the same way in every store.

A job's own lines have its id in a label; if no label has it, they are those of files named after it. The lines of the
run's nodes are those that belong to no job: the kernel and the system. Each stream is selected by the values of all
labels that identify job, node, rank or file, so no line is in two streams.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from trackside.catalog.labels import Label, normalize
from trackside.catalog.streams import candidates, label_value, short
from trackside.http.client import HttpClient
from trackside.stores.log_store import LogOptions, LogRequest, LogStore, LogStream, Streams

JOB_ID_PATTERN = "[0-9]+([_+][0-9]+)?([.][0-9a-z]+)?"
"""Pattern of a Slurm job's id as a label's whole value. Both RE2 and Lucene support the regular expressions in this
module."""
OUTPUT_FILE_PATTERN = ".*slurm-[0-9].*"
"""Pattern of output files that are named after a job."""
MAX_SHOWN_LABELS = 20
_NODE = Label("node", "host")


class Condition(NamedTuple):
    """A condition on a label: it equals ``value`` (empty: absent), is ``in`` several values, or is entirely (un)like a
    pattern."""

    name: str
    operator: Literal["is", "in", "like", "unlike"]
    value: str = ""
    values: tuple[str, ...] = ()


Conditions = tuple[Condition, ...]
"""Conditions that must all hold."""


class LogServer(LogStore, ABC):
    """A log store that is queried over HTTP, and whose labels identify the streams of a run.

    Subclasses implement what differs between stores. Windows are in nanoseconds; every method may raise
    SourceUnavailable.
    """

    title: ClassVar[str]
    """The product's name, for messages."""

    def __init__(self, options: LogOptions, endpoint: HttpClient | None = None) -> None:
        self.options = options
        self.endpoint = endpoint or HttpClient(options.endpoint)

    @property
    def name(self) -> str:
        return f"{self.title} {self.endpoint.name}"

    def streams(self, request: LogRequest) -> Streams:
        start, end = request.window(self.options, time.time())
        names = _Names(self.names(start, end), self.options)
        notes = []
        of_jobs = _job_streams(self, names, request.jobs, start, end) if request.jobs else []
        if request.jobs and not of_jobs:
            notes.append(f"holds no stream of job {', '.join(request.jobs)} in this time{names.hint('job')}")
        of_nodes = list(_node_streams(self, names, request.nodes, start, end)) if request.nodes else []
        if request.nodes and not of_nodes:
            notes.append(f"holds no stream of the run's {len(request.nodes)} nodes in this time{names.hint('node')}")
        return Streams((*of_jobs, *of_nodes), tuple(notes))

    def all_of(self, conditions: Conditions) -> Conditions:
        """These conditions and those that the site requires of every stream."""
        fixed = (Condition(name, "is", value) for name, value in sorted(self.options.match.items()))
        return (*conditions, *fixed)

    @abstractmethod
    def names(self, start: int, end: int) -> Sequence[str]:
        """The names of labels in a window; there may be more."""

    @abstractmethod
    def values(self, name: str, start: int, end: int) -> Sequence[str]:
        """The values of a label in a window; there may be more."""

    @abstractmethod
    def groups(self, by: Sequence[str], any_of: Sequence[Conditions], start: int, end: int) -> list[Mapping[str, str]]:
        """The combinations of these labels' values in lines that meet any of the conditions; absent labels are left
        out."""

    @abstractmethod
    def selector(self, conditions: Conditions) -> str:
        """The store's query for lines that meet the conditions and those of the site."""


class _Names:
    """A store's labels that may identify the owner of a line, the most reliable first."""

    def __init__(self, names: Sequence[str], options: LogOptions) -> None:
        self.all = sorted(set(names))
        self.job, self.node, rank, self.file, unit = (
            tuple(candidates(role, self.all, options.labels)) for role in ("job", "node", "rank", "file", "unit")
        )
        self.owner_labels = tuple(dict.fromkeys((*self.job, *self.node, *rank, *self.file, *unit)))
        """All of them."""

    @property
    def no_job(self) -> Conditions:
        """Conditions for a line that belongs to no job, by its labels."""
        return tuple(Condition(name, "unlike", JOB_ID_PATTERN) for name in self.job)

    def hint(self, role: str) -> str:
        """A hint for messages: the labels that exist instead."""
        suffix = ", ..." if len(self.all) > MAX_SHOWN_LABELS else ""
        shown = ", ".join(self.all[:MAX_SHOWN_LABELS]) + suffix
        return (
            f"; its labels are {shown}: map the one that names the {role}"
            if shown
            else "; it has no labels in this time"
        )


def _job_streams(store: LogServer, names: _Names, jobs: Sequence[str], start: int, end: int) -> list[LogStream]:
    by_label: list[Conditions] = [(Condition(name, "in", values=tuple(jobs)),) for name in names.job]
    label_sets = store.groups(names.owner_labels, by_label, start, end) if by_label else []
    if not label_sets and names.file:
        pattern = f"(.*[^0-9])?({'|'.join(map(re.escape, jobs))})([^0-9].*)?"
        by_file = [(Condition(name, "like", pattern), *names.no_job) for name in names.file]
        label_sets = store.groups(names.owner_labels, by_file, start, end)
    groups = {tuple((name, labels.get(name, "")) for name in names.owner_labels) for labels in label_sets}
    return [
        LogStream(
            "job",
            _with_job({name: value for name, value in group if value}, store.options, jobs),
            store.selector(tuple(Condition(name, "is", value) for name, value in group)),
            start,
            end,
        )
        for group in sorted(groups)
    ]


def _node_streams(store: LogServer, names: _Names, nodes: Sequence[str], start: int, end: int) -> Iterator[LogStream]:
    node_names = {short(node).lower() for node in nodes}
    no_file = tuple(Condition(name, "unlike", OUTPUT_FILE_PATTERN) for name in names.file)
    for name in names.node:
        values = sorted(set(store.values(name, start, end)))
        node_values = [value for value in values if short(normalize(value, _NODE)).lower() in node_names]
        for value in node_values:
            conditions = (Condition(name, "is", value), *names.no_job, *no_file)
            yield LogStream("node", {name: value}, store.selector(conditions), start, end)
        if node_values:
            return


def _with_job(labels: dict[str, str], options: LogOptions, jobs: Sequence[str]) -> Mapping[str, str]:
    """The labels, with the job's id added if only the file's name has it."""
    if label_value("job", labels, options.labels) in jobs:
        return labels
    file = label_value("file", labels, options.labels)
    job = next((job for job in jobs if re.search(rf"(?<!\d){re.escape(job)}(?!\d)", file)), "")
    name = next((name for name, role in options.labels.items() if role == "job"), "slurm_job_id")
    return {**labels, name: job} if job else labels
