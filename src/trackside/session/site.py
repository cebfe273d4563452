"""A session on a run as a site holds it: Slurm, output files, log stores, the metric server, given files.

A source that does not answer is recorded, so that its silence does not count as absence; the others are still used.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace

from trackside.catalog.streams import is_stream_of, label_value
from trackside.errors import InvalidSiteRequest, NoSuchRun, NothingReadable
from trackside.evidence import UNABLE_TO_CHECK, Frame
from trackside.finding import PendingEvidence, Verdict
from trackside.http.unavailable import FailureKind, SourceUnavailable
from trackside.model import Event, Input, InputStatus, Plane, Run
from trackside.query import events
from trackside.read.format import InputSource
from trackside.read.walk import WalkItem, walk
from trackside.session import settling
from trackside.session.choice import MetricOpener, choose_run
from trackside.session.inputs import LoadedInputs
from trackside.session.request import SiteRequest, StoreRequest
from trackside.session.session import Session
from trackside.session.store import load_stored
from trackside.site.config import Site
from trackside.site.hits import ReadBudget, sources
from trackside.site.journal import journal
from trackside.site.slurm import SlurmAnswer, query_slurm
from trackside.site.slurm_replies import job_id
from trackside.stores import log_store, metric_server
from trackside.stores.log_store import LogEntry, LogOptions, LogRequest, LogStore, LogStream, Streams, open_log_store
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_server import MetricOptions, MetricServer, RunScope, open_metrics
from trackside.verdict import engine
from trackside.version import package_version

MAX_ZONE_OFFSET_S = 15 * 3600.0
"""The times of records and logs in files may differ from UTC, which servers use, by at most this."""
SILENT_KINDS: tuple[FailureKind, ...] = ("unreachable", "timeout", "refused", "unauthorized")
"""Failures of a server that say nothing about what it holds."""
_EXIT = re.compile(r"(exit \d{1,3}): (.+)")
NO_JOB_TO_QUERY = "not queried, because no job was named: give its id with --job"
MAX_REASONS = 8
"""Sources whose reason an error gives."""
LOG_STORE_PLANES: tuple[Plane, ...] = ("log", "kernel")
"""The planes that a log store can provide."""


@dataclass(slots=True)
class SiteSession(Session):
    """A session whose verdict also lists the cost of querying the metric servers."""

    servers: Sequence[MetricServer] = ()
    recorded_end: float | None = None
    """The end of the job according to Slurm, POSIX seconds."""

    def _unsettled(self) -> PendingEvidence | None:
        if self.now is None:
            return None
        by_stage = settling.by_stage(self.stage, self.recorded_end, self.now)
        return by_stage or settling.by_arrival(self.loaded.last_arrival, self.now)

    def _diagnose(self) -> Verdict:
        if self.servers and not any(map(_may_know_run, self.servers)):
            _refuse_unknown(self.loaded, self.loaded.job, [_server_row(server) for server in self.servers])
        verdict = engine.verdict_of(self.facts, self.inputs, package_version(), self._unsettled())
        return replace(verdict, inputs=(*verdict.inputs, *(_with_cost(server) for server in self.servers)))


def open_site_session(request: SiteRequest, stack: ExitStack) -> SiteSession:
    """Query everything that the site has about a job; its metrics can be queried until the stack is closed.

    Raises FileNotFoundError for a missing path, InvalidSiteRequest, NothingReadable if there is nothing to query or the
    job was not found in any source, StoreError, SeveralRuns and NoSuchRun.
    """
    site, job, has_inputs = request.site, request.job, bool(request.paths or request.store)
    slurm = None
    if job is not None and site.slurm is not None and _asks_slurm(site, has_inputs):
        with _usage_errors():
            slurm = query_slurm(site.slurm, job)
    answer = slurm or SlurmAnswer("")
    if job is not None and slurm is not None and not has_inputs and _is_unknown(slurm):
        _refuse_if_unknown_everywhere(site, job, slurm)
    servers: list[MetricServer] = []
    if site.metrics is not None and answer.is_known:  # enough to start searching for the metrics while logs are read
        scope = RunScope(answer.start, answer.end, answer.nodes, answer.names)
        servers.append(stack.enter_context(closing(open_metrics(site.metrics, scope))))
        servers[0].prefetch()
    loaded = _load(request, answer, stack)
    loaded.inputs += answer.rows
    if job is None and _sets_slurm(site):
        loaded.inputs.append(Input("slurm", None, "refused", NO_JOB_TO_QUERY))
        loaded.store.add_unavailable_source("scheduler", "Slurm", NO_JOB_TO_QUERY)
    _take_lines(loaded, site, slurm)
    for row in answer.rows:
        if row.status in ("unreadable", "refused") and not _was_pushed(loaded, row, answer):
            loaded.store.add_unavailable_source(row.plane or "scheduler", row.path, row.note)
    queried = source_names(site, slurm is not None)
    if not queried and not has_inputs:
        slurm_missing = (
            "Slurm is off (--slurm, slurm.mode)" if site.slurm is None else "no Slurm commands on this machine"
        )
        raise NothingReadable(
            f"no source to query: {slurm_missing}, and no metrics or logs are configured; "
            "pass PATHS, --store, --metrics-url or --logs-url, or write a trackside.toml (docs/site.md)"
        )
    if site.metrics is None:
        _refuse_unknown(loaded, job)
    as_of = request.as_of
    if as_of is None:
        as_of = time.time() if answer.stage == "going" else loaded.as_of
    opener = None if site.metrics is None else _opener(servers, site.metrics, stack)
    run, store = choose_run(loaded, as_of, opener)
    files = [*request.paths, *answer.files]
    now = time.time() if request.as_of is None else None
    session = SiteSession(run, store, loaded, as_of, answer.stage, queried, files, servers, now)
    session.recorded_end = answer.end
    return session


def _load(request: SiteRequest, slurm: SlurmAnswer, stack: ExitStack) -> LoadedInputs:
    """Load the job from Slurm, files and the store; a store without the job is skipped."""
    paths = [*request.paths, *slurm.files]
    if request.store:
        with suppress(NoSuchRun):
            stored = StoreRequest(
                request.store, request.job, paths, on_progress=request.on_progress, refresh=request.refresh
            )
            loaded = load_stored(stored, stack, slurm.sources, slurm.owners)
            loaded.on_source = request.on_source
            for source in (*slurm.sources, *walk(slurm.files)) if request.on_source is not None else ():
                if isinstance(source, InputSource) and request.on_source is not None:
                    request.on_source(source)
            return loaded
    loaded = LoadedInputs(owners=slurm.owners, job=request.job, on_source=request.on_source)
    for source in slurm.sources:
        loaded.read(source)
    loaded.load(paths, request.on_progress)
    return loaded


def _take_lines(loaded: LoadedInputs, site: Site, slurm: SlurmAnswer | None) -> None:
    """Load the lines of all log stores, and of the journal."""
    files = slurm.logs if slurm is not None else ()
    for options in site.logs:
        with _usage_errors():
            store = open_log_store(options)
        budget, remaining = ReadBudget(options), _WithoutFiles(store, options, frozenset(files))
        for line_query in _line_queries(loaded, slurm):
            if line_query.jobs or line_query.nodes:
                for source in sources(remaining, options, line_query, budget):
                    _take_log(loaded, store.name, source)
        if remaining.last_time is not None:
            loaded.last_arrival = max(loaded.last_arrival or 0.0, remaining.last_time)
    if site.journal is not None:
        for source in journal(site.journal, _line_queries(loaded, slurm)[0]):
            _take_log(loaded, "journalctl", source)


def _was_pushed(loaded: LoadedInputs, row: Input, slurm: SlurmAnswer) -> bool:
    """Whether an output file that cannot be read here was pushed line by line by a sender who could read it."""
    ids = slurm.elsewhere.get(row.path, ())
    read_paths = [input_row.path for input_row in loaded.inputs if input_row.status in ("read", "partial")]
    return any(is_stream_of(path, job, row.path) for job in ids for path in read_paths)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InvalidSiteRequest(str(error)) from error


def _asks_slurm(site: Site, files: bool) -> bool:
    """Whether to query Slurm: if any of its settings is set; else, unless files were given, if its commands exist. A
    laptop without them must not report Slurm as unavailable."""
    return _sets_slurm(site) or not (files or all(shutil.which(name) is None for name in ("sacct", "scontrol")))


def _sets_slurm(site: Site) -> bool:
    return site.slurm is not None and any(
        setting.name.startswith("slurm.") and setting.origin != "default" for setting in site.settings
    )


def source_names(site: Site, slurm: bool | None = None) -> tuple[str, ...]:
    """The names of the sources to query about a job. ``slurm``: whether Slurm is queried; None: per the settings."""
    return (
        *(["slurm"] if (_sets_slurm(site) if slurm is None else slurm) else []),
        *map(log_store.name_of, site.logs),
        *(["journalctl"] if site.journal is not None else []),
        *([metric_server.name_of(site.metrics)] if site.metrics is not None else []),
    )


def is_job(text: str) -> bool:
    """Whether the text is a Slurm job id."""
    try:
        job_id(text)
    except ValueError:
        return False
    return True


def _refuse_unknown(loaded: LoadedInputs, job: str | None, more: Sequence[Input] = ()) -> None:
    """Raise NothingReadable if no source that answered knows the job. ``more``: rows of the metric servers."""
    if loaded.readable:
        return
    rows, subject = [*loaded.inputs, *more], f"job {job}" if job is not None else "the run"
    silent = [row for row in rows if row.status in ("unreadable", "refused")]
    if silent and len(silent) == len(rows):
        servers = any("://" in _source_of(row) for row in silent)
        servers = servers or any(_source_of(row).startswith("slurmrestd") for row in silent)
        commands = any("://" not in (name := _source_of(row)) and not name.startswith("slurmrestd") for row in silent)
        remedies = [
            *(["Run this where Slurm's commands work, such as a login node"] if commands else []),
            *(["Start the servers or correct their URLs"] if servers else []),
        ]
        sentences = [f"cannot look up {subject}", *_reasons(silent), *remedies]
        raise NothingReadable(f"{'. '.join(sentences)}, or give the job's files")
    raise NothingReadable(f"{subject} not found; queried: {'; '.join(_reasons(rows)) or 'nothing'}")


def _reasons(rows: Sequence[Input]) -> list[str]:
    """The sources without their arguments, and their reasons; those with the same reason together."""
    sources_by_reason: dict[str, list[str]] = {}
    for row in rows[:MAX_REASONS]:
        source, reason = _source_of(row), _last_message(row.note or row.status).removeprefix(UNABLE_TO_CHECK)
        reason = reason.removeprefix(f"{source.rpartition(' ')[2]} ")  # the URL that names the source
        sources_by_reason.setdefault(reason, []).append(source)
    texts = []
    for reason, named in sources_by_reason.items():
        *others, last = dict.fromkeys(named)
        sources = f"{', '.join(others)} and {last}" if others else last
        if (exit_ := _EXIT.fullmatch(reason)) is not None:
            texts.append(f'{sources} failed ({exit_[1]}, "{exit_[2].removesuffix(".")}")')
            continue
        texts.append(f"{sources}{'' if reason.startswith('cannot ') else ':'} {reason.removesuffix('.')}")
    return texts


def _source_of(row: Input) -> str:
    """``sacct`` of ``sacct -D -j 42``; ``the controller`` of ``the controller: job 42``."""
    return row.path.partition(": ")[0].partition(" -")[0]


def _last_message(note: str) -> str:
    """The note; of several messages of a Slurm command, the one that ended it."""
    _, fatal, message = note.rpartition(": fatal: ")
    return message if fatal else note


def _is_unknown(slurm: SlurmAnswer) -> bool:
    """Whether all Slurm commands answered and none knows the job."""
    return not slurm.is_known and bool(slurm.rows) and all(row.status == "empty" for row in slurm.rows)


def _refuse_if_unknown_everywhere(site: Site, job: str, slurm: SlurmAnswer) -> None:
    """Raise NothingReadable if the servers have nothing under the job's id either: a few small queries, instead of a
    search over months of data. A server that does not answer does not count as having nothing."""
    rows = list(slurm.rows)
    for options in site.logs:
        with _usage_errors():
            store = open_log_store(options)
        try:
            answer = store.streams(LogRequest((job,)))
        except SourceUnavailable:
            return
        if answer.streams:
            return
        rows.append(Input(store.name, None, "empty", "; ".join(answer.notes)))
    if site.metrics is not None:
        with closing(open_metrics(site.metrics, RunScope(jobs=(job,)))) as server:
            try:
                if server.has_series():
                    return
            except SourceUnavailable:
                return
            rows.append(Input(server.name, None, "empty", "no series with its id"))
    _refuse_unknown(LoadedInputs(inputs=rows), job)


# -- log stores


def _line_queries(loaded: LoadedInputs, slurm: SlurmAnswer | None) -> list[LogRequest]:
    """Queries for the lines of the job and of its nodes during it; and for those of its parents."""
    if slurm is not None and slurm.is_known:
        request = LogRequest(slurm.names, slurm.nodes, slurm.start, slurm.end)
        return [request, LogRequest(slurm.parents, end=slurm.start)] if slurm.parents else [request]
    run = loaded.resolve_run().run
    jobs = tuple(dict.fromkeys(name for name in (loaded.job, run.id, *run.aliases) if name))
    start = None if run.start is None else run.start - MAX_ZONE_OFFSET_S
    end = None if run.end is None else run.end + MAX_ZONE_OFFSET_S
    return [LogRequest(jobs, run.nodes, start, end)]


def _take_log(loaded: LoadedInputs, name: str, source: WalkItem) -> None:
    loaded.read(source)
    row = loaded.inputs[-1]
    if row.status in ("unreadable", "partial", "refused"):
        faults = source.faults if isinstance(source, InputSource) else []
        reason = ("; ".join(faults) or row.note).removeprefix(UNABLE_TO_CHECK).removeprefix(f"{name}: ")
        for plane in (row.plane,) if row.plane is not None else LOG_STORE_PLANES:
            loaded.store.add_unavailable_source(plane, name, reason)


class _WithoutFiles:
    """A log store without the lines of files that were read directly. ``last_time``: of the newest line of the job that
    was read, POSIX seconds."""

    def __init__(self, store: LogStore, options: LogOptions, files: frozenset[str]) -> None:
        self._store, self._options, self._files = store, options, files
        self.last_time: float | None = None

    @property
    def name(self) -> str:
        """See :class:`trackside.stores.log_store.LogStore`."""
        return self._store.name

    def streams(self, line_query: LogRequest) -> Streams:
        """See :class:`trackside.stores.log_store.LogStore`."""
        answer = self._store.streams(line_query)
        remaining = [
            stream
            for stream in answer.streams
            if label_value("file", stream.labels, self._options.labels) not in self._files
        ]
        return replace(answer, streams=tuple(remaining))

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        """See :class:`trackside.stores.log_store.LogStore`."""
        for entries in self._store.lines(stream):
            if entries and stream.owner_kind == "job":
                self.last_time = max(self.last_time or 0.0, entries[-1].time_ns / 1e9)
            yield entries


# -- metrics


def _opener(servers: list[MetricServer], options: MetricOptions, stack: ExitStack) -> MetricOpener:
    """A function that opens the run's metrics when needed: those already being searched, if Slurm gave enough."""

    def open_server(run: Run, rows: MemoryStore) -> MetricServer:
        if not servers:
            servers.append(stack.enter_context(closing(open_metrics(options, _scope(run, rows)))))
        return servers[0]

    return open_server


def _scope(run: Run, rows: MemoryStore) -> RunScope:
    """The scope of the metrics of a run that only files describe: its nodes and job, while it was there.

    Their times may be off by a zone.
    """
    jobs = tuple(dict.fromkeys(name for name in (run.id, *run.aliases) if name))
    start, end = run.start, run.end
    if start is None:
        start, end = _log_span(rows)
    if start is None:
        return RunScope(None, None, run.nodes, jobs)
    return RunScope(start - MAX_ZONE_OFFSET_S, None if end is None else end + MAX_ZONE_OFFSET_S, run.nodes, jobs)


def _log_span(rows: MemoryStore) -> tuple[float | None, float | None]:
    """From the first to the last time in the logs."""
    answer = rows.ask(events("log_activity"))
    activities: Sequence[Event] = answer.events if isinstance(answer, Frame) else ()
    times = [
        float(value)
        for row in activities
        for name in ("first_time", "last_time")
        if isinstance(value := row.get(name), (int, float))
    ]
    return (min(times), max(times)) if times else (None, None)


def _may_know_run(server: MetricServer) -> bool:
    """Whether a metric server has series of the run, or answered so that it may have some."""
    try:
        return bool(server.series())
    except SourceUnavailable as error:
        return error.kind not in SILENT_KINDS


def _with_cost(server: MetricServer) -> Input:
    """The inputs row of a metric server: what it held about the run, and what querying it cost."""
    row, traffic = _server_row(server), server.traffic
    return replace(row, note=f"{row.note}; {traffic.requests:,} requests, {traffic.bytes_received:,} bytes received")


def _server_row(server: MetricServer) -> Input:
    """What a metric server held about the run."""
    try:
        infos = server.series()
    except SourceUnavailable as error:
        return Input(server.name, server.title, "unreadable", str(error), plane="metric")
    names = len({info.series.metric for info in infos})
    note = f"{names:,} metrics of the run in {len(infos):,} series"
    status: InputStatus = "partial" if server.unavailable else "read" if infos else "empty"
    return Input(server.name, server.title, status, note, len(infos), "metric")
