"""Storage fault: a file system refused to read or write.

Meaning
-------
The disk or the quota was full, the file system went read-only or away, or returned errors. Training stops at
its next checkpoint, log line or read.

What it looks like
------------------
"No space left on device", "Disk quota exceeded", "Read-only file system", "Stale file handle", "Input/output
error", "Transport endpoint is not connected"; a checkpoint writer that fails in the middle of a file.

Not this when
-------------
Shared memory is too small: that is the container's setting. The error was caught and training went on. A file
is simply missing. A cut-off checkpoint fails at its next load: that is a failed resume.

Impact
------
What came after the last complete checkpoint; the newest checkpoint may be cut off.

Do next
-------
Full or quota: make room, keep fewer checkpoints. Read-only, stale or I/O errors: to the operators; rerun on
another node or mount.

What it cannot tell
-------------------
Whose data filled the file system.

References
----------
errno(3): ENOSPC, EDQUOT, EROFS, ESTALE, EIO, ENOTCONN.
"""

from __future__ import annotations

import re

from trackside.evidence import Evidence
from trackside.facts.logs.ending import ENDING, abnormal_end, completed
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.logs.order import first, followed_by
from trackside.family import Family
from trackside.finding import Certainty, Claim, Culprit, Finding, absent, action, claim, found
from trackside.model import Event, Run
from trackside.query import events

REASONS = (
    ("full", r"No space left|ENOSPC|Errno 28|disk (?:is )?full|not enough (?:free )?(?:disk )?space"),
    ("quota", r"quota|EDQUOT|Errno 122"),
    ("read_only", r"Read-only file system|EROFS|Errno 30"),
    ("stale", r"Stale (?:NFS )?file handle|ESTALE|Errno 116"),
    ("io_error", r"Input/output error|Errno 5\b|\bEIO\b|Remote I/O|Errno 121"),
    ("unreachable", r"Transport endpoint|Errno 107|Host is down|Errno 112|not responding|Communication error on send"),
    ("full", r"inline_container|PytorchStreamWriter|unexpected pos|failed writing|write failed|short write"),
)
"""How an exception's text names the reason; a checkpoint writer that breaks off mostly met a full disk."""
SHARED_MEMORY = re.compile(r"/dev/shm|shared memory|\bshm\b", re.IGNORECASE)
JOBS_OWN = ("full", "quota")
COLLECT = ("df and quota of the file system at the time", "dmesg -T of the node: file system and NFS messages")


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """An unhandled exception about storage, else a line of a file system's refusal at the run's end."""
    exceptions, faults, points = evidence["exceptions"], evidence["faults"], evidence["progress"].events
    raised = [
        row
        for row in unhandled(exceptions.events, points, crashed=abnormal_end(evidence) is not None)
        if _about_storage(row)
    ]
    lines = [row for row in faults.events if not SHARED_MEMORY.search(f"{row.get('path')} {row.text}")]
    last = [row for row in lines if followed_by(row, points) is None]
    good = completed(evidence)
    if good is not None:
        handled = first(lines)
        return absent(
            claim("completed", how=good),
            *([claim("handled", line=faults.value(handled, "text"))] if handled is not None else []),
        )
    row = raised[0] if raised else first(last)
    if row is None:
        return absent(claim("none", count=faults.reduce("count")))
    reason = _reason(row) or next((str(each.get("reason")) for each in last if each.get("reason")), "io_error")
    shows: list[Claim] = []
    if raised:
        shows.append(claim("raised", type=exceptions.value(row, "type"), message=exceptions.value(row, "message")))
    if last and not (raised and last[0].at == row.at):
        away = last[0].plane == "kernel" and last[0].get("reason") == "unreachable"
        shows.append(claim("away" if away else "refused", line=faults.value(last[0], "text")))
    culprit: Culprit = "job" if reason in JOBS_OWN else "infrastructure"
    kernel = any(each.plane == "kernel" for each in last)
    ended = abnormal_end(evidence) is not None
    certainty = Certainty.ESTABLISHED if raised or (kernel and ended) else Certainty.SUPPORTED
    return found(
        certainty,
        culprit,
        shows,
        implies=[claim("own_space" if culprit == "job" else "broken")],
        cannot_decide=[claim("whose")] if culprit == "job" else [claim("why")],
        actions=[action("make_room" if culprit == "job" else "escalate")],
        since=row.time,
        at=row.at,
        variant=reason.replace("_", "-"),
        nodes=(row.node,) if row.node else (),
        ranks=(row.rank,) if row.rank is not None and raised else (),
        exception=(str(row.get("type")), str(row.get("message") or "")[:500]) if raised else None,
        # A line alone, with nothing that shows the run to have ended, is a warning.
        latent=not raised and not ended,
    )


def _about_storage(row: Event) -> bool:
    said = f"{row.get('type')}: {row.get('message')}"
    if SHARED_MEMORY.search(said):
        return False
    if row.get("about") == "storage":
        return True
    return row.get("about") == "checkpoint" and re.search(REASONS[-1][1], said) is not None


def _reason(row: Event) -> str | None:
    if row.get("reason"):
        return str(row.get("reason"))
    said = f"{row.get('type')}: {row.get('message')} {row.get('root_message')}"
    return next((reason for reason, pattern in REASONS if re.search(pattern, said, re.IGNORECASE)), None)


FAMILY = Family(
    code="H4",
    id="storage-fault",
    title="Storage fault: a file system refused",
    pictured=("storage-gone", "busy-wait"),
    asks={
        **ENDING,
        "faults": events("storage_fault"),
        "exceptions": events("exception"),
        "progress": events("progress"),
    },
    needs=("exceptions",),
    says={
        "raised": "a file system refused: {type}: {message}",
        "away": "a file server did not answer: {line}",
        "refused": "it was reported as: {line}",
        "own_space": "a write broke off for want of room: a full disk, a quota or a limit on file size; "
        "the newest checkpoint may be cut off",
        "broken": "the file system failed under the job; the code is not at fault",
        "whose": "whose data filled it",
        "why": "why the file system failed",
        "make_room": "make room or raise the limit, keep fewer checkpoints, and resume from the last complete one",
        "escalate": "report it to the operators and rerun on another node or mount",
        "completed": "the run came to its own end: {how}",
        "handled": "a refusal was met and survived: {line}",
        "none": "the log tells of {count:refusals} by a file system",
    },
    judge=judge,
    explains=("H2", "A1", "A2", "C2", "F3", "E2"),
    rivals=("E2",),
    collect=COLLECT,
)
