"""Who judges for the HTTP API: a diagnoser knows where the evidence is, the API doesn't."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from trackside import api
from trackside.evidence import Store
from trackside.finding import Verdict
from trackside.runs.listing import Listed, listing
from trackside.runs.resolve import resolve
from trackside.serve.fresh import Lag
from trackside.site.config import Site
from trackside.site.gather import Gathered, gathered, is_job, names_of
from trackside.stores.embedded.snapshot import Snapshot

LISTED_S = 5.0
"""So long a listing goes by what was written for the question before it."""
Fresh = Callable[[], Sequence[Lag] | None]


class Diagnoser(Protocol):
    """Where evidence is asked for. Its methods are called from several threads at once.

    They raise what :mod:`trackside.api` raises: SeveralRuns, NoSuchRun, StoreError, FileNotFoundError; and Unanswered
    where a server is asked that doesn't answer.
    """

    @property
    def paths(self) -> Sequence[str]:
        """What a verdict's document names as its inputs."""
        ...

    @property
    def asked(self) -> Sequence[str]:
        """Servers and commands that it names beside them."""
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
    """Judges the jobs of an embedded store. ``fresh``: called before each question, so that what came last counts;
    gives what does not."""

    asked: Sequence[str] = ()

    def __init__(self, store: str | os.PathLike[str], fresh: Fresh = lambda: ()) -> None:
        self._store, self._renew = os.fspath(store), fresh
        self._renewed = -LISTED_S

    def _fresh(self) -> Sequence[Lag]:
        left = self._renew() or ()
        self._renewed = time.monotonic()
        return left

    @property
    def paths(self) -> Sequence[str]:
        """The store's folder."""
        return (self._store,)

    def runs(self) -> Sequence[Listed]:
        """All runs of the store, as of some seconds ago."""
        if time.monotonic() - self._renewed > LISTED_S:
            self._fresh()
        with Snapshot.open(self._store) as snapshot:
            return listing(snapshot)

    def diagnose(self, job: str) -> Verdict:
        """As ``trackside diagnose --store DIR --job JOB``."""
        with self._loaded(job) as loaded:
            return api.judge(loaded).verdict

    @contextmanager
    def evidence(self, job: str) -> Iterator[Store]:
        """The store narrowed to the job, as its families are shown it."""
        with self._loaded(job) as loaded:
            _, rows = api.select(loaded, loaded.job)
            yield rows

    @contextmanager
    def _loaded(self, job: str) -> Iterator[api.Loaded]:
        left = self._fresh()
        with api.stored(self._store, job) as loaded:
            _note(left, loaded)
            yield loaded


class SiteDiagnoser(StoreDiagnoser):
    """Judges them together with what the site's Slurm and servers say of them, and jobs that only these know.

    What is no Slurm job's id, such as the folder that a run was ingested from, is the store's alone.
    """

    def __init__(self, store: str | os.PathLike[str], site: Site, fresh: Fresh = lambda: ()) -> None:
        super().__init__(store, fresh)
        self._site = site

    @property
    def asked(self) -> Sequence[str]:  # type: ignore[override]
        """The site's servers, and Slurm."""
        return names_of(self._site)

    def diagnose(self, job: str) -> Verdict:
        """As ``trackside diagnose --store DIR --job JOB --config FILE``."""
        if not is_job(job):
            return super().diagnose(job)
        with self._gathered(job) as found:
            return found.judge().verdict

    @contextmanager
    def evidence(self, job: str) -> Iterator[Store]:
        """The same, to be asked."""
        if not is_job(job):
            with super().evidence(job) as rows:
                yield rows
            return
        with self._gathered(job) as found:
            _, narrowed = api.select(found.loaded, found.loaded.job)
            yield narrowed

    @contextmanager
    def _gathered(self, job: str) -> Iterator[Gathered]:
        left = self._fresh()
        with gathered(self._site, job, store=self._store) as found:
            _note(left, found.loaded)
            yield found


def _note(left: Sequence[Lag], loaded: api.Loaded) -> None:
    """Note what of the rest concerns the run that was asked for, or may be its parent's."""
    if not left:
        return
    paths = [*loaded.trajectories.paths, *loaded.paths]
    run = resolve(loaded.store, loaded.job, paths, loaded.home, loaded.owners).run
    ids = {name for name in (run.id, *run.aliases, run.parent) if name}
    ids |= {re.split(r"[_+]", name)[0] for name in ids}  # lines may name a task's whole array
    for each in left:
        if (its := each.of(ids)) is not None:
            its.note(loaded.store)
