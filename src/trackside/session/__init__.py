"""Sessions: a request opens a session, which holds a run, its evidence and its verdict. One file per kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import assert_never

from trackside.session.paths import open_paths_session
from trackside.session.request import PathsRequest, Request, SiteRequest, StoreRequest, request_of
from trackside.session.session import Session

__all__ = ["PathsRequest", "Request", "Session", "SiteRequest", "StoreRequest", "open_session", "request_of"]


@contextmanager
def open_session(request: Request) -> Iterator[Session]:
    """A session on the requested run; its evidence can be queried until the block ends.

    Raises FileNotFoundError for a missing path, SeveralRuns, NoSuchRun and StoreError; for a site also
    InvalidSiteRequest, and NothingReadable if the job was not found in any source.
    """
    with ExitStack() as stack:
        match request:
            case PathsRequest():
                yield open_paths_session(request)
            case StoreRequest():
                from trackside.session.store import open_store_session  # imports DuckDB

                yield open_store_session(request, stack)
            case SiteRequest():
                from trackside.session.site import open_site_session  # imports the HTTP client

                yield open_site_session(request, stack)
            case _:
                assert_never(request)
