"""THE ONE WAY IN: a request opens a session, which holds a run, its evidence and the verdict on it. One file a kind of
source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import assert_never

from trackside.session.paths import open_paths
from trackside.session.request import PathsRequest, Request, SiteRequest, StoreRequest, request_of
from trackside.session.session import Session

__all__ = ["PathsRequest", "Request", "Session", "SiteRequest", "StoreRequest", "open_session", "request_of"]


@contextmanager
def open_session(request: Request) -> Iterator[Session]:
    """The run that is asked for, with its evidence, which can be asked until the block ends.

    Raises FileNotFoundError for a path that isn't there, SeveralRuns, NoSuchRun and StoreError; of a site CannotAsk,
    and NothingReadable where nothing that was asked knows the job.
    """
    with ExitStack() as stack:
        match request:
            case PathsRequest():
                yield open_paths(request)
            case StoreRequest():
                from trackside.session.store import open_store  # DuckDB comes with it

                yield open_store(request, stack)
            case SiteRequest():
                from trackside.session.site import open_site  # the HTTP client comes with it

                yield open_site(request, stack)
            case _:
                assert_never(request)
