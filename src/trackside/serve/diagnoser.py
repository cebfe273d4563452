"""The diagnoser behind the HTTP API: it opens the evidence of a job in the store and on the site."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trackside.runs.listing import RunSummary, list_runs
from trackside.session import Request, Session, SiteRequest, StoreRequest, open_session
from trackside.session.site import is_job, source_names
from trackside.site.config import Site
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.receiver.lag import IntakeLag

LISTED_S = 5.0
"""Maximum age of the last flush for a listing of runs."""


class Diagnoser:
    """Diagnoses the jobs of an embedded store; if a ``site`` with settings is given, also from the site's Slurm and
    servers, including jobs that only these know. Its methods are called from several threads at once.

    A name that is not a Slurm job id, such as the folder of an ingested run, is only looked up in the store.
    ``refresh``: called before each query, so that the latest data is included; returns the data that is not.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        refresh: Callable[[], Sequence[IntakeLag]] = tuple,
        site: Site | None = None,
    ) -> None:
        self._store, self._renew, self._site = os.fspath(store), refresh, site
        self._renewed = -LISTED_S
        self.paths = (self._store,)
        """The inputs that a verdict's document names."""
        self.queried = source_names(site) if site is not None else ()
        """The servers and commands that the document names in addition."""

    def _refresh(self) -> Sequence[IntakeLag]:
        lags = self._renew()
        self._renewed = time.monotonic()
        return lags

    def runs(self) -> Sequence[RunSummary]:
        """All runs of the store; the list may be some seconds old."""
        if time.monotonic() - self._renewed > LISTED_S:
            self._refresh()
        with Snapshot.open(self._store) as snapshot:
            return list_runs(snapshot)

    @contextmanager
    def session(self, job: str, as_of: float | None = None) -> Iterator[Session]:
        """A session like that of ``trackside diagnose --store DIR --job JOB``."""
        with open_session(self._request(job, as_of)) as session:
            yield session

    def _request(self, job: str, as_of: float | None) -> Request:
        if self._site is None or not self.queried or not is_job(job):
            return StoreRequest(self._store, job, as_of=as_of, refresh=self._refresh)
        return SiteRequest(self._site, job, store=self._store, as_of=as_of, refresh=self._refresh)
