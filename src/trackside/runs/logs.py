"""Which log belongs to which job: by its name, by the paths in the records, by the ids inside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from trackside.model import Event
from trackside.runs.jobs import Job, Jobs, plain_id

_SLURM = re.compile(r"(?:^|[/!_.-])slurm[-_](\d{1,10})(?:_(\d{1,10}))?(?:\+(\d{1,5}))?(?=[._-])")
_TORCHRUN = re.compile(r"(?:^|[/!])(\d{1,10})_[0-9a-z_]{8}[/!]attempt_\d{1,6}[/!]\d{1,6}[/!]std(?:out|err)\.log")
_TAIL = re.compile(r"(?:^|[/!]|[-_.])(\d{4,10})(?:_(\d{1,6}))?\.(?:out|err|o|e)\Z|\.[oe](\d{4,10})\Z")
_NUMBER = re.compile(r"(?<![\d.])(\d{1,10}(?:[_+]\d{1,10})?)(?![\d])")
_DATE = re.compile(r"20\d{6}\Z|20\d\d(?:0[1-9]|1[0-2])\Z")
_PATTERN = re.compile(r"%\d*([AajJtsnNxubB%])")
TELLING = frozenset({"scheduler_notice", "host", "process_exit", "oom_kill"})
"""Kinds of events in a log that may name the job it belongs to."""


def assign(
    jobs: Jobs, paths: Sequence[str], inside: Mapping[str, str], owners: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Give each job the logs that are its own, adding jobs that only logs tell of; the rest is returned.

    ``inside``: path -> job id that the log's own lines name; ``owners``: path -> that of the job that is known to have
    written it, whatever its name.
    """
    free: list[str] = []
    recorded = len(jobs) > 0
    outputs = _outputs(jobs)
    for path in paths:
        job = (jobs.named(owners[path]) or jobs.add(owners[path])) if path in owners else None
        job = job or _by_name(jobs, path) or outputs.get(leaf_of(path)) or _by_number(jobs, path)
        if job is None and path in inside:
            job = jobs.named(inside[path]) or (None if recorded else jobs.add(inside[path]))
        if job is None and not recorded and (guess := _guess(path)) is not None:
            job = jobs.add(guess)
        if job is None:
            free.append(path)
        else:
            job.logs.append(path)
    return _by_folder(jobs, free)


def ids_inside(events: Iterable[Event]) -> dict[str, str]:
    """The job id that most of a log's notices name, by path."""
    counts: dict[str, Counter[str]] = {}
    for event in events:
        if event.kind in TELLING and (job := event.get("job")) is not None:
            counts.setdefault(event.at.path, Counter())[plain_id(str(job))] += 1
    return {path: counter.most_common(1)[0][0] for path, counter in counts.items()}


def _by_name(jobs: Jobs, path: str) -> Job | None:
    """``slurm-60_3.out`` is a firm word, whether or not there is a record of the job."""
    found = _SLURM.search(path)
    if found is None:
        return None
    id_ = found[1] + (f"_{found[2]}" if found[2] else "") + (f"+{found[3]}" if found[3] else "")
    known = jobs.named(id_) or (jobs.named(f"{id_}+0") if not found[2] else None)
    # ``slurm-50433_1.out`` may be a task of an array, or the output of a node or rank of job 50433.
    if known is None and found[2]:
        known = jobs.named(found[1])
    return known or jobs.add(id_)


def outputs_of(job: Job) -> set[str]:
    """File names of a job's StdOut and StdErr."""
    named = {str(row.get(key)) for row in job.rows for key in ("std_out", "std_err") if row.get(key)}
    return {leaf_of(_filled(output, job)) for output in named}


def _outputs(jobs: Jobs) -> dict[str, Job]:
    """File names of StdOut and StdErr in the records, those that are one job's alone."""
    owners: dict[str, set[Job]] = {}
    for job in jobs:
        for name in outputs_of(job):
            owners.setdefault(name, set()).add(job)
    return {name: next(iter(found)) for name, found in owners.items() if len(found) == 1}


def leaf_of(path: str) -> str:
    """The last part of a path."""
    return re.split(r"[/!]", path)[-1]


def _filled(output: str, job: Job) -> str:
    """An output path with sbatch's ``%j``, ``%A``, ``%a``, ``%x`` filled in."""
    array, _, task = job.id.partition("_")
    raw = next((name for name in job.names if name.isdecimal()), job.id)
    words = {
        "j": raw,
        "J": raw,
        "A": array,
        "a": task,
        "x": str(job.first("name") or ""),
        "u": str(job.first("user") or ""),
    }
    return _PATTERN.sub(lambda found: words.get(found[1], "0" if found[1] in "tns" else found[0]), output)


def _by_number(jobs: Jobs, path: str) -> Job | None:
    """A number in the path that is the id of a job with records; the rightmost wins."""
    run = _TORCHRUN.search(path)
    if run and (job := jobs.named(run[1])):
        return job
    for found in reversed(_NUMBER.findall(path)):
        for id_ in (found, *re.split(r"[_+]", found)[:1]):
            # Short numbers are ranks, nodes and counters more often than jobs.
            if len(id_) >= 3 and (job := jobs.named(id_)) is not None:
                return job
    return None


def _guess(path: str) -> str | None:
    """With no record to go by: ``name-48563.out``, ``train.o48563``, a torchrun folder ``49005_2cby87dw``."""
    run = _TORCHRUN.search(path)
    if run and not _DATE.match(run[1]) and len(run[1]) >= 3:
        return run[1]
    found = _TAIL.search(path)
    number = (found[1] or found[3]) if found else None
    if found is None or number is None or _DATE.match(number):
        return None
    return f"{number}_{found[2]}" if found[2] else number


def _by_folder(jobs: Jobs, free: list[str]) -> list[str]:
    """Unnamed logs in a folder whose named ones all belong to one job; the others are returned."""
    owners: dict[str, set[Job]] = {}
    for job in jobs:
        for path in job.logs:
            folder = folder_of(path)
            while folder:
                owners.setdefault(folder, set()).add(job)
                folder = folder_of(folder)
    rest = []
    for path in free:
        folder = folder_of(path)
        while folder and folder not in owners:
            folder = folder_of(folder)
        if folder and len(owners[folder]) == 1:
            next(iter(owners[folder])).logs.append(path)
        else:
            rest.append(path)
    return rest


def folder_of(path: str) -> str:
    """The folder of a path; empty at the top."""
    cut = max(path.rfind("/"), path.rfind("!"))
    return path[:cut] if cut > 0 else ""
