"""Assigns logs to jobs: by file name, by the output paths in the records, by the job ids inside the log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from trackside.logs.job_report import REPORT
from trackside.model import Event
from trackside.runs.jobs import Job, JobIndex, plain_id

_SLURM_NAME = re.compile(r"(?:^|[/!_.-])slurm[-_](\d{1,10})(?:_(\d{1,10}))?(?:\+(\d{1,5}))?(?=[._-])")
_TORCHRUN_FOLDER = re.compile(r"(?:^|[/!])(\d{1,10})_[0-9a-z_]{8}[/!]attempt_\d{1,6}[/!]\d{1,6}[/!]std(?:out|err)\.log")
_NUMBER_AT_END = re.compile(r"(?:^|[/!]|[-_.])(\d{4,10})(?:_(\d{1,6}))?\.(?:out|err|o|e)\Z|\.[oe](\d{4,10})\Z")
_NUMBER = re.compile(r"(?<![\d.])(\d{1,10}(?:[_+]\d{1,10})?)(?![\d])")
_DATE = re.compile(r"20\d{6}\Z|20\d\d(?:0[1-9]|1[0-2])\Z")
_PATTERN = re.compile(r"%\d*([AajJtsnNxubB%])")
JOB_NAMING_EVENTS = frozenset({"scheduler_notice", "host", "process_exit", "oom_kill", REPORT})
"""Kinds of log events that may name the job of the log."""


def assign_logs(
    jobs: JobIndex, paths: Sequence[str], ids: Mapping[str, str], owners: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Give each job its logs, adding jobs that only logs name; returns the logs of no job.

    ``ids``: path -> job id that the log's lines name; ``owners``: path -> id of the job known to have written it,
    whatever its file name.
    """
    free_logs: list[str] = []
    have_records = len(jobs) > 0
    job_by_output = _job_by_output(jobs)
    for path in paths:
        job = (jobs.find(owners[path]) or jobs.add(owners[path])) if path in owners else None
        job = job or _job_by_slurm_name(jobs, path) or job_by_output.get(leaf_of(path)) or _job_by_number(jobs, path)
        if job is None and path in ids:
            job = jobs.find(ids[path]) or (None if have_records else jobs.add(ids[path]))
        if job is None and not have_records and (guess := guess_id(path)) is not None:
            job = jobs.add(guess)
        if job is None:
            free_logs.append(path)
        else:
            job.logs.append(path)
    return _assign_by_folder(jobs, free_logs)


def ids_in_lines(events: Iterable[Event]) -> dict[str, str]:
    """Path of a log -> the job id in its last report, else the one that most of its notices name."""
    counts: dict[str, Counter[str]] = {}
    last_ids: dict[str, str] = {}
    for event in events:
        if event.kind in JOB_NAMING_EVENTS and (job := event.get("job")) is not None:
            counts.setdefault(event.at.path, Counter())[plain_id(str(job))] += 1
            if event.kind == REPORT:
                last_ids[event.at.path] = plain_id(str(job))
    return {path: counter.most_common(1)[0][0] for path, counter in counts.items()} | last_ids


def _job_by_slurm_name(jobs: JobIndex, path: str) -> Job | None:
    """The job that ``slurm-60_3.out`` names for certain; added if it has no record. None for other file names."""
    match = _SLURM_NAME.search(path)
    if match is None:
        return None
    id_ = match[1] + (f"_{match[2]}" if match[2] else "") + (f"+{match[3]}" if match[3] else "")
    job = jobs.find(id_) or (jobs.find(f"{id_}+0") if not match[2] else None)
    # ``slurm-50433_1.out`` may be a task of an array, or the output of a node or rank of job 50433.
    if job is None and match[2]:
        job = jobs.find(match[1])
    return job or jobs.add(id_)


def outputs_of(job: Job) -> set[str]:
    """File names of a job's StdOut and StdErr."""
    paths = {str(row.get(key)) for row in job.rows for key in ("std_out", "std_err") if row.get(key)}
    return {leaf_of(_fill_patterns(output, job)) for output in paths}


def _job_by_output(jobs: JobIndex) -> dict[str, Job]:
    """File name of StdOut or StdErr in the records -> the job that has it; names of several jobs are left out."""
    owners: dict[str, set[Job]] = {}
    for job in jobs:
        for name in outputs_of(job):
            owners.setdefault(name, set()).add(job)
    return {name: next(iter(jobs_of_name)) for name, jobs_of_name in owners.items() if len(jobs_of_name) == 1}


def leaf_of(path: str) -> str:
    """The last part of a path."""
    return re.split(r"[/!]", path)[-1]


def _fill_patterns(output: str, job: Job) -> str:
    """An output path with sbatch's patterns filled in: ``%j``, ``%A``, ``%x`` ...; 0 for a task, node or step."""
    array, _, task = job.id.partition("_")
    raw = next((name for name in job.names if name.isdecimal()), job.id)
    values = {
        "j": raw,
        "J": raw,
        "A": array,
        "a": task,
        "x": str(job.first("name") or ""),
        "u": str(job.first("user") or ""),
    }
    return _PATTERN.sub(lambda match: values.get(match[1], "0" if match[1] in "tns" else match[0]), output)


def _job_by_number(jobs: JobIndex, path: str) -> Job | None:
    """The job with records whose id is a number in the path; the rightmost number wins."""
    match = _TORCHRUN_FOLDER.search(path)
    if match and (job := jobs.find(match[1])):
        return job
    for number in reversed(_NUMBER.findall(path)):
        for id_ in (number, *re.split(r"[_+]", number)[:1]):
            # Short numbers are more often ranks, nodes or counters than job ids.
            if len(id_) >= 3 and (job := jobs.find(id_)) is not None:
                return job
    return None


def guess_id(path: str) -> str | None:
    """Guess a job id from a log's path, without records: ``name-48563.out``, ``train.o48563``, ``49005_2cby87dw/``."""
    torchrun_match = _TORCHRUN_FOLDER.search(path)
    if torchrun_match and not _DATE.match(torchrun_match[1]) and len(torchrun_match[1]) >= 3:
        return torchrun_match[1]
    match = _NUMBER_AT_END.search(path)
    number = (match[1] or match[3]) if match else None
    if match is None or number is None or _DATE.match(number):
        return None
    return f"{number}_{match[2]}" if match[2] else number


def _assign_by_folder(jobs: JobIndex, free_logs: list[str]) -> list[str]:
    """Assign each log to the job that has all assigned logs in its folder, or in the nearest folder above with any;
    returns the other logs."""
    owners: dict[str, set[Job]] = {}
    for job in jobs:
        for path in job.logs:
            folder = folder_of(path)
            while folder:
                owners.setdefault(folder, set()).add(job)
                folder = folder_of(folder)
    unassigned = []
    for path in free_logs:
        folder = folder_of(path)
        while folder and folder not in owners:
            folder = folder_of(folder)
        if folder and len(owners[folder]) == 1:
            next(iter(owners[folder])).logs.append(path)
        else:
            unassigned.append(path)
    return unassigned


def folder_of(path: str) -> str:
    """The folder of a path; empty at the top."""
    cut = max(path.rfind("/"), path.rfind("!"))
    return path[:cut] if cut > 0 else ""
