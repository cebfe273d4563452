"""Who judges for the HTTP API: a diagnoser knows where the evidence is, the API doesn't."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from trackside import api
from trackside.model import Verdict
from trackside.query import Store
from trackside.runs.listing import Listed, listing
from trackside.stores.snapshot import Snapshot


class Diagnoser(Protocol):
    """Where evidence is asked for. Its methods are called from several threads at once.

    They raise what :mod:`trackside.api` raises: SeveralRuns, NoSuchRun, StoreError, FileNotFoundError; and Unanswered
    where a server is asked that doesn't answer.
    """

    @property
    def paths(self) -> Sequence[str]:
        """What a verdict's document names as its inputs."""
        ...

    def runs(self) -> Sequence[Listed]:
        """The runs of which there is evidence, judged or not; those that began first first."""
        ...

    def diagnose(self, job: str) -> Verdict:
        """The verdict on a job as of now."""
        ...

    def evidence(self, job: str) -> AbstractContextManager[Store]:
        """What is known of a job, to be asked until the block ends."""
        ...


class StoreDiagnoser:
    """Judges the jobs of an embedded store."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._store = os.fspath(store)

    @property
    def paths(self) -> Sequence[str]:
        """The store's folder."""
        return (self._store,)

    def runs(self) -> Sequence[Listed]:
        """All runs of the store."""
        with Snapshot.open(self._store) as snapshot:
            return listing(snapshot)

    def diagnose(self, job: str) -> Verdict:
        """As ``trackside diagnose --store DIR --job JOB``."""
        return api.diagnose_stored(self._store, job)

    @contextmanager
    def evidence(self, job: str) -> Iterator[Store]:
        """The store narrowed to the job, as its families are shown it."""
        with api.stored(self._store, job) as loaded:
            _, rows = api.select(loaded, loaded.job)
            yield rows
