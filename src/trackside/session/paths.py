"""A session on files, folders, archives or a bundle."""

from __future__ import annotations

from trackside.session.inputs import LoadedInputs
from trackside.session.request import Paths, PathsRequest, ProgressCallback
from trackside.session.session import Session


def load(paths: Paths, on_progress: ProgressCallback | None = None, job: str | None = None) -> LoadedInputs:
    """All that the paths hold. Raises FileNotFoundError for a path that isn't there, and StoreError."""
    loaded = LoadedInputs(job=job)
    loaded.load(paths, on_progress)
    loaded.done()
    return loaded


def open_paths(request: PathsRequest) -> Session:
    """The session on what the paths hold."""
    return Session.of(load(request.paths, request.on_progress, request.job), request.as_of, request.paths)
