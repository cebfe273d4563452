"""Requests: what to open a session on.

``job``: the job to diagnose if the inputs hold several. ``as_of``: the time to take as the present for a run that has
not ended, POSIX seconds. ``on_progress``: called with the number of bytes just read, for a progress bar. ``refresh``:
called before a store is read, so that what its receiver accepted is in it; returns what is not. None: the receiver is
asked through the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.read.format import InputSource
from trackside.stores.embedded.layout import Directory

if TYPE_CHECKING:
    from trackside.site.config import Site
    from trackside.stores.receiver.lag import IntakeLag

StrPath = str | os.PathLike[str]
Paths = Sequence[StrPath]
ProgressCallback = Callable[[int], None]
Refresh = Callable[[], "Sequence[IntakeLag]"]


@dataclass(frozen=True, slots=True)
class PathsRequest:
    """Files, folders, archives, or a bundle: a bundle names its job and its time itself."""

    paths: Paths
    job: str | None = None
    as_of: float | None = None
    on_progress: ProgressCallback | None = None


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A job of an embedded store, by its id or the folder that it was ingested from. ``paths``: further
    files of the job, read for this session only."""

    store: StrPath
    job: str | None = None
    paths: Paths = ()
    as_of: float | None = None
    on_progress: ProgressCallback | None = None
    refresh: Refresh | None = None


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """A job of a site: its Slurm, log stores and server of metrics. ``paths`` and ``store``: further files of
    the job, and a store that may hold it.

    ``on_source``: called with each source before it is read; not for ``store``, nor for ``paths`` that are read
    into it.
    """

    site: Site
    job: str | None = None
    paths: Paths = ()
    store: StrPath | None = None
    as_of: float | None = None
    on_progress: ProgressCallback | None = None
    on_source: Callable[[InputSource], None] | None = None
    refresh: Refresh | None = None


Request = PathsRequest | StoreRequest | SiteRequest


def request_of(
    paths: Paths,
    job: str | None = None,
    as_of: float | None = None,
    *,
    store: StrPath | None = None,
    site: Site | None = None,
    on_progress: ProgressCallback | None = None,
) -> Request:
    """The request for these arguments. If the first path is a store, the other paths are further files of its job."""
    if store is None and paths and Directory(paths[0]).exists:
        store, paths = paths[0], paths[1:]
    if site is not None:
        return SiteRequest(site, job, paths, store, as_of, on_progress)
    if store is not None:
        return StoreRequest(store, job, paths, as_of, on_progress)
    return PathsRequest(paths, job, as_of, on_progress)
