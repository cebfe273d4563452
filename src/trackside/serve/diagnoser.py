"""The diagnoser behind the HTTP API: it opens the evidence of a job in the store and on the site."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass

from trackside.errors import StoreError
from trackside.model import Plane
from trackside.runs.listing import RunSummary, list_runs
from trackside.session import Request, Session, SiteRequest, StoreRequest, open_session
from trackside.session.site import is_job, source_names
from trackside.site.config import Site
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.memory import MemoryStore
from trackside.stores.receiver.flush import LinesNotRead
from trackside.stores.receiver.intake import DataNotStored, Intake, IntakeUnavailable

LISTED_S = 5.0
"""Maximum age of the last flush for a listing of runs."""
SOURCE = "received"
LINES: tuple[Plane, ...] = ("log", "kernel")
"""Planes of log lines."""
_JOB = re.compile(r"(?:part-\d+/)?job-([^/]+)/")


@dataclass(frozen=True, slots=True)
class IntakeLag:
    """Accepted data that cannot be diagnosed yet: the planes and the reason. ``files``: the affected files of received
    lines; None: any."""

    planes: tuple[Plane, ...]
    reason: str
    files: tuple[str, ...] | None = None

    def of_run(self, jobs: Collection[str]) -> IntakeLag | None:
        """The part that concerns a run with these ids: its files, and those of no job."""
        if self.files is None:
            return self
        files = tuple(name for name in self.files if (job := _JOB.match(name)) is None or job[1] in jobs)
        return unread_lag(files) if files else None

    def note(self, rows: MemoryStore) -> None:
        """Record the lag as a source that did not answer."""
        for plane in self.planes:
            rows.add_unavailable_source(plane, SOURCE, self.reason)


def unread_lag(files: tuple[str, ...]) -> IntakeLag:
    """The lag of files of received lines that could not be read in time."""
    number = "1 file of received lines is" if len(files) == 1 else f"{len(files):,} files of received lines are"
    return IntakeLag(LINES, f"{number} not read yet; try again", files)


def lags(intake: Intake, within_s: float) -> tuple[IntakeLag, ...]:
    """Write and read everything that was accepted, as far as the time permits; returns what is left."""
    try:
        unread_files = intake.flush().result(within_s)
    except LinesNotRead as error:
        return (IntakeLag(LINES, f"received lines cannot be read into the store: {error}"),)
    except (IntakeUnavailable, DataNotStored, StoreError, OSError, CancelledError) as error:
        # A timeout is an OSError without a message.
        reason = str(error) or f"not done within {within_s:g} s; try again"
        return (IntakeLag((*LINES, "metric"), f"the latest received data is not in the store yet: {reason}"),)
    return (unread_lag(tuple(unread_files)),) if unread_files else ()


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
        lags = self._refresh()
        with open_session(self._request(job, as_of)) as session:
            _note_lags(lags, session)
            yield session

    def _request(self, job: str, as_of: float | None) -> Request:
        if self._site is None or not self.queried or not is_job(job):
            return StoreRequest(self._store, job, as_of=as_of)
        return SiteRequest(self._site, job, store=self._store, as_of=as_of)


def _note_lags(lags: Sequence[IntakeLag], session: Session) -> None:
    """Record the lags that concern the session's run, or possibly its parent's."""
    run = session.run
    ids = {name for name in (run.id, *run.aliases, run.parent) if name}
    ids |= {re.split(r"[_+]", name)[0] for name in ids}  # lines may name the whole array of a task
    for lag in lags:
        if (run_lag := lag.of_run(ids)) is not None:
            run_lag.note(session.store)
