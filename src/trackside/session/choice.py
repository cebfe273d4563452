"""Chooses the requested run from loaded inputs: its rows, its logged steps and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trackside.catalog.job_states import WAITING_STATES
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Event, Run
from trackside.runs.appended import is_in_last_job, is_in_last_run
from trackside.runs.metrics import run_metrics
from trackside.runs.other_runs import separate_logs
from trackside.session.inputs import LoadedInputs
from trackside.stores.joined import JoinedBackend
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import MetricBackend

MetricOpener = Callable[[Run, MemoryStore], MetricBackend]
"""Opens the store that holds the site's metrics of a run."""


def choose_run(
    loaded: LoadedInputs, as_of: float | None = None, live: MetricOpener | None = None
) -> tuple[Run, MemoryStore]:
    """The run and its rows. ``as_of``: end of a run that is still going. Raises SeveralRuns or NoSuchRun."""
    loaded.finish()
    resolved = loaded.resolve_run()
    run, store = resolved.run, resolved.store
    own, parents = frozenset(run.log_paths), frozenset(run.parent_log_paths)
    is_own = is_in_last_job if resolved.keeps_steps else is_in_last_run
    for point in loaded.trajectories.points(own):
        if is_own(point.at, resolved.appended):
            store.add_event(resolved.adjust(point))
        elif is_in_last_job(point.at, resolved.appended):
            store.add_event(replace(resolved.adjust(point), kind="earlier_progress"))
    other = loaded.trajectories.point_of_other_training(own) if run.id is None else None
    if other is not None:
        store.add_event(replace(resolved.adjust(other), kind="other_progress"))
    for event in (*resolved.others, *_separate_logs(loaded, run, resolved.free_logs, store, other)):
        store.add_event(event)
    for point in loaded.trajectories.points(parents) if parents else ():
        store.add_event(replace(resolved.adjust(point), kind="parent_progress"))
    ids = {name for name in (run.id, *run.aliases, run.parent) if name}
    for lag in loaded.lags:
        if (run_lag := lag.of_run(ids)) is not None:
            run_lag.note(store)
    if as_of is not None and run.end is None and run.disposition not in WAITING_STATES:
        run = replace(run, end=as_of)
    if live is not None:
        run = _add_live_metrics(loaded, run, store, live(run, store))
    if loaded.metric_backend is not None and store.metrics is None:
        run, store.metrics = run_metrics(loaded.metric_backend, run, store)
    if loaded.metric_backend is not None and store.metrics is not None:
        for metric in loaded.metric_backend.unavailable:
            if (reason := store.metrics.unavailable.get(metric)) is not None:
                store.add_unavailable_source(
                    "metric", f"{loaded.metric_backend.name}: {metric}", str(reason), concerns_all=False
                )
    return run, store


def _separate_logs(
    loaded: LoadedInputs, run: Run, free_logs: frozenset[str], store: MemoryStore, differing: Event | None
) -> list[Event]:
    """One event for each of the run's logs if they look like separate runs; those that name its job are one.
    ``free_logs``: the others; ``differing``: a point of a log that shows another training."""
    if len(run.log_paths) < 2 or not free_logs:
        return []
    rows = [row for row in store.all_rows() if isinstance(row, Event) and row.plane == "log"]
    logs = separate_logs(run.log_paths, rows, lambda path: loaded.trajectories.points(frozenset({path})), differing)
    return logs if any(log.at.path in free_logs for log in logs) else []


def _add_live_metrics(loaded: LoadedInputs, run: Run, store: MemoryStore, live: MetricBackend) -> Run:
    """Add the metrics of a live store, and of files, to the run's rows; returns the run completed from them.

    If the live store does not answer, this is recorded, and only the metrics of the files are used, if any.
    """
    try:
        backend = live if loaded.metric_backend is None else JoinedBackend(loaded.metric_backend, live)
        completed, store.metrics = run_metrics(backend, run, store)
    except SourceUnavailable as error:
        store.add_unavailable_source("metric", live.name, str(error))
        return run
    for reason in live.unavailable.values():
        store.add_unavailable_source("metric", live.name, str(reason))
    if not store.metrics.backend.series():
        store.metrics = replace(store.metrics, note=f"{live.name} holds no metric of the run")
    return completed
