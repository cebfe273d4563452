"""Finds a job's output files: the paths in Slurm's records, with their patterns filled in, on this machine.

Records may be another user's, and their paths may name any file. Only regular files are read, and only the job owner's,
or those that everyone can read in folders that the owner can enter; both are checked again after opening the file.
Access control lists are not considered.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from trackside.catalog.slurm.values import vocabulary
from trackside.model import Input, InputStatus
from trackside.read.walk import GuardedPath
from trackside.runs.jobs import Job

MAX_FILES = 4096
"""Maximum files of one job."""
MAX_LISTED_NAMES = 100_000
"""Maximum names of a folder that are searched."""
_PATTERN = re.compile(r"%(\d{0,2})([AajJtsnNxub%])")
_OPTIONS = {"-o": "std_out", "--output": "std_out", "-e": "std_err", "--error": "std_err"}
_FLAGS = vocabulary(
    """
    --parsable --wait -W --exclusive --hold -H --requeue --no-requeue --quiet -Q --verbose -v --oversubscribe -s
    --no-kill -k --contiguous --overcommit -O --reboot --spread-job --use-min-nodes --test-only --ignore-pbs
    --get-user-env --label -l --unbuffered -u --pty --preserve-env -E --disable-status -X --kill-on-bad-exit -K
    """
)
"""Options of sbatch and srun without a value."""
_DIRECTIVE = re.compile(r"#SBATCH\s+(.{1,4000})")
_PER_TASK_PATTERNS = {"t": r"\d+", "n": r"\d+", "s": r"\w+", "J": r"{raw}(?:\.\w+)?"}
"""What a pattern matches that means one file per task, node or step."""


@dataclass(slots=True)
class Outputs:
    """A job's files that exist and are readable, and rows for the others."""

    paths: list[str] = field(default_factory=list)
    rows: list[Input] = field(default_factory=list)
    user: str = ""
    """The job's owner."""

    @property
    def files(self) -> list[GuardedPath]:
        """The paths, with a check to repeat after opening them."""
        return [GuardedPath(path, lambda descriptor, path=path: self._recheck(descriptor, path)) for path in self.paths]  # type: ignore[misc]

    def _recheck(self, descriptor: int, path: str) -> str | None:
        try:
            real = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # not Linux
            real = os.path.realpath(path)
        return _refusal(self.user, os.fstat(descriptor), real)


def outputs(job: Job, script: str = "") -> Outputs:
    """Find a job's output. ``script``: the batch script, whose directives are used if no record names the files."""
    outputs_ = Outputs(user=str(job.first("user") or ""))
    if "+" in job.id and not job.id.endswith("+0"):
        return outputs_  # the first part of a heterogeneous job runs the script
    names, named_by = _output_paths(job, script)
    folder = str(job.first("work_dir") or "")
    for name in names:
        if not os.path.isabs(name) and not folder:
            outputs_.rows.append(_row(job, name, f"{named_by} names it without a folder; pass its path"))
            continue
        path = os.path.normpath(os.path.join(folder, name))
        _add_files(job, path, named_by, outputs_)
    return outputs_


def _output_paths(job: Job, script: str) -> tuple[list[str], str]:
    """Output paths as written, each once, and where they are named."""
    recorded_paths = [str(value) for row in job.rows for key in ("std_out", "std_err") if (value := row.get(key))]
    if recorded_paths:
        return list(dict.fromkeys(_fill_patterns(path, job) for path in recorded_paths)), "Slurm's record"
    line = str(job.first("submit_line") or "")
    command, _, arguments = line.strip().partition(" ")
    program, options = os.path.basename(command), _options(arguments)
    named_by = "the submit line" if options else "the batch script"
    for directive in _DIRECTIVE.findall(script):
        options = {**_options(directive), **options}
    if program in ("srun", "salloc") and "std_out" not in options:
        return [], ""  # output went to the terminal
    if not options:
        named_by = "sbatch's default"
    options.setdefault("std_out", "slurm-%A_%a.out" if "_" in job.id else "slurm-%j.out")
    return list(dict.fromkeys(_fill_patterns(path, job) for path in options.values())), named_by


def _options(line: str) -> dict[str, str]:
    """The output options of a directive, or of the options in a command line before its script."""
    try:
        words = shlex.split(line)[:500]
    except ValueError:  # unbalanced quotes: the record joins what the shell had split
        words = line.split()[:500]
    options: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, equals, value = words[index].partition("=")
        if not equals and not name.startswith("--") and len(name) > 2:
            name, value = name[:2], name[2:]
        elif not equals and name not in _FLAGS:
            index += 1
            value = words[index] if index < len(words) else ""
        if name in _OPTIONS and value:
            options[_OPTIONS[name]] = value
        index += 1
    return options


def _fill_patterns(path: str, job: Job) -> str:
    """The path with everything filled in that is the same for the whole job; per-task parts stay patterns."""
    if "\\" in path:
        return path.replace("\\", "").replace("%", "%%")  # sbatch fills in nothing then
    array, _, task = job.id.partition("_")
    values = {
        "A": array.partition("+")[0],
        "a": task,
        "j": _raw_id(job),
        "x": str(job.first("name") or ""),
        "u": str(job.first("user") or ""),
        "b": str(int(task) % 10) if task.isdecimal() else "",
    }

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[2])
        return match[0] if value is None else value.zfill(int(match[1] or 0)) if value.isdecimal() else value

    return _PATTERN.sub(fill, path)


def _raw_id(job: Job) -> str:
    return str(job.first("raw_id") or next((name for name in sorted(job.names) if name.isdecimal()), job.id))


def _add_files(job: Job, path: str, named_by: str, outputs_: Outputs) -> None:
    """Add the file, or the files of a pattern."""
    if path == os.devnull:
        outputs_.rows.append(_row(job, path, "the job's output was discarded; set --output to a file", "refused"))
        return
    matching = list(_matching_files(job, path)) if _PATTERN.search(path) else [path]
    if not matching and job.started:
        outputs_.rows.append(_row(job, path, f"{named_by} names it, but there is no such file on this machine"))
    for file_path in matching:
        trouble = _trouble(job, file_path)
        if trouble is None:
            outputs_.paths += [file_path] if file_path not in outputs_.paths else []
        elif job.started:
            status: InputStatus = "refused" if trouble.startswith("it is not read") else "unreadable"
            outputs_.rows.append(_row(job, file_path, f"{named_by} names it, but {trouble}", status))


def _row(job: Job, path: str, note: str, status: InputStatus = "unreadable") -> Input:
    return Input(path, None, status, f"output of job {job.id}: {note}", plane="log")


def _trouble(job: Job, path: str) -> str | None:
    """Why a file is not read; None if it is."""
    user = str(job.first("user") or "")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "it is not on this machine; run trackside where it is, or pass its path"
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error}: run trackside as {user or 'its owner'}, or pass a copy"
    if not stat.S_ISREG(status.st_mode):
        return "it is not read: it is not a regular file"
    if (foreign := _refusal(user, status, os.path.realpath(path))) is not None:
        return foreign
    if not os.access(path, os.R_OK):
        return f"you may not read it: run trackside as {user or 'its owner'}, or pass a copy"
    return None


def _refusal(user: str, status: os.stat_result, real: str) -> str | None:
    """Why the job's user may not read the file; None if the user may."""
    uid, groups = _ids(user)
    if status.st_uid == uid:
        return None
    reason = ""
    if not status.st_mode & stat.S_IROTH:
        reason = f"it does not belong to the job's user ({user or 'unknown'})"
    elif not all(_can_enter(uid, groups, folder) for folder in _parent_folders(real)):
        reason = f"the job's user ({user or 'unknown'}) cannot enter its folder"
    return f"it is not read: {reason}; pass its path if you trust it" if reason else None


@lru_cache(maxsize=64)
def _ids(user: str) -> tuple[int, frozenset[int]]:
    """The user's id and groups; -1 and none for a user that this machine does not know."""
    try:
        entry = pwd.getpwnam(user)
        return entry.pw_uid, frozenset(os.getgrouplist(user, entry.pw_gid))
    except (KeyError, OSError, ValueError):
        return -1, frozenset()


def _parent_folders(path: str) -> Iterator[str]:
    """The folders that contain a file, the nearest first."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def _can_enter(uid: int, groups: frozenset[int], folder: str) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return False
    if uid == status.st_uid or uid == 0:
        return uid == 0 or bool(status.st_mode & stat.S_IXUSR)
    return bool(status.st_mode & (stat.S_IXGRP if status.st_gid in groups else stat.S_IXOTH))


def _matching_files(job: Job, path: str) -> Iterator[str]:
    """The files that match a pattern, folder by folder."""
    parts = path.split("/")
    folders: Iterable[str] = ["/"]
    for part in parts[1:-1]:
        folders = [inner for folder in folders for inner in _paths_in(job, folder, part) if os.path.isdir(inner)]
    files = (inner for folder in folders for inner in _paths_in(job, folder, parts[-1]))
    for _, file_path in zip(range(MAX_FILES), files, strict=False):
        yield file_path


def _paths_in(job: Job, folder: str, part: str) -> Sequence[str]:
    """The paths in a folder that a path component means: one name, or the names that match a pattern."""
    if not _PATTERN.search(part):
        return [os.path.join(folder, part)]
    shape = _name_pattern(job, part)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MAX_LISTED_NAMES), entries, strict=False)]
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if shape.fullmatch(name)]


def _name_pattern(job: Job, part: str) -> re.Pattern[str]:
    nodes = {node.partition(".")[0] for row in job.rows for node in map(str, row.many("nodes"))}
    raw = _PER_TASK_PATTERNS["J"].replace("{raw}", re.escape(_raw_id(job)))
    patterns = {**_PER_TASK_PATTERNS, "J": raw, "N": "|".join(map(re.escape, nodes)) or r"[\w.-]+"}
    text, position = "", 0
    for match in _PATTERN.finditer(part):
        text += re.escape(part[position : match.start()]) + (
            f"(?:{patterns[match[2]]})" if match[2] in patterns else "%"
        )
        position = match.end()
    return re.compile(text + re.escape(part[position:]))
