"""Files that are followed for their names: those that the settings give, and what torchrun has its workers write."""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Literal

from trackside.agent.output.holders import Held
from trackside.agent.user import User

RECENT_S = 3600.0
"""A file that was not written to for so long is left alone."""
MOST = 4096
_JOB = re.compile(r"slurm[-_](\d{1,10})(?:_\d{1,10})?")
_NUMBER = re.compile(r"(?<![\d.])(\d{3,10})(?!\d)")
_TREES = (("attempt_*", "*", "std*.log"), ("*", "attempt_*", "*", "std*.log"))


class Named:
    """Finds files by patterns. ``%j`` in one stands for the job's id, as in Slurm's own file names."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(pattern.replace("%j", "[0-9]*"), _capturing(pattern)) for pattern in patterns]
        self.nameless: set[str] = set()
        """Files that match and whose name tells no job."""

    def given(self) -> Iterator[Held]:
        """Those of the patterns that were written to lately."""
        for pattern, telling in self._patterns:
            for path in islice(glob.iglob(pattern, recursive=True), MOST):
                job = _job_of(path, telling)
                if job is None and len(self.nameless) < MOST:
                    self.nameless.add(path)
                if job is not None and (held := _held(path, path, job)) is not None:
                    yield held

    def logged(self, folders: Mapping[str, tuple[str, str, User]]) -> Iterator[Held]:
        """Those of torchrun's folders (folder -> job, the root to read it under, whose)."""
        for folder, (job, root, user) in folders.items():
            top = Path(root) if os.path.isdir(root) else Path("/")
            here = os.path.join(top, folder.lstrip("/"))
            for tree in _TREES:
                for path in _below(here, tree, iter(range(MOST))):
                    if (held := _held(path, f"{folder}{path[len(here) :]}", job, user)) is not None:
                        yield held


def _below(folder: str, parts: Sequence[str], left: Iterator[int]) -> Iterator[str]:
    """The files below a folder of a job's, each part of whose path is as told. ``left``: one for each entry that may
    still be looked at."""
    try:
        with os.scandir(folder) as entries:
            for entry, _ in zip(entries, left, strict=False):
                if fnmatchcase(entry.name, parts[0]):
                    if len(parts) == 1:
                        yield entry.path
                    else:
                        yield from _below(entry.path, parts[1:], left)
    except OSError:
        return


def _held(link: str, path: str, job: str, user: User | None = None) -> Held | None:
    try:
        status = os.lstat(link) if user is None else os.stat(link)
    except OSError:
        return None
    if user is not None and not user.may_read(status):
        return None
    if not stat.S_ISREG(status.st_mode) or time.time() - status.st_mtime > RECENT_S:
        return None
    is_error = re.search(r"stderr|\.err?\Z|\.e\d*\Z", path) is not None
    stream: Literal["stdout", "stderr"] = "stderr" if is_error else "stdout"
    return Held((status.st_dev, status.st_ino), path, link, stream, job, user=user)


def _capturing(pattern: str) -> re.Pattern[str] | None:
    if "%j" not in pattern:
        return None
    parts = [
        re.escape(part).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        for part in pattern.split("%j")
    ]
    return re.compile(r"(\d{1,10})".join(parts[:2]) + "".join(rf"\d{{1,10}}{part}" for part in parts[2:]) + r"\Z")


def _job_of(path: str, telling: re.Pattern[str] | None) -> str | None:
    if telling is not None:
        found = telling.match(path)
        return found[1] if found else None
    name = path.rpartition("/")[2]
    if found := _JOB.search(name):
        return found[1]
    numbers = _NUMBER.findall(name)
    return str(numbers[-1]) if numbers else None
