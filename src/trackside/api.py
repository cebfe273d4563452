"""The one place where rooms are wired together for files: load, diagnose, verify."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trackside.diagnose import engine
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Input, Record, Run, Samples, Verdict
from trackside.read.detect import read_source
from trackside.read.format import Source
from trackside.read.job_log import empty_output
from trackside.read.walk import walk
from trackside.runs.resolve import resolve
from trackside.stores.memory import MemoryStore

if TYPE_CHECKING:
    from trackside.stores.memory_curves import MemoryCurves

Paths = Sequence[str | os.PathLike[str]]


class NothingReadable(ValueError):
    """None of the paths held anything that could be read."""


@dataclass(slots=True)
class Loaded:
    """What the inputs hold: their rows, their raw training points, and what each file was taken for."""

    store: MemoryStore = field(default_factory=MemoryStore)
    trajectories: Trajectories = field(default_factory=Trajectories)
    inputs: list[Input] = field(default_factory=list)
    curves: MemoryCurves | None = None

    def event(self, event: Event) -> None:
        """Take one event from a reader."""
        if event.kind == "progress":
            self.trajectories.add(event)
        else:
            self.store.add_event(event)

    def record(self, record: Record) -> None:
        """Take one record from a reader."""
        self.store.add_record(record)

    def samples(self, samples: Samples) -> None:
        """Take measurements from a reader."""
        if self.curves is None:
            from trackside.stores.memory_curves import MemoryCurves  # numpy: only where something was measured

            self.curves = MemoryCurves()
        self.curves.add(samples)


def load(paths: Paths, tick: Callable[[int], None] | None = None) -> Loaded:
    """Read everything under the paths. Raises FileNotFoundError for a path that isn't there."""
    for path in paths:
        if not os.path.lexists(path):
            raise FileNotFoundError(f"no such file or folder: {os.fspath(path)}")
    loaded = Loaded()
    for found in walk(paths, tick):
        row = read_source(found, loaded) if isinstance(found, Source) else found
        loaded.inputs.append(row)
        if row.plane is not None and row.status in ("read", "partial"):
            loaded.store.planes.add(row.plane)
    if "log" not in loaded.store.planes:
        for row in loaded.inputs:
            if row.status == "empty" and (nothing := empty_output(row.path)) is not None:
                loaded.event(nothing)
    return loaded


def select(loaded: Loaded, job: str | None = None, now: float | None = None) -> tuple[Run, MemoryStore]:
    """The run and its rows; ``now`` ends a run that is still going. Raises SeveralRuns or NoSuchRun."""
    resolved = resolve(loaded.store, job, loaded.trajectories.paths)
    for point in loaded.trajectories.points(frozenset(resolved.run.log_paths)):
        resolved.store.add_event(resolved.adjust(point))
    if resolved.run.parent_log_paths:
        for point in loaded.trajectories.points(frozenset(resolved.run.parent_log_paths)):
            resolved.store.add_event(replace(resolved.adjust(point), kind="parent_progress"))
    run = resolved.run
    if now is not None and run.end is None:
        run = replace(run, end=now)
    if loaded.curves is not None:
        from trackside.runs.metrics import run_metrics

        run, resolved.store.metrics = run_metrics(loaded.curves, run, resolved.store)
    return run, resolved.store


def diagnose(
    paths: Paths | str | os.PathLike[str],
    *,
    job: str | None = None,
    now: float | None = None,
    tick: Callable[[int], None] | None = None,
) -> Verdict:
    """Read what a run left behind and say what went wrong.

    ``paths``: files, folders or archives. ``job``: which one, where they hold several. ``now``: POSIX seconds taken
    as the present for a run still going. ``tick``: told the bytes read, for a progress bar.

    Raises FileNotFoundError, NothingReadable, SeveralRuns or NoSuchRun.
    """
    given: Paths = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    loaded = load(given, tick)
    if not any(row.status in ("read", "partial") for row in loaded.inputs):
        why = "; ".join(f"{row.path}: {row.note or row.status}" for row in loaded.inputs[:3])
        raise NothingReadable(f"nothing readable was given ({why or 'no files'}); 'trackside inputs PATH' lists all")
    run, store = select(loaded, job, now)
    return engine.diagnose(store, run, loaded.inputs, package_version())


def package_version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, seldom needed

    try:
        return version("trackside")
    except PackageNotFoundError:
        return "0+unknown"
