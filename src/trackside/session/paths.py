"""A session on files, folders, archives or a bundle."""

from __future__ import annotations

from trackside.errors import NothingReadable
from trackside.finding import Verdict
from trackside.session.inputs import LoadedInputs
from trackside.session.request import Paths, PathsRequest, ProgressCallback
from trackside.session.session import Session


class PathsSession(Session):
    """A session that raises an error instead of a verdict if nothing could be read."""

    def _diagnose(self) -> Verdict:
        if not self.loaded.readable:
            reasons = "; ".join(f"{row.path}: {row.note or row.status}" for row in self.inputs[:3])
            raise NothingReadable(
                f"no input could be read ({reasons or 'no files'}); 'trackside inputs PATH' lists all of them"
            )
        return super()._diagnose()


def load(paths: Paths, on_progress: ProgressCallback | None = None, job: str | None = None) -> LoadedInputs:
    """Load everything under the paths. Raises FileNotFoundError for a missing path, and StoreError."""
    loaded = LoadedInputs(job=job)
    loaded.load(paths, on_progress)
    loaded.done()
    return loaded


def open_paths(request: PathsRequest) -> PathsSession:
    """A session on the contents of the paths."""
    return PathsSession.of(load(request.paths, request.on_progress, request.job), request.as_of, request.paths)
