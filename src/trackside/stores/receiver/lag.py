"""Accepted data that cannot be diagnosed yet, because it is not in the store's segments."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path

from trackside.errors import StoreError
from trackside.model import Plane
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.memory import MemoryStore
from trackside.stores.receiver.flush import LinesNotRead
from trackside.stores.receiver.intake import DataNotStored, Intake, IntakeUnavailable
from trackside.stores.receiver.lines import line_files, line_files_in_store
from trackside.stores.receiver.write_ahead import unprocessed_bytes

SOURCE = "received"
LINES: tuple[Plane, ...] = ("log", "kernel")
"""Planes of log lines."""
ALL_RECEIVED: tuple[Plane, ...] = (*LINES, "metric")
_JOB = re.compile(r"(?:part-\d+/)?job-([^/]+)/")


@dataclass(frozen=True, slots=True)
class IntakeLag:
    """Accepted data that cannot be diagnosed yet: the planes and the reason. ``files``: the affected files of received
    lines; None: any."""

    planes: tuple[Plane, ...]
    reason: str
    files: tuple[str, ...] | None = None

    def of_run(self, ids: Collection[str]) -> IntakeLag | None:
        """The part that concerns a run with these ids, or possibly its parent: its files, and those of no job."""
        if self.files is None:
            return self
        jobs = {*ids, *(re.split(r"[_+]", name)[0] for name in ids)}  # lines may name the whole array of a task
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
        return (not_stored_lag(str(error) or f"not done within {within_s:g} s; try again"),)
    return (unread_lag(tuple(unread_files)),) if unread_files else ()


def not_stored_lag(reason: str) -> IntakeLag:
    """The lag of all data that arrived last."""
    return IntakeLag(ALL_RECEIVED, f"the latest received data is not in the store yet: {reason}")


def lags_without_receiver(store: str | os.PathLike[str]) -> tuple[IntakeLag, ...]:
    """What a receiver that no longer runs, or runs on another machine, accepted and did not read into the store."""
    with Snapshot.open(store) as snapshot:
        folder = snapshot.directory.path / "received"
        if not folder.is_dir():
            return ()
        try:
            log_bytes = unprocessed_bytes(folder / "wal", snapshot.manifest.received.mark)
            unread_files = tuple(_unread_files(snapshot, folder / "logs"))
        except PermissionError as error:
            return (not_stored_lag(f"{error.filename} cannot be read: {error.strerror}"),)
    if log_bytes:
        return (not_stored_lag(f"{log_bytes:,} bytes wait in {folder / 'wal'}, and no receiver runs on this machine"),)
    return (unread_lag(unread_files),) if unread_files else ()


def _unread_files(snapshot: Snapshot, folder: Path) -> Iterator[str]:
    """Files of received lines that have grown since they were read, or were never read."""
    in_store = line_files_in_store(snapshot)
    for name, stat in line_files(folder):
        if name.endswith(".log") and (name not in in_store or in_store[name][0] != stat.st_size):
            yield name
