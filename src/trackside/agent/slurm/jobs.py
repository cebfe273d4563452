"""Changes of the controller's jobs between readings, as lines with Slurm's record of the job.

A line is a sentence, then a tab and the record as ``scontrol show job`` or ``sacct`` prints it, with tabs between its
parts. So the lines of a job contain all that Slurm reported about it, at every change of its state.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trackside.catalog.job_states import ACTIVE_STATES, ENDING_STATES, WAITING_STATES, is_over
from trackside.catalog.slurm import values
from trackside.catalog.slurm.fields import job_ids

_VOLATILE = re.compile(r" RunTime=\S+| LastSchedEval=\S+|SecsPreSuspend=\S+")
"""Fields that change without an event."""
_KEYS = """
    JobId ArrayJobId ArrayTaskId HetJobId HetJobOffset PackJobId PackJobOffset UserId Priority Nice QOS JobState Reason
    Dependency Restarts ExitCode TimeLimit SubmitTime EligibleTime StartTime EndTime SuspendTime Partition NodeList
    NumNodes
"""
_PAIR = re.compile(rf"(?:^| )({'|'.join(_KEYS.split())})=(\S*)")
_REPORTED_FIELDS = ("TimeLimit", "Nice", "QOS", "Partition", "Dependency", "NodeList")
"""Fields that a user or admin may change while a job waits or runs; NodeList changes as a job releases nodes."""
_TIMES = {
    "submitted": "SubmitTime",
    "requeued": "SubmitTime",
    "started": "StartTime",
    "ended": "EndTime",
    "suspended": "SuspendTime",
}
MAX_SIGNAL = 64
MIN_PRIORITY_CHANGE_RATIO = 0.5
"""Relative change from which a priority was set by someone: aging and fair share change it little by little."""
MAX_WAIT_REASONS = 40
"""Number of reasons that are counted separately; further ones count as ``other``."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A line about a job. ``job``: id as users write it, the array's id while the task waits in it. ``number``: numeric
    id. ``time``: POSIX seconds."""

    job: str
    number: str
    verb: str
    time: float
    text: str


@dataclass(slots=True)
class _Job:
    """A job as last reported by Slurm."""

    record_hash: int
    """Hash of its record."""
    fields: Mapping[str, str]

    @property
    def state(self) -> str:
        return self.fields.get("JobState", "UNKNOWN")


@dataclass(slots=True)
class Queue:
    """Counts of all jobs."""

    states: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(state, partition) -> jobs"""
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(reason, partition) -> jobs that wait for it"""
    oldest: dict[str, float] = field(default_factory=dict)
    """Partition -> longest wait of an eligible job, in seconds"""

    def count(self, fields: Mapping[str, str], now: float) -> None:
        """Count one job, or the waiting tasks of an array."""
        state, partition = fields.get("JobState", "UNKNOWN"), fields.get("Partition", "").partition(",")[0]
        jobs = _task_count(fields.get("ArrayTaskId", ""))
        self.states[state, partition] += jobs
        if state != "PENDING":
            return
        reason = fields.get("Reason", "None").partition(",")[0]
        is_separate = (reason, partition) in self.reasons or len(self.reasons) < MAX_WAIT_REASONS
        self.reasons[reason if is_separate else "other", partition] += jobs
        eligible = values.time(fields.get("EligibleTime"))
        if eligible is not None and eligible <= now:
            self.oldest[partition] = max(self.oldest.get(partition, 0.0), now - eligible)


class JobChangeTracker:
    """The jobs as of the last reading, from which their changes are found; used by one thread."""

    def __init__(self, max_lines: int = 2000) -> None:
        self._jobs: dict[str, _Job] = {}
        self._max_lines = max_lines
        """Maximum lines per reading; the rest is reported in the next."""

    def update(self, blocks: Iterable[Sequence[str]], now: float, events: list[JobEvent]) -> tuple[Queue, list[str]]:
        """Add the changes since the last reading to ``events``, even if ``blocks`` ends with an error. Returns the
        queue, and the numbers of jobs that have vanished without a reported end."""
        queue = Queue()
        numbers: set[str] = set()
        for lines in blocks:
            record_hash = hash(_VOLATILE.sub("", "\t".join(lines)))
            number = lines[0][6:].partition(" ")[0]
            numbers.add(number)
            previous = self._jobs.get(number)
            if previous is not None and previous.record_hash == record_hash:
                queue.count(previous.fields, now)
                continue
            fields = _fields(lines)
            queue.count(fields, now)
            # While a job is completing, it is unclear whether it ended or is requeued.
            if fields.get("JobState") in ENDING_STATES or len(events) >= self._max_lines:
                continue
            verb, sentence = _sentence(previous, fields)
            if sentence:
                record = "\t".join(line.strip() for line in lines)
                time = min(values.time(fields.get(_TIMES.get(verb, ""))) or now, now)
                id_ = _id(fields)
                text = f"job {id_} {sentence}\t{record}"
                events.append(JobEvent(id_.partition("_[")[0], number, verb, time, text))
            self._jobs[number] = _Job(record_hash, fields)
        vanished = [number for number in self._jobs if number not in numbers]
        without_end = [number for number in vanished if not is_over(self._jobs[number].state) and number.isdecimal()]
        for number in vanished:
            del self._jobs[number]
        return queue, without_end

    def __len__(self) -> int:
        return len(self._jobs)


def _id(fields: Mapping[str, str]) -> str:
    """A job's id as users write it: ``60_3``, ``60_[4-9]``, ``73+0``."""
    return str(job_ids("scontrol", fields.get).get("id", ""))


def _fields(lines: Sequence[str]) -> dict[str, str]:
    """The fields of a job's record. The job name, which ends the first line, may contain anything and is left out."""
    fields: dict[str, str] = {}
    for line in (lines[0].partition(" JobName=")[0], *lines[1:]):
        for name, value in _PAIR.findall(line.strip()):
            fields.setdefault(name, sys.intern(value))  # most values are the same for many jobs
    return fields


def _sentence(previous: _Job | None, fields: Mapping[str, str]) -> tuple[str, str]:
    """(verb, end of the sentence) of a change; empty strings if nothing relevant changed."""
    state, last_state = fields.get("JobState", "UNKNOWN"), previous.state if previous is not None else ""
    if state in WAITING_STATES and last_state and last_state not in WAITING_STATES:
        return "requeued", f"requeued{_wait_text(fields)}"
    is_restarted = previous is not None and previous.fields.get("Restarts") != fields.get("Restarts")
    if is_restarted and last_state not in WAITING_STATES:
        last_state = ""  # it was requeued and started again between two readings
    if is_over(state):
        return ("", "") if last_state == state else ("ended", f"ended {state}{_exit_text(fields)}")
    is_active = last_state in ACTIVE_STATES and state in ACTIVE_STATES and "SUSPENDED" not in (state, last_state)
    if state == last_state or (last_state and is_active):
        return _update(previous.fields if previous is not None else {}, fields)
    if state in WAITING_STATES:
        return "submitted", f"submitted{_wait_text(fields)}"
    if state == "SUSPENDED":
        return "suspended", "suspended"
    return ("resumed", "resumed") if last_state == "SUSPENDED" else ("started", f"started on {fields.get('NodeList')}")


def _update(previous: Mapping[str, str], current: Mapping[str, str]) -> tuple[str, str]:
    changes = [
        f"{key} {previous.get(key)} -> {current.get(key)}"
        for key in _REPORTED_FIELDS
        if previous.get(key) != current.get(key)
    ]
    old, new = (values.number(record.get("Priority")) for record in (previous, current))
    if old is not None and new is not None and abs(new - old) > MIN_PRIORITY_CHANGE_RATIO * max(old, new):
        changes.append(f"Priority {old} -> {new}")
    if changes:
        return "updated", f"updated: {', '.join(changes)}"
    reason, last_reason = current.get("Reason", "None"), previous.get("Reason", "None")
    if current.get("JobState") in WAITING_STATES and reason not in (last_reason, "None"):
        return "waits", f"waits for {reason}" + (f", before for {last_reason}" if last_reason != "None" else "")
    return "", ""


def _wait_text(fields: Mapping[str, str]) -> str:
    """The reason why a job waits; Slurm reports None until its scheduler has considered the job."""
    reason = fields.get("Reason", "None")
    return f", waits for {reason}" if reason != "None" else ""


def _exit_text(fields: Mapping[str, str]) -> str:
    code, signal = values.exit_status(fields.get("ExitCode"))
    if code is None or signal is None:
        return ""
    # Higher numbers are Slurm's own flags.
    return f", exit code {code}" + (f", signal {signal}" if 0 < signal <= MAX_SIGNAL else "")


def _task_count(tasks: str) -> int:
    """Number of tasks in an array expression such as ``2-5,8%2``; 1 for a job without tasks."""
    count = 0
    for part in tasks.partition("%")[0].split(","):
        first, _, last = part.partition(":")[0].partition("-")
        if first.isdecimal():
            step = values.number(part.partition(":")[2]) or 1
            count += (int(last) - int(first)) // step + 1 if last.isdecimal() else 1
    return max(count, 1)
