"""A session on a run from where a site keeps it: Slurm, output files, log stores, the metrics' server, given files.

What did not answer is noted as such, so that no absence is made of it; all else goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace

from trackside.catalog.streams import is_stream_of, label_value
from trackside.errors import CannotAsk, NoSuchRun, NothingReadable
from trackside.evidence import UNABLE, Frame
from trackside.finding import Verdict
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Event, Input, InputStatus, Plane, Run
from trackside.query import events
from trackside.read.format import Source
from trackside.read.walk import WalkItem, walk
from trackside.session.choice import MetricOpener, choose
from trackside.session.inputs import LoadedInputs
from trackside.session.request import SiteRequest, StoreRequest
from trackside.session.session import Session
from trackside.session.store import load_stored
from trackside.site.config import Site
from trackside.site.hits import Room, sources
from trackside.site.journal import journal
from trackside.site.slurm import SlurmAnswer, live
from trackside.site.slurm_replies import job_id
from trackside.stores import log_store, metric_store
from trackside.stores.log_store import LogEntry, LogOptions, LogRequest, LogStore, LogStream, Streams, open_store
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_store import MetricOptions, MetricServer, RunScope, open_metrics
from trackside.verdict import engine
from trackside.version import package_version

ZONES_S = 15 * 3600.0
"""By how much the times of records and logs in files may differ from UTC, which servers keep."""
LOG_STORE: tuple[Plane, ...] = ("log", "kernel")
"""What is looked for in a log store."""


@dataclass(slots=True)
class SiteSession(Session):
    """A session whose verdict also says what asking the servers of metrics took."""

    servers: Sequence[MetricServer] = ()

    def _judged(self) -> Verdict:
        measured = [_measured(each) for each in self.servers]
        if measured and all(row.status == "empty" for row in measured):
            _refuse_unknown(self.loaded, self.loaded.job, measured)
        verdict = engine.verdict_of(self.facts, self.inputs, package_version())
        return replace(verdict, inputs=(*verdict.inputs, *map(_measured, self.servers)))


def open_site(request: SiteRequest, stack: ExitStack) -> SiteSession:
    """Ask all that the site has for a job; its metrics can be asked until the stack is closed.

    Raises FileNotFoundError for a path that isn't there, CannotAsk, and NothingReadable where there is nothing to ask
    or nobody knows anything of the job; StoreError, SeveralRuns and NoSuchRun.
    """
    site, job, beside = request.site, request.job, bool(request.paths or request.store)
    slurm = None
    if job is not None and site.slurm is not None and _asks_slurm(site, beside):
        with _meant():
            slurm = live(site.slurm, job)
    answer = slurm or SlurmAnswer("")
    if job is not None and slurm is not None and not beside and _unheard_of(slurm):
        _refuse_unheard_of(site, job, slurm)
    servers: list[MetricServer] = []
    if site.metrics is not None and answer.known:  # enough to look for them from now on, while logs are read
        scope = RunScope(answer.start, answer.end, answer.nodes, answer.names)
        servers.append(stack.enter_context(closing(open_metrics(site.metrics, scope))))
        servers[0].prefetch()
    loaded = _load(request, answer, stack)
    loaded.inputs += answer.rows
    _take_lines(loaded, site, slurm)
    for row in answer.rows:
        if row.status in ("unreadable", "refused") and not _sent(loaded, row, answer):
            loaded.store.add_unavailable_source(row.plane or "scheduler", row.path, row.note)
    asked = names_of(site, slurm is not None)
    if not asked and not beside:
        raise NothingReadable(
            "there is nothing to ask: no Slurm commands on this machine, and no metrics or logs are configured; "
            "give PATHS, --store, --metrics-url or --logs-url, or write a trackside.toml (docs/site.md)"
        )
    if site.metrics is None:
        _refuse_unknown(loaded, job)
    as_of = request.as_of
    if as_of is None:
        as_of = time.time() if answer.stage == "going" else loaded.as_of
    opener = None if site.metrics is None else _opener(servers, site.metrics, stack)
    run, store = choose(loaded, as_of, opener)
    files = [*request.paths, *answer.files]
    return SiteSession(run, store, loaded, as_of, answer.stage, asked, files, servers)


def _load(request: SiteRequest, slurm: SlurmAnswer, stack: ExitStack) -> LoadedInputs:
    """What Slurm says, files hold, and a store has of the job, unless it has nothing of it."""
    paths = [*request.paths, *slurm.files]
    if request.store:
        with suppress(NoSuchRun):
            stored = StoreRequest(request.store, request.job, paths, on_progress=request.on_progress)
            loaded = load_stored(stored, stack, slurm.sources, slurm.owners)
            loaded.on_source = request.on_source
            for source in (*slurm.sources, *walk(slurm.files)) if request.on_source is not None else ():
                if isinstance(source, Source) and request.on_source is not None:
                    request.on_source(source)
            return loaded
    loaded = LoadedInputs(owners=slurm.owners, job=request.job, on_source=request.on_source)
    for source in slurm.sources:
        loaded.take(source)
    loaded.load(paths, request.on_progress)
    return loaded


def _take_lines(loaded: LoadedInputs, site: Site, slurm: SlurmAnswer | None) -> None:
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


def _sent(loaded: LoadedInputs, row: Input, slurm: SlurmAnswer) -> bool:
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


def _refuse_unknown(loaded: LoadedInputs, job: str | None, more: Sequence[Input] = ()) -> None:
    """Raises NothingReadable where all that answered know nothing of the job. ``more``: of servers of metrics."""
    if loaded.readable:
        return
    why = "; ".join(f"{row.path}: {row.note or row.status}" for row in [*loaded.inputs, *more][:4])
    what = f"job {job}" if job is not None else "the run"
    raise NothingReadable(f"nobody knows anything of {what} ({why or 'no inputs'})")


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
            found = store.streams(LogRequest((job,)))
        except SourceUnavailable:
            return
        if found.streams:
            return
        rows.append(Input(store.name, None, "empty", "; ".join(found.notes)))
    if site.metrics is not None:
        with closing(open_metrics(site.metrics, RunScope(jobs=(job,)))) as curves:
            try:
                if curves.has_series():
                    return
            except SourceUnavailable:
                return
            rows.append(Input(curves.name, None, "empty", "has no series of it"))
    _refuse_unknown(LoadedInputs(inputs=rows), job)


# -- log stores


def _wanted(loaded: LoadedInputs, slurm: SlurmAnswer | None) -> list[LogRequest]:
    """The lines of the job and of its nodes meanwhile; and those of its parents."""
    if slurm is not None and slurm.known:
        own = LogRequest(slurm.names, slurm.nodes, slurm.start, slurm.end)
        return [own, LogRequest(slurm.parents, end=slurm.start)] if slurm.parents else [own]
    run = loaded.resolved().run
    jobs = tuple(dict.fromkeys(name for name in (loaded.job, run.id, *run.aliases) if name))
    start = None if run.start is None else run.start - ZONES_S
    end = None if run.end is None else run.end + ZONES_S
    return [LogRequest(jobs, run.nodes, start, end)]


def _take_log(loaded: LoadedInputs, name: str, found: WalkItem) -> None:
    loaded.take(found)
    row = loaded.inputs[-1]
    if row.status in ("unreadable", "partial", "refused"):
        faults = found.faults if isinstance(found, Source) else []
        reason = ("; ".join(faults) or row.note).removeprefix(UNABLE).removeprefix(f"{name}: ")
        for plane in (row.plane,) if row.plane is not None else LOG_STORE:
            loaded.store.add_unavailable_source(plane, name, reason)


class _Beyond:
    """A log store without the lines of files that were read themselves."""

    def __init__(self, store: LogStore, options: LogOptions, files: frozenset[str]) -> None:
        self._store, self._options, self._files = store, options, files

    @property
    def name(self) -> str:
        """See :class:`trackside.stores.log_store.LogStore`."""
        return self._store.name

    def streams(self, wanted: LogRequest) -> Streams:
        """See :class:`trackside.stores.log_store.LogStore`."""
        found = self._store.streams(wanted)
        left = [
            each for each in found.streams if label_value("file", each.labels, self._options.labels) not in self._files
        ]
        return replace(found, streams=tuple(left))

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        """See :class:`trackside.stores.log_store.LogStore`."""
        return self._store.lines(stream)


# -- metrics


def _opener(servers: list[MetricServer], options: MetricOptions, stack: ExitStack) -> MetricOpener:
    """What opens the run's metrics once they are wanted: those that are looked for already, where Slurm told enough."""

    def opened(run: Run, rows: MemoryStore) -> MetricServer:
        if not servers:
            servers.append(stack.enter_context(closing(open_metrics(options, _scope(run, rows)))))
        return servers[0]

    return opened


def _scope(run: Run, rows: MemoryStore) -> RunScope:
    """Where the metrics of a run that files tell of are: by its nodes and job, while it was there.

    Their times may be off by a zone.
    """
    jobs = tuple(dict.fromkeys(name for name in (run.id, *run.aliases) if name))
    start, end = run.start, run.end
    if start is None:
        start, end = _logged(rows)
    if start is None:
        return RunScope(None, None, run.nodes, jobs)
    return RunScope(start - ZONES_S, None if end is None else end + ZONES_S, run.nodes, jobs)


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
        held = curves.series()
    except SourceUnavailable as error:
        return Input(curves.name, curves.title, "unreadable", f"{error}; {cost}", plane="metric")
    names = len({each.series.metric for each in held})
    note = f"{names:,} metrics of the run in {len(held):,} series; {cost}"
    status: InputStatus = "partial" if curves.failed else "read" if held else "empty"
    return Input(curves.name, curves.title, status, note, len(held), "metric")
