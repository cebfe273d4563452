"""The results of queries to Slurm, by commands or slurmrestd: replies for the readers, rows for failed queries."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trackside.catalog.slurm.values import split_job_id
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Input
from trackside.read.format import HEAD_BYTES, InputSource
from trackside.runs.jobs import plain_id

MAX_NODES = 20_000
"""Nodes whose state is queried."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as received. ``path``: how citations name it, such as ``sacct -D -j 4242``."""

    path: str
    data: bytes

    def source(self) -> InputSource:
        """A new source for the readers."""
        return InputSource(self.path, self.data[:HEAD_BYTES], io.BytesIO(self.data), len(self.data))


Replies = list[Reply | Input]
"""Empty: Slurm answered and has no such job or node. A row: the query and why it has no answer."""


class Slurm(Protocol):
    """One cluster, queried by commands or through slurmrestd. Nothing here raises: a failure becomes a row."""

    cluster: str
    """As the settings name it; empty for the default of the commands or the server."""

    def accounting(self, ids: Sequence[str]) -> Replies:
        """Jobs, their steps and all attempts, from slurmdbd."""
        ...

    def controller(self, id_: str) -> Replies:
        """A job (or an array's tasks) from slurmctld, which forgets it some minutes after its end."""
        ...

    def steps(self, id_: str) -> Replies:
        """The job's running steps."""
        ...

    def nodes(self, names: Sequence[str]) -> Replies:
        """The current states of nodes, and why an admin or Slurm drained them."""
        ...

    def jobs_named(self, name: str, user: str, since: float, until: float) -> Replies:
        """The user's jobs of this name between two times (POSIX seconds)."""
        ...

    def script(self, id_: str) -> str:
        """The batch script as submitted; empty if Slurm did not store it."""
        ...


def until_failure(answers: Iterable[Replies]) -> Replies:
    """All answers up to the first failure: further queries would fail too, and as slowly."""
    replies: Replies = []
    for answer in answers:
        replies += answer
        if answer and isinstance(answer[-1], Input):
            break
    return replies


def failed_row(path: str, error: SourceUnavailable, remedy: str = "") -> Input:
    """The row of an unanswered query."""
    return Input(path, None, "unreadable", "; ".join(part for part in (str(error), remedy) if part), plane="scheduler")


def job_id(text: str) -> str:
    """A job's id without its step. Raises ValueError for an invalid id."""
    parts = split_job_id(text)
    if parts is None or "[" in text:
        raise ValueError(
            f"{text!r} is not a Slurm job id; "
            "write 42, 60_3 (a task of an array) or 73+0 (a part of a heterogeneous job)"
        )
    return plain_id(text)
