"""Output files found by name: by the patterns in the settings, and the log files of torchrun's workers."""

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

from trackside.agent.output.holders import OpenOutput
from trackside.agent.user import User

RECENT_S = 3600.0
"""Files that were not written to for this long are ignored."""
MAX_FILES = 4096
_JOB = re.compile(r"slurm[-_](\d{1,10})(?:_\d{1,10})?")
_NUMBER = re.compile(r"(?<![\d.])(\d{3,10})(?!\d)")
_TREES = (("attempt_*", "*", "std*.log"), ("*", "attempt_*", "*", "std*.log"))


class PatternFiles:
    """Finds files by patterns. ``%j`` in a pattern stands for the job id, as in Slurm's file names."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(pattern.replace("%j", "[0-9]*"), _job_pattern(pattern)) for pattern in patterns]
        self.without_job_id: set[str] = set()
        """Matching files whose names contain no job id."""

    def matching_files(self) -> Iterator[OpenOutput]:
        """Files that match the patterns and were written to recently."""
        for pattern, job_pattern in self._patterns:
            for path in islice(glob.iglob(pattern, recursive=True), MAX_FILES):
                job = _job_of(path, job_pattern)
                if job is None and len(self.without_job_id) < MAX_FILES:
                    self.without_job_id.add(path)
                if job is not None and (output := _output(path, path, job)) is not None:
                    yield output

    def worker_logs(self, folders: Mapping[str, tuple[str, str, User]]) -> Iterator[OpenOutput]:
        """Log files in torchrun's folders (folder -> job, root to read it under, user)."""
        for folder, (job, root, user) in folders.items():
            top = Path(root) if os.path.isdir(root) else Path("/")
            base = os.path.join(top, folder.lstrip("/"))
            for tree in _TREES:
                for path in _files_below(base, tree, iter(range(MAX_FILES))):
                    if (output := _output(path, f"{folder}{path[len(base) :]}", job, user)) is not None:
                        yield output


def _files_below(folder: str, parts: Sequence[str], entries_left: Iterator[int]) -> Iterator[str]:
    """The files below a folder whose path parts match ``parts``. ``entries_left``: yields once for each entry that may
    still be read."""
    try:
        with os.scandir(folder) as dir_entries:
            for entry, _ in zip(dir_entries, entries_left, strict=False):
                if fnmatchcase(entry.name, parts[0]):
                    if len(parts) == 1:
                        yield entry.path
                    else:
                        yield from _files_below(entry.path, parts[1:], entries_left)
    except OSError:
        return


def _output(link: str, path: str, job: str, user: User | None = None) -> OpenOutput | None:
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
    return OpenOutput((status.st_dev, status.st_ino), path, link, stream, job, user=user)


def _job_pattern(pattern: str) -> re.Pattern[str] | None:
    if "%j" not in pattern:
        return None
    parts = [
        re.escape(part).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        for part in pattern.split("%j")
    ]
    return re.compile(r"(\d{1,10})".join(parts[:2]) + "".join(rf"\d{{1,10}}{part}" for part in parts[2:]) + r"\Z")


def _job_of(path: str, job_pattern: re.Pattern[str] | None) -> str | None:
    if job_pattern is not None:
        match = job_pattern.match(path)
        return match[1] if match else None
    name = path.rpartition("/")[2]
    if match := _JOB.search(name):
        return match[1]
    numbers = _NUMBER.findall(name)
    return str(numbers[-1]) if numbers else None
