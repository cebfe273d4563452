"""The tree of errors that a user can act on, and the exit code of each.

``str`` of each is one line: what happened, to what, and what to do. Packages derive their own errors from these
classes, next to the code that raises them; the command line prints that line and exits with the code. If callers rely
on a ``ValueError``, that is a second base.
"""

from __future__ import annotations

from collections.abc import Sequence


class TracksideError(Exception):
    """The work stopped because of a server, a disk or an output."""

    exit_code = 1


class UsageError(TracksideError):
    """An argument cannot be used as given: a path, a job, a store, a setting."""

    exit_code = 2


class NothingReadable(TracksideError, ValueError):
    """None of the paths could be read, or the job was not found in any source."""

    exit_code = 3


class SeveralRuns(UsageError, ValueError):
    """The inputs hold several unrelated jobs and none was chosen."""

    def __init__(self, jobs: Sequence[str]) -> None:
        super().__init__(f"the inputs hold {len(jobs)} jobs: {', '.join(jobs[:20])}; choose one with --job ID")
        self.jobs = tuple(jobs)


class NoSuchRun(UsageError, ValueError):
    """The chosen job is not in the inputs."""


class InvalidSiteRequest(UsageError, ValueError):
    """A request to a site, or a setting for it, is invalid: not a job id, a job of several clusters, an unknown kind of
    store."""
