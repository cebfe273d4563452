"""A session on a job of an embedded store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType

from trackside.ingest import ingest_into
from trackside.read.format import Source
from trackside.runs.kept import find
from trackside.session.inputs import LoadedInputs
from trackside.session.request import StoreRequest
from trackside.session.session import Session
from trackside.stores.embedded.duck import DuckBackend
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer


def open_store(request: StoreRequest, stack: ExitStack) -> Session:
    """The session on a job of a store."""
    return Session.of(load_stored(request, stack), request.as_of, request.paths)


def load_stored(
    request: StoreRequest,
    stack: ExitStack,
    more: Sequence[Source] = (),
    owners: Mapping[str, str] = MappingProxyType({}),
) -> LoadedInputs:
    """What concerns one job of a store, as if it had been loaded; its curves can be asked until the stack is closed.

    ``more``: what else belongs to the job; ``owners``: files of all these whose job is known -> its id.
    """
    snapshot = stack.enter_context(Snapshot.open(request.store))
    given: list[str] = []
    if request.paths or more:
        writer = Writer.temporary(snapshot)
        stack.callback(writer.remove)
        stack.enter_context(writer)  # closed before it is removed
        summary = ingest_into(writer, request.paths, request.on_progress, more)
        given = [row.path for row in (*summary.inputs, *summary.skipped)]
        snapshot = writer.snapshot()
    named = _owners_as_stored(snapshot, owners)
    of_job = find(snapshot, request.job, given, named)
    loaded = LoadedInputs(
        of_job.store,
        of_job.trajectories,
        of_job.inputs,
        paths=of_job.paths,
        home=of_job.home,
        owners=named,
        job=of_job.job,
    )
    if snapshot.manifest.of("spans") or snapshot.manifest.of("waiting"):
        loaded.metric_backend = DuckBackend(snapshot, of_job.scope)
    return loaded


def _owners_as_stored(snapshot: Snapshot, owners: Mapping[str, str]) -> dict[str, str]:
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
