"""Where a job's output is: the paths that Slurm's records name, their patterns filled in, looked for on this machine.

Records may be another user's, and their paths may name any file. Only plain files are taken, and of these the job
owner's own, or those that everyone may read anyway who gets there as that user does; both are asked of a file once more
when it has been opened. Access control lists are not looked at.
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

MOST_FILES = 4096
"""Files of one job that are taken."""
MOST_LISTED = 100_000
"""Names of a folder that are looked through."""
_PATTERN = re.compile(r"%(\d{0,2})([AajJtsnNxub%])")
_OPTIONS = {"-o": "std_out", "--output": "std_out", "-e": "std_err", "--error": "std_err"}
_FLAGS = vocabulary(
    """
    --parsable --wait -W --exclusive --hold -H --requeue --no-requeue --quiet -Q --verbose -v --oversubscribe -s
    --no-kill -k --contiguous --overcommit -O --reboot --spread-job --use-min-nodes --test-only --ignore-pbs
    --get-user-env --label -l --unbuffered -u --pty --preserve-env -E --disable-status -X --kill-on-bad-exit -K
    """
)
"""Options that stand without a value, of sbatch and srun."""
_DIRECTIVE = re.compile(r"#SBATCH\s+(.{1,4000})")
_EACH = {"t": r"\d+", "n": r"\d+", "s": r"\w+", "J": r"{raw}(?:\.\w+)?"}
"""What stands where a pattern means one file a task, node or step."""


@dataclass(slots=True)
class Outputs:
    """A job's files that are there and readable, and rows for those that are not."""

    paths: list[str] = field(default_factory=list)
    rows: list[Input] = field(default_factory=list)
    user: str = ""
    """Whose job it is."""

    @property
    def files(self) -> list[GuardedPath]:
        """The paths, to be looked at again when they have been opened."""
        return [GuardedPath(path, lambda opened, path=path: self._against(opened, path)) for path in self.paths]  # type: ignore[misc]

    def _against(self, opened: int, path: str) -> str | None:
        try:
            real = os.readlink(f"/proc/self/fd/{opened}")
        except OSError:  # no Linux
            real = os.path.realpath(path)
        return _foreign(self.user, os.fstat(opened), real)


def outputs(job: Job, script: str = "") -> Outputs:
    """Look for a job's output. ``script``: the batch script, whose directives count where no record names the files."""
    found = Outputs(user=str(job.first("user") or ""))
    if "+" in job.id and not job.id.endswith("+0"):
        return found  # of a heterogeneous job the first part runs the script
    names, said = _named(job, script)
    folder = str(job.first("work_dir") or "")
    for name in names:
        if not os.path.isabs(name) and not folder:
            found.rows.append(_row(job, name, f"{said} names it without a folder; give its path"))
            continue
        path = os.path.normpath(os.path.join(folder, name))
        _look(job, path, said, found)
    return found


def _named(job: Job, script: str) -> tuple[list[str], str]:
    """Output paths as written, each once, and who names them."""
    recorded = [str(value) for row in job.rows for key in ("std_out", "std_err") if (value := row.get(key))]
    if recorded:
        return list(dict.fromkeys(_filled(path, job) for path in recorded)), "Slurm's record"
    line = str(job.first("submit_line") or "")
    command, _, rest = line.strip().partition(" ")
    program, asked = os.path.basename(command), _options(rest)
    told = "the submit line" if asked else "the batch script"
    for directive in _DIRECTIVE.findall(script):
        asked = {**_options(directive), **asked}
    if program in ("srun", "salloc") and "std_out" not in asked:
        return [], ""  # it went to the terminal
    if not asked:
        told = "sbatch's default"
    asked.setdefault("std_out", "slurm-%A_%a.out" if "_" in job.id else "slurm-%j.out")
    return list(dict.fromkeys(_filled(path, job) for path in asked.values())), told


def _options(line: str) -> dict[str, str]:
    """The output options of a directive, or of a command's words after the first; its script ends them."""
    try:
        words = shlex.split(line)[:500]
    except ValueError:  # quotes left open: what a shell had taken apart was put together again
        words = line.split()[:500]
    found: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, equals, value = words[index].partition("=")
        if not equals and not name.startswith("--") and len(name) > 2:
            name, value = name[:2], name[2:]
        elif not equals and name not in _FLAGS:
            index += 1
            value = words[index] if index < len(words) else ""
        if name in _OPTIONS and value:
            found[_OPTIONS[name]] = value
        index += 1
    return found


def _filled(path: str, job: Job) -> str:
    """What is one for the whole job filled in; what is one for each task stays a pattern."""
    if "\\" in path:
        return path.replace("\\", "").replace("%", "%%")  # sbatch fills in nothing then
    array, _, task = job.id.partition("_")
    words = {
        "A": array.partition("+")[0],
        "a": task,
        "j": _raw(job),
        "x": str(job.first("name") or ""),
        "u": str(job.first("user") or ""),
        "b": str(int(task) % 10) if task.isdecimal() else "",
    }

    def one(told: re.Match[str]) -> str:
        value = words.get(told[2])
        return told[0] if value is None else value.zfill(int(told[1] or 0)) if value.isdecimal() else value

    return _PATTERN.sub(one, path)


def _raw(job: Job) -> str:
    return str(job.first("raw_id") or next((name for name in sorted(job.names) if name.isdecimal()), job.id))


def _look(job: Job, path: str, said: str, found: Outputs) -> None:
    """Take the file, or the files of a pattern."""
    if path == os.devnull:
        found.rows.append(_row(job, path, "the job's output was thrown away; give --output a file", "refused"))
        return
    there = list(_matching(job, path)) if _PATTERN.search(path) else [path]
    if not there and job.started:
        found.rows.append(_row(job, path, f"{said} names it, and no such file is here"))
    for each in there:
        trouble = _trouble(job, each)
        if trouble is None:
            found.paths += [each] if each not in found.paths else []
        elif job.started:
            status: InputStatus = "refused" if trouble.startswith("it is not read") else "unreadable"
            found.rows.append(_row(job, each, f"{said} names it, and {trouble}", status))


def _row(job: Job, path: str, note: str, status: InputStatus = "unreadable") -> Input:
    return Input(path, None, status, f"output of job {job.id}: {note}", plane="log")


def _trouble(job: Job, path: str) -> str | None:
    """Why a file is not taken; None where it is."""
    user = str(job.first("user") or "")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "it is not on this machine: run trackside where it is, or give its path"
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error}: run trackside as {user or 'its owner'}, or give a copy"
    if not stat.S_ISREG(status.st_mode):
        return "it is not read: it is no plain file"
    if (foreign := _foreign(user, status, os.path.realpath(path))) is not None:
        return foreign
    if not os.access(path, os.R_OK):
        return f"it may not be read here: run trackside as {user or 'its owner'}, or give a copy"
    return None


def _foreign(user: str, status: os.stat_result, real: str) -> str | None:
    """Why a file is none that the job's user may read; None where it is one."""
    uid, groups = _ids(user)
    if status.st_uid == uid:
        return None
    why = ""
    if not status.st_mode & stat.S_IROTH:
        why = f"it isn't the job's user's ({user or 'unknown'})"
    elif not all(_enters(uid, groups, folder) for folder in _above(real)):
        why = f"it lies where the job's user ({user or 'unknown'}) can't get"
    return f"it is not read: {why}; give its path if it may be" if why else None


@lru_cache(maxsize=64)
def _ids(user: str) -> tuple[int, frozenset[int]]:
    """The user's number and groups; -1 and none for one that this machine doesn't know."""
    try:
        entry = pwd.getpwnam(user)
        return entry.pw_uid, frozenset(os.getgrouplist(user, entry.pw_gid))
    except (KeyError, OSError, ValueError):
        return -1, frozenset()


def _above(path: str) -> Iterator[str]:
    """The folders that a file is in, the nearest first."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def _enters(uid: int, groups: frozenset[int], folder: str) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return False
    if uid == status.st_uid or uid == 0:
        return uid == 0 or bool(status.st_mode & stat.S_IXUSR)
    return bool(status.st_mode & (stat.S_IXGRP if status.st_gid in groups else stat.S_IXOTH))


def _matching(job: Job, path: str) -> Iterator[str]:
    """The files of a pattern, folder by folder."""
    parts = path.split("/")
    folders: Iterable[str] = ["/"]
    for part in parts[1:-1]:
        folders = [inner for folder in folders for inner in _inside(job, folder, part) if os.path.isdir(inner)]
    files = (inner for folder in folders for inner in _inside(job, folder, parts[-1]))
    for _, each in zip(range(MOST_FILES), files, strict=False):
        yield each


def _inside(job: Job, folder: str, part: str) -> Sequence[str]:
    """What of a folder a part of a path means: one name, or the names that fit a pattern."""
    if not _PATTERN.search(part):
        return [os.path.join(folder, part)]
    shape = _shape(job, part)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MOST_LISTED), entries, strict=False)]
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if shape.fullmatch(name)]


def _shape(job: Job, part: str) -> re.Pattern[str]:
    nodes = {node.partition(".")[0] for row in job.rows for node in map(str, row.many("nodes"))}
    raw = _EACH["J"].replace("{raw}", re.escape(_raw(job)))
    each = {**_EACH, "J": raw, "N": "|".join(map(re.escape, nodes)) or r"[\w.-]+"}
    text, at = "", 0
    for told in _PATTERN.finditer(part):
        text += re.escape(part[at : told.start()]) + (f"(?:{each[told[2]]})" if told[2] in each else "%")
        at = told.end()
    return re.compile(text + re.escape(part[at:]))
