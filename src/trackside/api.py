"""The one place where rooms are wired together: load files or a store, diagnose, verify."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from trackside.catalog.job_states import WAITING
from trackside.finding import Verdict
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Input, Record, Run, Samples
from trackside.read.bundle import asked
from trackside.read.detect import read_source
from trackside.read.format import Source
from trackside.read.formats.job_log import empty_output
from trackside.read.walk import walk
from trackside.runs.resolve import resolve
from trackside.stores.embedded.layout import Directory, StoreError
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine

if TYPE_CHECKING:
    from trackside.stores.curves import Curves, Failing
    from trackside.stores.embedded.snapshot import Snapshot
    from trackside.stores.embedded.spill import Spill
    from trackside.stores.memory_curves import MemoryCurves

Paths = Sequence[str | os.PathLike[str]]
IN_MEMORY = 30_000_000
"""Samples that are held in memory, at 20 bytes each; more go to a temporary store."""


class NothingReadable(ValueError):
    """None of the paths held anything that could be read."""


@dataclass(slots=True)
class Loaded:
    """What the inputs hold: their rows, their raw training points, and what each file was taken for."""

    store: MemoryStore = field(default_factory=MemoryStore)
    trajectories: Trajectories = field(default_factory=Trajectories)
    inputs: list[Input] = field(default_factory=list)
    curves: Curves | None = None
    live: Callable[[Run, MemoryStore], Failing] | None = None
    """Opens the store that holds the site's metrics, where there is one, for the run that they are wanted of."""
    paths: tuple[str, ...] = ()
    """Logs that count when it is told whose log is whose, but whose rows are not here."""
    home: frozenset[str] | None = None
    """The logs that came in one folder with the job's; None: all did."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Logs whose job is known, whatever they are called -> its id."""
    job: str | None = None
    """The job that it is to be asked for; None: the one it is about."""
    now: float | None = None
    """What a bundle's verdict took as the present, POSIX seconds."""
    copies: Callable[[Source], None] | None = None
    """Told of each source before it is read: a bundle keeps what a site gave."""
    _memory: MemoryCurves | None = None
    _spill: Spill | None = None
    _done: bool = False

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
        if self._spill is not None:
            self._spill.add(samples)
            return
        if self._memory is None:
            from trackside.stores.memory_curves import MemoryCurves  # numpy: only where something was measured

            self.curves = self._memory = MemoryCurves()
        self._memory.add(samples)
        if len(self._memory) > IN_MEMORY:
            from trackside.stores.embedded.spill import Spill

            self._spill, self._memory, self.curves = Spill(self._memory), None, None

    def take(self, found: Source | Input) -> None:
        """Read a source, or note why it can't be."""
        if self.copies is not None and isinstance(found, Source):
            self.copies(found)
        row = read_source(found, self) if isinstance(found, Source) else found
        self.inputs.append(row)
        if row.plane is not None and row.status in ("read", "partial"):
            self.store.planes.add(row.plane)

    def done(self) -> None:
        """Everything was read; said again, it changes nothing."""
        if self._done:
            return
        self._done = True
        if "log" not in self.store.planes:  # where no log says anything, empty ones do: the job wrote nothing
            for row in self.inputs:
                if row.status == "empty" and (nothing := empty_output(row.path)) is not None:
                    self.event(nothing)
        if self._spill is not None:
            self.curves = self._spill.curves()


def load(paths: Paths, tick: Callable[[int], None] | None = None) -> Loaded:
    """Read everything under the paths. Raises FileNotFoundError for a path that isn't there."""
    loaded = Loaded()
    load_into(loaded, paths, tick)
    loaded.done()
    return loaded


def load_into(loaded: Loaded, paths: Paths, tick: Callable[[int], None] | None = None) -> None:
    """Read everything under the paths beside what was read before; ``done`` is still to be called."""
    for path in paths:
        if not os.path.lexists(path):
            raise FileNotFoundError(f"no such file or folder: {os.fspath(path)}")
        if Directory(path).exists:
            raise StoreError(f"{os.fspath(path)} is a store: give it as --store {os.fspath(path)}")
    if len(paths) == 1:
        job, loaded.now = asked(paths[0])
        loaded.job = loaded.job or job
    for found in walk(paths, tick):
        loaded.take(found)


def select(loaded: Loaded, job: str | None = None, now: float | None = None) -> tuple[Run, MemoryStore]:
    """The run and its rows; ``now`` ends a run that is still going. Raises SeveralRuns or NoSuchRun."""
    loaded.done()
    resolved = resolve(loaded.store, job, [*loaded.trajectories.paths, *loaded.paths], loaded.home, loaded.owners)
    for point in loaded.trajectories.points(frozenset(resolved.run.log_paths)):
        resolved.store.add_event(resolved.adjust(point))
    other = loaded.trajectories.differing(frozenset(resolved.run.log_paths)) if resolved.run.id is None else None
    if other is not None:
        resolved.store.add_event(replace(resolved.adjust(other), kind="other_progress"))
    if resolved.run.parent_log_paths:
        for point in loaded.trajectories.points(frozenset(resolved.run.parent_log_paths)):
            resolved.store.add_event(replace(resolved.adjust(point), kind="parent_progress"))
    run = resolved.run
    if now is not None and run.end is None and run.disposition not in WAITING:
        run = replace(run, end=now)
    if loaded.curves is not None or loaded.live is not None:
        run = _measured(loaded, run, resolved.store)
    return run, resolved.store


def _measured(loaded: Loaded, run: Run, rows: MemoryStore) -> Run:
    """Put the run's metrics beside its rows, and give the run with what they tell of it.

    A store that does not answer is noted; then the metrics are those of the files, if any.
    """
    from trackside.http.unanswered import Unanswered
    from trackside.runs.metrics import run_metrics
    from trackside.stores.curves import Failing
    from trackside.stores.joined import JoinedCurves

    if loaded.live is not None:
        live = loaded.live(run, rows)
        try:
            given = loaded.curves
            told, rows.metrics = run_metrics(live if given is None else JoinedCurves(given, live), run, rows)
        except Unanswered as error:
            rows.unanswered("metric", live.name, str(error))
        else:
            for reason in live.failed.values():
                rows.unanswered("metric", live.name, str(reason))
            if not rows.metrics.curves.held():
                rows.metrics = replace(rows.metrics, note=f"{live.name} holds no metric of the run")
            run = told
    if loaded.curves is not None and rows.metrics is None:
        run, rows.metrics = run_metrics(loaded.curves, run, rows)
    if isinstance(loaded.curves, Failing) and rows.metrics is not None:
        for metric in loaded.curves.failed:
            if (why := rows.metrics.failed.get(metric)) is not None:
                rows.unanswered("metric", f"{loaded.curves.name}: {metric}", str(why), whole=False)
    return run


@dataclass(frozen=True, slots=True)
class Case:
    """A run that was judged, and what it was judged by, to ask more of: for a report, a bundle or a comparison."""

    verdict: Verdict
    store: MemoryStore
    loaded: Loaded


def judge(loaded: Loaded, now: float | None = None) -> Case:
    """Judge the job that was asked for of what was loaded. Raises SeveralRuns or NoSuchRun."""
    run, rows = select(loaded, loaded.job, loaded.now if now is None else now)
    return Case(engine.diagnose(rows, run, loaded.inputs, package_version()), rows, loaded)


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
    loaded = load([paths] if isinstance(paths, (str, os.PathLike)) else paths, tick)
    loaded.job = job or loaded.job
    readable(loaded)
    return judge(loaded, now).verdict


def readable(loaded: Loaded) -> None:
    """Raises NothingReadable, which says why of the first few inputs."""
    if not any(row.status in ("read", "partial") for row in loaded.inputs):
        why = "; ".join(f"{row.path}: {row.note or row.status}" for row in loaded.inputs[:3])
        raise NothingReadable(f"nothing readable was given ({why or 'no files'}); 'trackside inputs PATH' lists all")


def diagnose_stored(
    store: str | os.PathLike[str],
    job: str | None = None,
    paths: Paths = (),
    *,
    now: float | None = None,
    tick: Callable[[int], None] | None = None,
) -> Verdict:
    """Say what went wrong with a job of a store, as :func:`diagnose` does of files.

    ``job``: its id, or the folder that it was ingested from; ``paths``: what else belongs to it, read for this verdict
    only. Raises FileNotFoundError, SeveralRuns, NoSuchRun or StoreError.
    """
    with stored(store, job, paths, tick) as loaded:
        return judge(loaded, now).verdict


@contextmanager
def stored(
    store: str | os.PathLike[str],
    job: str | None,
    paths: Paths = (),
    tick: Callable[[int], None] | None = None,
    more: Sequence[Source] = (),
    owners: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Loaded]:
    """What concerns one job of a store, as if it had been loaded; its curves can be asked until the end.

    ``paths`` and ``more``: what else belongs to the job; ``owners``: files of these whose job is known -> its id.
    """
    from trackside.ingest import ingest_into
    from trackside.runs.kept import find
    from trackside.stores.embedded.duck import DuckCurves
    from trackside.stores.embedded.snapshot import Snapshot
    from trackside.stores.embedded.writer import Writer

    with ExitStack() as stack:
        snapshot = stack.enter_context(Snapshot.open(store))
        given: list[str] = []
        if paths or more:
            writer = Writer.temporary(snapshot)
            stack.callback(writer.remove)
            stack.enter_context(writer)  # closed before it is removed
            summary = ingest_into(writer, paths, tick, more)
            given = [row.path for row in (*summary.inputs, *summary.skipped)]
            snapshot = writer.snapshot()
        named = _as_kept(snapshot, owners)
        found = find(snapshot, job, given, named)
        loaded = Loaded(
            found.store,
            found.trajectories,
            found.inputs,
            paths=found.paths,
            home=found.home,
            owners=named,
            job=found.job,
        )
        if snapshot.manifest.of("spans") or snapshot.manifest.of("waiting"):
            loaded.curves = DuckCurves(snapshot, found.scope)
        yield loaded


def _as_kept(snapshot: Snapshot, owners: Mapping[str, str]) -> dict[str, str]:
    """Files' owners by what the store calls the files, which may have been kept before by another path to them."""
    if not owners:
        return {}
    real = {os.path.realpath(f"/{path}"): job for path, job in owners.items()}
    leaves = {os.path.basename(path) for path in (*owners, *real)}
    named = {}
    for path, root, label in snapshot.rows(f"SELECT path, root, label FROM {snapshot.table('inputs')}"):
        full = os.path.join(root, label)
        job = owners.get(label)
        if job is None and os.path.basename(full) in leaves:
            job = real.get(os.path.realpath(full))
        if job is not None:
            named[path] = job
    return named


@contextmanager
def opened(paths: Paths, job: str | None, tick: Callable[[int], None] | None = None) -> Iterator[Loaded]:
    """What paths hold, the first of which may be a store; then what it has of the job, and the others beside it."""
    if paths and Directory(paths[0]).exists:
        with stored(paths[0], job, paths[1:], tick) as loaded:
            yield loaded
    else:
        loaded = load(paths, tick)
        loaded.job = job or loaded.job
        yield loaded


def package_version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, seldom needed

    try:
        return version("trackside")
    except PackageNotFoundError:
        return "0+unknown"
