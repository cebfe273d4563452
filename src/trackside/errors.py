"""One tree of errors: what a person can act upon, and the exit code that each gives.

``str`` of each is one line: what happened, to what, and what to do. Rooms derive their own errors from these classes,
beside the code that raises them; the command line turns any of them into that line and its exit code. Where callers
rely on a ``ValueError``, that is a second base.
"""

from __future__ import annotations

from collections.abc import Sequence


class TracksideError(Exception):
    """What stopped the work, for a reason that can be told: a server, a disk, an output."""

    exit_code = 1


class UsageError(TracksideError):
    """What was given can't be used as it is: a path, a job, a store, a setting."""

    exit_code = 2


class NothingReadable(TracksideError, ValueError):
    """None of the paths held anything that could be read, or nothing that was asked knows the job."""

    exit_code = 3


class SeveralRuns(UsageError, ValueError):
    """The inputs hold several unrelated jobs and none was chosen."""

    def __init__(self, jobs: Sequence[str]) -> None:
        super().__init__(f"the inputs hold {len(jobs)} jobs: {', '.join(jobs[:20])}; choose one with --job ID")
        self.jobs = tuple(jobs)


class NoSuchRun(UsageError, ValueError):
    """The chosen job is not in the inputs."""


class CannotAsk(UsageError, ValueError):
    """What was asked of a site, or a setting, can't be meant: no job's id, a job of several clusters, no such kind of
    store."""
