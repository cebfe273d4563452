"""A run gathered from where a site keeps it: Slurm, output files, log stores, the metrics' server, and given files.

What did not answer is noted as such, so that no absence is made of it; all else goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from trackside import api
from trackside.catalog.streams import is_stream_of, told
from trackside.evidence import UNABLE, Frame
from trackside.finding import Verdict
from trackside.http.unanswered import Unanswered
from trackside.model import Event, Input, InputStatus, Plane, Run
from trackside.query import events
from trackside.read.format import Source
from trackside.read.walk import Found, walk
from trackside.runs.resolve import NoSuchRun, resolve
from trackside.site.config import Site
from trackside.site.hits import Room, sources
from trackside.site.journal import journal
from trackside.site.slurm import SlurmAnswer, Stage, live
from trackside.site.slurm_replies import job_id
from trackside.stores import log_store, metric_store
from trackside.stores.log_store import Line, LogOptions, LogStore, LogStream, Streams, Wanted, open_store
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_store import MetricOptions, MetricServer, Scope, open_metrics
from trackside.verdict import engine

Tick = Callable[[int], None]
ZONES_S = 15 * 3600.0
"""By how much the times of records and logs in files may differ from UTC, which servers keep."""
LOG_STORE: tuple[Plane, ...] = ("log", "kernel")
"""What is looked for in a log store."""


class CannotAsk(ValueError):
    """What was asked, or a setting, can't be meant: no job's id, a job of several clusters, no such kind of store."""


@dataclass(slots=True)
class Gathered:
    """What a site holds of one run. ``asked``: the servers and commands, as a verdict names them."""

    loaded: api.Loaded
    stage: Stage = "unknown"
    asked: tuple[str, ...] = ()
    curves: list[MetricServer] = field(default_factory=list)
    """The run's in the server of metrics, once they were opened."""
    files: api.Paths = ()
    """What was read of files: those that were given, and the job's output as Slurm names it."""

    def judge(self, now: float | None = None) -> api.Case:
        """Judge it. ``now``: taken as the present for a run still going.

        Raises SeveralRuns, NoSuchRun, and NothingReadable where the server of metrics knows nothing of it either.
        """
        if now is None and self.stage == "going":
            now = time.time()
        run, rows = api.select(self.loaded, self.loaded.job, now)
        measured = [_measured(each) for each in self.curves]
        if measured and all(row.status == "empty" for row in measured):
            _refuse_unknown(replace(self.loaded, live=None, inputs=[*self.loaded.inputs, *measured]), self.loaded.job)
        verdict = engine.diagnose(rows, run, self.loaded.inputs, api.package_version())
        verdict = replace(verdict, inputs=(*verdict.inputs, *map(_measured, self.curves)))
        return api.Case(verdict, rows, self.loaded)


def diagnose(
    site: Site,
    job: str | None,
    paths: api.Paths = (),
    *,
    store: str = "",
    now: float | None = None,
    tick: Tick | None = None,
) -> tuple[Verdict, Stage]:
    """Say what went wrong with a job of the site, and whether it still goes on.

    ``paths``: what else is known of it; ``store``: the embedded store that may hold more. Raises what :func:`gathered`
    raises, SeveralRuns and NoSuchRun.
    """
    with gathered(site, job, paths, tick, store) as found:
        return found.judge(now).verdict, found.stage


@contextmanager
def gathered(
    site: Site,
    job: str | None,
    paths: api.Paths = (),
    tick: Tick | None = None,
    store: str = "",
    copies: Callable[[Source], None] | None = None,
) -> Iterator[Gathered]:
    """Ask all that the site has for a job; its metrics can be asked until the end.

    ``copies``: told of each source before it is read, but of those that ``store`` and, beside it, ``paths`` hold.

    Raises FileNotFoundError for a path that isn't there, CannotAsk, and NothingReadable where there is nothing to ask
    or nobody knows anything of the job; StoreError.
    """
    with ExitStack() as stack:
        slurm = None
        if job is not None and site.slurm is not None and _asks_slurm(site, bool(paths or store)):
            with _meant():
                slurm = live(site.slurm, job)
        told = slurm or SlurmAnswer("")
        if job is not None and slurm is not None and not (paths or store) and _unheard_of(slurm):
            _refuse_unheard_of(site, job, slurm)
        curves = None
        if site.metrics is not None and told.known:  # enough to look for them from now on, while logs are read
            curves = stack.enter_context(
                closing(open_metrics(site.metrics, Scope(told.start, told.end, told.nodes, told.names)))
            )
            curves.begin()
        files = [*paths, *told.files]
        loaded = _read(stack, job, files, told, store, tick, copies)
        loaded.inputs += told.rows
        _take_lines(loaded, site, slurm)
        for row in told.rows:
            if row.status in ("unreadable", "refused") and not _sent(loaded, row, told):
                loaded.store.unanswered(row.plane or "scheduler", row.path, row.note)
        asked = names_of(site, slurm is not None)
        found = Gathered(loaded, told.stage, asked, [curves] if curves is not None else [], files)
        if site.metrics is not None:
            loaded.live = _opener(found, site.metrics, stack)
        if not asked and not paths and not store:
            raise api.NothingReadable(
                "there is nothing to ask: no Slurm commands on this machine, and no metrics or logs are configured; "
                "give PATHS, --store, --metrics-url or --logs-url, or write a trackside.toml (docs/site.md)"
            )
        _refuse_unknown(loaded, job)
        yield found


def _read(
    stack: ExitStack,
    job: str | None,
    paths: api.Paths,
    slurm: SlurmAnswer,
    store: str,
    tick: Tick | None,
    copies: Callable[[Source], None] | None,
) -> api.Loaded:
    """What Slurm says, files hold, and a store has of the job, unless it has nothing of it."""
    if store:
        with suppress(NoSuchRun):
            loaded = stack.enter_context(api.stored(store, job, paths, tick, slurm.sources, slurm.owners))
            loaded.copies = copies
            for found in (*slurm.sources, *walk(slurm.files)) if copies is not None else ():
                if isinstance(found, Source) and copies is not None:
                    copies(found)
            return loaded
    loaded = api.Loaded(owners=slurm.owners, job=job, copies=copies)
    for source in slurm.sources:
        loaded.take(source)
    api.load_into(loaded, paths, tick)
    return loaded


def _take_lines(loaded: api.Loaded, site: Site, slurm: SlurmAnswer | None) -> None:
    """The lines of all log stores, and of the journal."""
    files = slurm.logs if slurm is not None else ()
    for options in site.logs:
        with _meant():
            store = open_store(options)
        room = Room(options)
        for wanted in _wanted(loaded, slurm):
            if wanted.jobs or wanted.nodes:
                for found in sources(_Beyond(store, options, frozenset(files)), options, wanted, room):
                    _take_log(loaded, store.name, found)
    if site.journal is not None:
        for found in journal(site.journal, _wanted(loaded, slurm)[0]):
            _take_log(loaded, "journalctl", found)


def _sent(loaded: api.Loaded, row: Input, slurm: SlurmAnswer) -> bool:
    """Whether an output file that can't be read here was sent line by line by somebody who could."""
    ids = slurm.elsewhere.get(row.path, ())
    read = [each.path for each in loaded.inputs if each.status in ("read", "partial")]
    return any(is_stream_of(path, job, row.path) for job in ids for path in read)


@contextmanager
def _meant() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise CannotAsk(str(error)) from error


def _asks_slurm(site: Site, files: bool) -> bool:
    """Whether Slurm is asked: where something was set of it; and, unless files were given, where its commands are. A
    laptop that has none was not refused anything."""
    return _sets_slurm(site) or not (files or all(shutil.which(name) is None for name in ("sacct", "scontrol")))


def _sets_slurm(site: Site) -> bool:
    return site.slurm is not None and any(
        each.name.startswith("slurm.") and each.origin != "default" for each in site.settings
    )


def names_of(site: Site, slurm: bool | None = None) -> tuple[str, ...]:
    """What is asked of a job. ``slurm``: whether Slurm is; None: as the settings say."""
    return (
        *(["slurm"] if (_sets_slurm(site) if slurm is None else slurm) else []),
        *map(log_store.name_of, site.logs),
        *(["journalctl"] if site.journal is not None else []),
        *([metric_store.name_of(site.metrics)] if site.metrics is not None else []),
    )


def is_job(text: str) -> bool:
    """Whether it is a Slurm job's id."""
    try:
        job_id(text)
    except ValueError:
        return False
    return True


def _refuse_unknown(loaded: api.Loaded, job: str | None) -> None:
    """Raises NothingReadable where all that answered know nothing of the job, and no server of metrics is left."""
    if (
        loaded.live is not None
        or loaded.curves is not None
        or any(row.status in ("read", "partial") for row in loaded.inputs)
    ):
        return
    why = "; ".join(f"{row.path}: {row.note or row.status}" for row in loaded.inputs[:4])
    what = f"job {job}" if job is not None else "the run"
    raise api.NothingReadable(f"nobody knows anything of {what} ({why or 'no inputs'})")


def _unheard_of(slurm: SlurmAnswer) -> bool:
    """Whether all of Slurm answered and has no such job."""
    return not slurm.known and bool(slurm.rows) and all(row.status == "empty" for row in slurm.rows)


def _refuse_unheard_of(site: Site, job: str, slurm: SlurmAnswer) -> None:
    """Raises NothingReadable where the servers, too, have nothing under the job's id: a few small questions. Without
    them they would be searched for its time over months. One that does not answer is not taken for having nothing."""
    rows = list(slurm.rows)
    for options in site.logs:
        with _meant():
            store = open_store(options)
        try:
            found = store.streams(Wanted((job,)))
        except Unanswered:
            return
        if found.streams:
            return
        rows.append(Input(store.name, None, "empty", "; ".join(found.notes)))
    if site.metrics is not None:
        with closing(open_metrics(site.metrics, Scope(jobs=(job,)))) as curves:
            try:
                if curves.anything():
                    return
            except Unanswered:
                return
            rows.append(Input(curves.name, None, "empty", "has no series of it"))
    _refuse_unknown(api.Loaded(job=job, inputs=rows), job)


# -- log stores


def _wanted(loaded: api.Loaded, slurm: SlurmAnswer | None) -> list[Wanted]:
    """The lines of the job and of its nodes meanwhile; and those of its parents."""
    if slurm is not None and slurm.known:
        own = Wanted(slurm.names, slurm.nodes, slurm.start, slurm.end)
        return [own, Wanted(slurm.parents, end=slurm.start)] if slurm.parents else [own]
    run = resolve(loaded.store, loaded.job, loaded.trajectories.paths, owners=loaded.owners).run
    jobs = tuple(dict.fromkeys(name for name in (loaded.job, run.id, *run.aliases) if name))
    start = None if run.start is None else run.start - ZONES_S
    end = None if run.end is None else run.end + ZONES_S
    return [Wanted(jobs, run.nodes, start, end)]


def _take_log(loaded: api.Loaded, name: str, found: Found) -> None:
    loaded.take(found)
    row = loaded.inputs[-1]
    if row.status in ("unreadable", "partial", "refused"):
        faults = found.faults if isinstance(found, Source) else []
        reason = ("; ".join(faults) or row.note).removeprefix(UNABLE).removeprefix(f"{name}: ")
        for plane in (row.plane,) if row.plane is not None else LOG_STORE:
            loaded.store.unanswered(plane, name, reason)


class _Beyond:
    """A log store without the lines of files that were read themselves."""

    def __init__(self, store: LogStore, options: LogOptions, files: frozenset[str]) -> None:
        self._store, self._options, self._files = store, options, files

    @property
    def name(self) -> str:
        """See :class:`trackside.stores.log_store.LogStore`."""
        return self._store.name

    def streams(self, wanted: Wanted) -> Streams:
        """See :class:`trackside.stores.log_store.LogStore`."""
        found = self._store.streams(wanted)
        left = [each for each in found.streams if told("file", each.labels, self._options.labels) not in self._files]
        return replace(found, streams=tuple(left))

    def lines(self, stream: LogStream) -> Iterator[Sequence[Line]]:
        """See :class:`trackside.stores.log_store.LogStore`."""
        return self._store.lines(stream)


# -- metrics


def _opener(found: Gathered, options: MetricOptions, stack: ExitStack) -> Callable[[Run, MemoryStore], MetricServer]:
    """What opens the run's metrics once they are wanted: those that are looked for already, where Slurm told enough."""

    def opened(run: Run, rows: MemoryStore) -> MetricServer:
        if not found.curves:
            found.curves.append(stack.enter_context(closing(open_metrics(options, _scope(run, rows)))))
        return found.curves[0]

    return opened


def _scope(run: Run, rows: MemoryStore) -> Scope:
    """Where the metrics of a run that files tell of are: by its nodes and job, while it was there.

    Their times may be off by a zone.
    """
    jobs = tuple(dict.fromkeys(name for name in (run.id, *run.aliases) if name))
    start, end = run.start, run.end
    if start is None:
        start, end = _logged(rows)
    if start is None:
        return Scope(None, None, run.nodes, jobs)
    return Scope(start - ZONES_S, None if end is None else end + ZONES_S, run.nodes, jobs)


def _logged(rows: MemoryStore) -> tuple[float | None, float | None]:
    """From the first to the last time that the logs tell."""
    answer = rows.ask(events("log_activity"))
    found: Sequence[Event] = answer.events if isinstance(answer, Frame) else ()
    times = [
        float(value)
        for row in found
        for name in ("first_time", "last_time")
        if isinstance(value := row.get(name), (int, float))
    ]
    return (min(times), max(times)) if times else (None, None)


def _measured(curves: MetricServer) -> Input:
    """The row of a server of metrics: what it held of the run, and what asking it took."""
    traffic = curves.traffic
    cost = f"{traffic.requests:,} requests, {traffic.bytes_received:,} bytes received"
    try:
        held = curves.held()
    except Unanswered as error:
        return Input(curves.name, curves.title, "unreadable", f"{error}; {cost}", plane="metric")
    names = len({each.series.metric for each in held})
    note = f"{names:,} metrics of the run in {len(held):,} series; {cost}"
    status: InputStatus = "partial" if curves.failed else "read" if held else "empty"
    return Input(curves.name, curves.title, status, note, len(held), "metric")
