"""What asking a Slurm gives, whichever way it is asked: replies for the readers, rows for what it did not answer."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trackside.catalog.slurm.values import split_job_id
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Input
from trackside.read.format import HEAD_BYTES, Source
from trackside.runs.jobs import plain_id

MOST_NODES = 20_000
"""Nodes whose state is asked for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came. ``path``: how citations name it, such as ``sacct -D -j 4242``."""

    path: str
    data: bytes

    def source(self) -> Source:
        """For the readers; each reads its own."""
        return Source(self.path, self.data[:HEAD_BYTES], io.BytesIO(self.data), len(self.data))


Replies = list[Reply | Input]
"""Empty: it answered, and knows of no such thing. A row: what was asked and why there is no answer."""


class Slurm(Protocol):
    """One cluster, asked by commands or by slurmrestd. Nothing here raises: what fails becomes a row."""

    cluster: str
    """As the settings name it; empty for the one that the commands or the server speak of by themselves."""

    def accounting(self, ids: Sequence[str]) -> Replies:
        """Jobs, their steps and all attempts, from slurmdbd."""
        ...

    def controller(self, id_: str) -> Replies:
        """A job (or an array's tasks) from slurmctld, which forgets it some minutes after its end."""
        ...

    def steps(self, id_: str) -> Replies:
        """The steps that a job runs now."""
        ...

    def nodes(self, names: Sequence[str]) -> Replies:
        """The states of nodes now, and why an admin or Slurm took them out."""
        ...

    def namesakes(self, name: str, user: str, since: float, until: float) -> Replies:
        """The user's jobs of this name that were there between two moments (POSIX seconds)."""
        ...

    def script(self, id_: str) -> str:
        """The batch script as it was submitted; empty where Slurm keeps none."""
        ...


def until_failure(answers: Iterable[Replies]) -> Replies:
    """All answers until one fails: the others would fail as it did, as slowly."""
    replies: Replies = []
    for answer in answers:
        replies += answer
        if answer and isinstance(answer[-1], Input):
            break
    return replies


def failed(path: str, error: SourceUnavailable, remedy: str = "") -> Input:
    """The row of a question without an answer."""
    return Input(path, None, "unreadable", "; ".join(part for part in (str(error), remedy) if part), plane="scheduler")


def job_id(text: str) -> str:
    """A job's id without its step, checked. Raises ValueError for what is none."""
    parts = split_job_id(text)
    if parts is None or "[" in text:
        raise ValueError(f"{text!r} is no Slurm job id; write 42, 60_3 (a task of an array) or 73+0 (a part)")
    return plain_id(text)
