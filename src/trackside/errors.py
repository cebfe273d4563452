"""The tree of errors that a user can act on, and the exit code of each.

``str`` of each is one line: what happened, to what, and what to do. Packages derive their own errors from these
classes, next to the code that raises them; the command line prints that line and exits with the code. Some also derive
from ValueError, for callers that catch it.
"""

from __future__ import annotations

from collections.abc import Sequence


class TracksideError(Exception):
    """An error that a user can act on. Raised as such if a server, a disk or an output failed."""

    exit_code = 1


class UsageError(TracksideError):
    """An argument cannot be used as given: a path, a job, a store, a setting."""

    exit_code = 2


class NothingReadable(TracksideError, ValueError):
    """None of the paths could be read, or the job was not found in any source."""

    exit_code = 3


MAX_LISTED = 20
"""Jobs that an error lists."""


class SeveralRuns(UsageError, ValueError):
    """The inputs hold several unrelated jobs and none was chosen. ``in_store``: they are the runs of a store, some of
    which may have no job id. ``summary``: how many jobs, and their ids."""

    def __init__(self, jobs: Sequence[str], in_store: bool = False) -> None:
        self.jobs = tuple(jobs)
        head = f"the store has {len(jobs):,} runs" if in_store else f"there are {len(jobs)} jobs"
        more = f" and {len(jobs) - MAX_LISTED:,} more" if len(jobs) > MAX_LISTED else ""
        self.summary = f"{head}: {', '.join(jobs[:MAX_LISTED])}{more}"
        super().__init__(f"{self.summary}; name one of them")


class NoSuchRun(UsageError, ValueError):
    """The chosen job is not in the inputs."""


class StoreError(UsageError, ValueError):
    """The store cannot be used as requested: names the file or folder, and the remedy."""


class InvalidSiteRequest(UsageError, ValueError):
    """A request to a site, or a setting for it, is invalid: not a job id, a job of several clusters, an unknown kind of
    store."""
