"""Who judges for the HTTP API: a diagnoser knows where the evidence is, the API doesn't."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass

from trackside.model import Plane
from trackside.runs.listing import Listed, listing
from trackside.session import Request, Session, SiteRequest, StoreRequest, open_session
from trackside.session.site import is_job, names_of
from trackside.site.config import Site
from trackside.stores.embedded.layout import StoreError
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.memory import MemoryStore
from trackside.stores.receiver.flush import LinesNotRead
from trackside.stores.receiver.intake import Intake, NotStored, QueueFull

LISTED_S = 5.0
"""So long a listing goes by what was written for the question before it."""
SOURCE = "received"
LINES: tuple[Plane, ...] = ("log", "kernel")
"""What lines are of."""
_JOB = re.compile(r"(?:part-\d+/)?job-([^/]+)/")


@dataclass(frozen=True, slots=True)
class Lag:
    """Something that was accepted and can't be judged yet, on which planes, and why. ``files``: those of received
    lines that this is about; None: whatever came."""

    planes: tuple[Plane, ...]
    reason: str
    files: tuple[str, ...] | None = None

    def of(self, jobs: Collection[str]) -> Lag | None:
        """What of it concerns a run that goes by these ids: files of theirs, and those of no job."""
        if self.files is None:
            return self
        files = tuple(name for name in self.files if (job := _JOB.match(name)) is None or job[1] in jobs)
        return unread(files) if files else None

    def note(self, rows: MemoryStore) -> None:
        """Note it as what did not answer."""
        for plane in self.planes:
            rows.add_unavailable_source(plane, SOURCE, self.reason)


def unread(files: tuple[str, ...]) -> Lag:
    """Files of received lines that there was no time to read."""
    return Lag(LINES, f"{len(files):,} files of received lines are not read yet: ask again", files)


def lags(intake: Intake, within_s: float) -> tuple[Lag, ...]:
    """Have all that was accepted written and read, as far as the time goes; what is left."""
    try:
        left = intake.flush().result(within_s)
    except LinesNotRead as error:
        return (Lag(LINES, f"lines that were received can't be read into the store: {error}"),)
    except (
        QueueFull,
        NotStored,
        StoreError,
        OSError,
        CancelledError,
    ) as error:  # a timeout is an OSError without words
        why = str(error) or f"not done within {within_s:g} s, ask again"
        return (Lag((*LINES, "metric"), f"what was received last is not in the store yet: {why}"),)
    return (unread(tuple(left)),) if left else ()


class Diagnoser:
    """Judges the jobs of an embedded store: together with what the site's Slurm and servers say of them, and jobs that
    only these know, where a ``site`` is given that sets any. Its methods are called from several threads at once.

    What is no Slurm job's id, such as the folder that a run was ingested from, is the store's alone. ``fresh``: called
    before each question, so that what came last counts; gives what does not.
    """

    def __init__(
        self, store: str | os.PathLike[str], fresh: Callable[[], Sequence[Lag]] = tuple, site: Site | None = None
    ) -> None:
        self._store, self._renew, self._site = os.fspath(store), fresh, site
        self._renewed = -LISTED_S
        self.paths = (self._store,)
        """What a verdict's document names as its inputs."""
        self.asked = names_of(site) if site is not None else ()
        """Servers and commands that it names beside them."""

    def _fresh(self) -> Sequence[Lag]:
        left = self._renew()
        self._renewed = time.monotonic()
        return left

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
        if self._site is None or not self.asked or not is_job(job):
            return StoreRequest(self._store, job, as_of=as_of)
        return SiteRequest(self._site, job, store=self._store, as_of=as_of)


def _note(left: Sequence[Lag], session: Session) -> None:
    """Note what of the rest concerns the session's run, or may be its parent's."""
    run = session.run
    ids = {name for name in (run.id, *run.aliases, run.parent) if name}
    ids |= {re.split(r"[_+]", name)[0] for name in ids}  # lines may name a task's whole array
    for lag in left:
        if (of_run := lag.of(ids)) is not None:
            of_run.note(session.store)
