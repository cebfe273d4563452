"""A session on a job of an embedded store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType

from trackside.ingest import ingest_into
from trackside.read.format import InputSource
from trackside.runs.job_data import find_job_data
from trackside.session.inputs import LoadedInputs
from trackside.session.request import StoreRequest
from trackside.session.session import Session
from trackside.stores.embedded.duck import DuckBackend
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.last_arrival import last_arrival
from trackside.stores.receiver.refresh import refresh


def open_store_session(request: StoreRequest, stack: ExitStack) -> Session:
    """A session on a job of a store."""
    return Session.of(load_stored(request, stack), request.as_of, request.paths, time.time())


def load_stored(
    request: StoreRequest,
    stack: ExitStack,
    more_sources: Sequence[InputSource] = (),
    owners: Mapping[str, str] = MappingProxyType({}),
) -> LoadedInputs:
    """The data of one job in a store, as if loaded from files; its series can be queried until the stack is closed.

    ``more_sources``: further sources of the job; ``owners``: path of a file, in the store or not, whose job is known ->
    its id.
    """
    lags = refresh(request.store) if request.refresh is None else request.refresh()
    snapshot = stack.enter_context(Snapshot.open(request.store))
    added_paths: list[str] = []
    if request.paths or more_sources:
        writer = Writer.temporary(snapshot)
        stack.callback(writer.remove)
        stack.enter_context(writer)  # closed before it is removed
        summary = ingest_into(writer, request.paths, request.on_progress, more_sources)
        added_paths = [row.path for row in (*summary.inputs, *summary.skipped)]
        snapshot = writer.snapshot()
    owners_by_name = _owners_as_stored(snapshot, owners)
    job_data = find_job_data(snapshot, request.job, added_paths, owners_by_name)
    loaded = LoadedInputs(
        job_data.store,
        job_data.trajectories,
        job_data.inputs,
        paths=job_data.paths,
        home=job_data.home,
        owners=owners_by_name,
        job=job_data.job,
        lags=lags,
        last_arrival=last_arrival(snapshot, job_data.ids),
    )
    if snapshot.manifest.of("spans") or snapshot.manifest.of("waiting"):
        loaded.metric_backend = DuckBackend(snapshot, job_data.series_filter)
    return loaded


def _owners_as_stored(snapshot: Snapshot, owners: Mapping[str, str]) -> dict[str, str]:
    """The owners by the store's names of the files, which may have been ingested before under another path."""
    if not owners:
        return {}
    real_paths = {os.path.realpath(f"/{path}"): job for path, job in owners.items()}
    base_names = {os.path.basename(path) for path in (*owners, *real_paths)}
    owners_by_name = {}
    for path, root, label in snapshot.rows(f"SELECT path, root, label FROM {snapshot.table('inputs')}"):
        full_path = os.path.join(root, label)
        job = owners.get(label)
        if job is None and os.path.basename(full_path) in base_names:
            job = real_paths.get(os.path.realpath(full_path))
        if job is not None:
            owners_by_name[path] = job
    return owners_by_name
