"""The jobs of a controller, from one look to the next: what happened to each, as a line with Slurm's own record of it.

A line is a sentence, and after a tab the record as ``scontrol show job`` or ``sacct`` has it, its parts with a tab
between them: whoever reads the lines of a job has all that Slurm told of it, at every turn of its life.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trackside.catalog.job_states import ALIVE, CLEARING, WAITING, is_over
from trackside.catalog.slurm import values
from trackside.catalog.slurm.fields import job_ids

_VOLATILE = re.compile(r" RunTime=\S+| LastSchedEval=\S+|SecsPreSuspend=\S+")
"""What changes while nothing happens."""
_KEYS = """
    JobId ArrayJobId ArrayTaskId HetJobId HetJobOffset PackJobId PackJobOffset UserId Priority Nice QOS JobState Reason
    Dependency Restarts ExitCode TimeLimit SubmitTime EligibleTime StartTime EndTime SuspendTime Partition NodeList
    NumNodes
"""
_PAIR = re.compile(rf"(?:^| )({'|'.join(_KEYS.split())})=(\S*)")
_WATCHED = ("TimeLimit", "Nice", "QOS", "Partition", "Dependency", "NodeList")
"""What somebody may set while a job waits or runs; NodeList changes as a job gives nodes back."""
_TIMES = {
    "submitted": "SubmitTime",
    "requeued": "SubmitTime",
    "started": "StartTime",
    "ended": "EndTime",
    "suspended": "SuspendTime",
}
LAST_SIGNAL = 64
PRIORITY = 0.5
"""A priority that changes by more than this share of itself was set: ageing and fair share move it little by little."""
WAIT_REASONS = 40
"""Kinds of reasons that are counted apart; the rest counts as ``other``."""


@dataclass(frozen=True, slots=True)
class Happening:
    """A line of a job: ``job`` is its id as users write it, its array's while it waits there; ``number`` is Slurm's.
    ``time``: POSIX seconds."""

    job: str
    number: str
    verb: str
    time: float
    text: str


@dataclass(slots=True)
class _Job:
    """One as it was told last."""

    mark: int
    """Hash of what it was told by."""
    facts: Mapping[str, str]

    @property
    def state(self) -> str:
        return self.facts.get("JobState", "UNKNOWN")


@dataclass(slots=True)
class Queue:
    """What of all jobs is counted."""

    states: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(state, partition) -> jobs"""
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(reason, partition) -> jobs that wait for it"""
    oldest: dict[str, float] = field(default_factory=dict)
    """Partition -> the longest that a job waits that could have started, in seconds"""

    def take(self, facts: Mapping[str, str], now: float) -> None:
        """Count one job, or the tasks of an array that wait."""
        state, partition = facts.get("JobState", "UNKNOWN"), facts.get("Partition", "").partition(",")[0]
        count = _waiting(facts.get("ArrayTaskId", ""))
        self.states[state, partition] += count
        if state != "PENDING":
            return
        reason = facts.get("Reason", "None").partition(",")[0]
        known = (reason, partition) in self.reasons or len(self.reasons) < WAIT_REASONS
        self.reasons[reason if known else "other", partition] += count
        eligible = values.time(facts.get("EligibleTime"))
        if eligible is not None and eligible <= now:
            self.oldest[partition] = max(self.oldest.get(partition, 0.0), now - eligible)


class Jobs:
    """What is known of each job. One thread looks and takes."""

    def __init__(self, most: int = 2000) -> None:
        self._jobs: dict[str, _Job] = {}
        self._most = most
        """Lines of one look: what doesn't fit is told at the next."""

    def look(self, blocks: Iterable[Sequence[str]], now: float, happened: list[Happening]) -> tuple[Queue, list[str]]:
        """Add what happened since the last look to ``happened``, also where the blocks end in an error; give what there
        is, and the numbers of jobs that Slurm knows no more without having told their end."""
        queue = Queue()
        met: set[str] = set()
        for lines in blocks:
            mark = hash(_VOLATILE.sub("", "\t".join(lines)))
            number = lines[0][6:].partition(" ")[0]
            met.add(number)
            known = self._jobs.get(number)
            if known is not None and known.mark == mark:
                queue.take(known.facts, now)
                continue
            facts = _facts(lines)
            queue.take(facts, now)
            # While a job clears its nodes, nothing tells whether it ended or goes back into the queue.
            if facts.get("JobState") in CLEARING or len(happened) >= self._most:
                continue
            verb, sentence = _sentence(known, facts)
            if sentence:
                record = "\t".join(line.strip() for line in lines)
                time = min(values.time(facts.get(_TIMES.get(verb, ""))) or now, now)
                id_ = _id(facts)
                text = f"job {id_} {sentence}\t{record}"
                happened.append(Happening(id_.partition("_[")[0], number, verb, time, text))
            self._jobs[number] = _Job(mark, facts)
        gone = [number for number in self._jobs if number not in met]
        lost = [number for number in gone if not is_over(self._jobs[number].state) and number.isdecimal()]
        for number in gone:
            del self._jobs[number]
        return queue, lost

    def __len__(self) -> int:
        return len(self._jobs)


def _id(facts: Mapping[str, str]) -> str:
    """A job's id as users write it: ``60_3``, ``60_[4-9]``, ``73+0``."""
    return str(job_ids("scontrol", facts.get).get("id", ""))


def _facts(lines: Sequence[str]) -> dict[str, str]:
    """What is told of a job. The name that ends the first line, and what comes last, may hold anything."""
    found: dict[str, str] = {}
    for line in (lines[0].partition(" JobName=")[0], *lines[1:]):
        for name, value in _PAIR.findall(line.strip()):
            found.setdefault(name, sys.intern(value))  # most are the same for many jobs
    return found


def _sentence(known: _Job | None, facts: Mapping[str, str]) -> tuple[str, str]:
    """What happened, by its verb and as a sentence's end; nothing where only words of no weight changed."""
    state, before = facts.get("JobState", "UNKNOWN"), known.state if known is not None else ""
    if state in WAITING and before and before not in WAITING:
        return "requeued", f"requeued{_wait(facts)}"
    if known is not None and before not in WAITING and known.facts.get("Restarts") != facts.get("Restarts"):
        before = ""  # it waited and began once more, unseen
    if is_over(state):
        return ("", "") if before == state else ("ended", f"ended {state}{_exit(facts)}")
    if state == before or (before and before in ALIVE and state in ALIVE and "SUSPENDED" not in (state, before)):
        return _changed(known.facts if known is not None else {}, facts)
    if state in WAITING:
        return "submitted", f"submitted{_wait(facts)}"
    if state == "SUSPENDED":
        return "suspended", "suspended"
    return ("resumed", "resumed") if before == "SUSPENDED" else ("started", f"started on {facts.get('NodeList')}")


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str]:
    changes = [f"{key} {before.get(key)} -> {now.get(key)}" for key in _WATCHED if before.get(key) != now.get(key)]
    old, new = (values.number(each.get("Priority")) for each in (before, now))
    if old is not None and new is not None and abs(new - old) > PRIORITY * max(old, new):
        changes.append(f"Priority {old} -> {new}")
    if changes:
        return "updated", f"updated: {', '.join(changes)}"
    reason, other = now.get("Reason", "None"), before.get("Reason", "None")
    if now.get("JobState") in WAITING and reason not in (other, "None"):
        return "waits", f"waits for {reason}" + (f", before for {other}" if other != "None" else "")
    return "", ""


def _wait(facts: Mapping[str, str]) -> str:
    """What a job waits for; Slurm says None until its scheduler has looked at the job."""
    reason = facts.get("Reason", "None")
    return f", waits for {reason}" if reason != "None" else ""


def _exit(facts: Mapping[str, str]) -> str:
    code, signal = values.exit_status(facts.get("ExitCode"))
    if code is None or signal is None:
        return ""
    # Higher numbers are Slurm's own marks.
    return f", exit code {code}" + (f", signal {signal}" if 0 < signal <= LAST_SIGNAL else "")


def _waiting(tasks: str) -> int:
    """How many tasks of an array ``2-5,8%2`` are; 1 for a job of its own."""
    count = 0
    for part in tasks.partition("%")[0].split(","):
        first, _, last = part.partition(":")[0].partition("-")
        if first.isdecimal():
            step = values.number(part.partition(":")[2]) or 1
            count += (int(last) - int(first)) // step + 1 if last.isdecimal() else 1
    return max(count, 1)
