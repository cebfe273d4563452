"""Who judges for the HTTP API: a diagnoser knows where the evidence is, the API doesn't."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from trackside.runs.listing import Listed, listing
from trackside.serve.fresh import Lag
from trackside.session import Request, Session, SiteRequest, StoreRequest, open_session
from trackside.session.site import is_job, names_of
from trackside.site.config import Site
from trackside.stores.embedded.snapshot import Snapshot

LISTED_S = 5.0
"""So long a listing goes by what was written for the question before it."""
Fresh = Callable[[], Sequence[Lag] | None]


class Diagnoser(Protocol):
    """Where evidence is asked for. Its methods are called from several threads at once."""

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

    def session(self, job: str, as_of: float | None = None) -> AbstractContextManager[Session]:
        """What is known of a job: see :func:`trackside.session.open_session`."""
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

    @contextmanager
    def session(self, job: str, as_of: float | None = None) -> Iterator[Session]:
        """As ``trackside diagnose --store DIR --job JOB``."""
        left = self._fresh()
        with open_session(self._request(job, as_of)) as session:
            _note(left, session)
            yield session

    def _request(self, job: str, as_of: float | None) -> Request:
        return StoreRequest(self._store, job, as_of=as_of)


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

    def _request(self, job: str, as_of: float | None) -> Request:
        if not is_job(job):
            return super()._request(job, as_of)
        return SiteRequest(self._site, job, store=self._store, as_of=as_of)


def _note(left: Sequence[Lag], session: Session) -> None:
    """Note what of the rest concerns the session's run, or may be its parent's."""
    run = session.run
    ids = {name for name in (run.id, *run.aliases, run.parent) if name}
    ids |= {re.split(r"[_+]", name)[0] for name in ids}  # lines may name a task's whole array
    for lag in left:
        if (of_run := lag.of(ids)) is not None:
            of_run.note(session.store)
