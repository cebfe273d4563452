"""A session on files, folders, archives or a bundle."""

from __future__ import annotations

from trackside.errors import NothingReadable
from trackside.finding import Verdict
from trackside.session.inputs import LoadedInputs
from trackside.session.request import Paths, PathsRequest, ProgressCallback
from trackside.session.session import Session


class PathsSession(Session):
    """A session that gives no verdict where nothing could be read."""

    def _judged(self) -> Verdict:
        if not self.loaded.readable:
            why = "; ".join(f"{row.path}: {row.note or row.status}" for row in self.inputs[:3])
            why = f"nothing readable was given ({why or 'no files'})"
            raise NothingReadable(f"{why}; 'trackside inputs PATH' lists all")
        return super()._judged()


def load(paths: Paths, on_progress: ProgressCallback | None = None, job: str | None = None) -> LoadedInputs:
    """All that the paths hold. Raises FileNotFoundError for a path that isn't there, and StoreError."""
    loaded = LoadedInputs(job=job)
    loaded.load(paths, on_progress)
    loaded.done()
    return loaded


def open_paths(request: PathsRequest) -> PathsSession:
    """The session on what the paths hold."""
    return PathsSession.of(load(request.paths, request.on_progress, request.job), request.as_of, request.paths)
