"""A session on files, folders, archives or a bundle."""

from __future__ import annotations

import time
from collections.abc import Sequence

from trackside.errors import NothingReadable
from trackside.finding import PendingEvidence, Verdict
from trackside.model import Input
from trackside.session import settling
from trackside.session.inputs import LoadedInputs
from trackside.session.other_runs import with_other_runs
from trackside.session.request import Paths, PathsRequest, ProgressCallback
from trackside.session.session import Session

MAX_REASONS = 3
"""Inputs whose reason an error gives."""


class PathsSession(Session):
    """A session that says if its verdict is about one of several runs, and raises an error if nothing could be read."""

    def _unsettled(self) -> PendingEvidence | None:
        return None if self.now is None else settling.by_growth(self.files, self.run.log_paths, self.now)

    def _diagnose(self) -> Verdict:
        if not self.loaded.readable:
            raise NothingReadable(_nothing_readable(self.files, self.inputs))
        verdict = super()._diagnose()
        if self.loaded.job is not None:  # the user, or a bundle, chose it
            return verdict
        return with_other_runs(verdict, self.store, self.files)


def _nothing_readable(paths: Paths, inputs: Sequence[Input]) -> str:
    """Why nothing could be read: one line."""
    if not inputs:
        return f"no files in {', '.join(map(str, paths)) or 'the inputs'}"
    if len(inputs) == 1 and inputs[0].status == "empty":
        return f"nothing to diagnose in {inputs[0].path}: {inputs[0].note or 'no rows'}"
    reasons = "; ".join(f"{row.path}: {row.note or row.status}" for row in inputs[:MAX_REASONS])
    more = "; 'trackside inputs PATH' lists all of them" if len(inputs) > 1 else ""
    return f"no input could be read ({reasons}){more}"


def load(paths: Paths, on_progress: ProgressCallback | None = None, job: str | None = None) -> LoadedInputs:
    """Load everything under the paths. Raises FileNotFoundError for a missing path, and StoreError."""
    loaded = LoadedInputs(job=job)
    loaded.load(paths, on_progress)
    loaded.finish()
    return loaded


def open_paths_session(request: PathsRequest) -> PathsSession:
    """A session on the contents of the paths."""
    began = time.time()
    loaded = load(request.paths, request.on_progress, request.job)
    return PathsSession.of(loaded, request.as_of, request.paths, began)
