"""Storage fault: a file system refused to read or write.

Meaning
-------
The disk or the quota was full, the file system became read-only or unavailable, or returned errors. Training
stops at its next checkpoint, log line or read.

What it looks like
------------------
"No space left on device", "Disk quota exceeded", "Read-only file system", "Stale file handle", "Input/output
error", "Transport endpoint is not connected"; a checkpoint writer that fails in the middle of a file.

Not this when
-------------
Shared memory is too small: that is the container's setting. The error was handled and training continued. A
file is simply missing. A truncated checkpoint fails at its next load: that is a failed resume.

Impact
------
The work after the last complete checkpoint; the newest checkpoint may be truncated.

Do next
-------
Full disk or quota: free space, keep fewer checkpoints. Read-only, stale or I/O errors: report to the operators;
rerun on another node or mount.

What it cannot tell
-------------------
Whose data filled the file system.

References
----------
- [Linux: errno(3)](https://man7.org/linux/man-pages/man3/errno.3.html)
"""

from __future__ import annotations

from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions, named_exception
from trackside.facts.logs.order import first
from trackside.facts.logs.storage_faults import StorageFaults
from trackside.family import Family
from trackside.finding import Certainty, Claim, Command, Finding, Sentence, absent, action, present
from trackside.remedies import RESUBMIT_ELSEWHERE

JOBS_OWN = ("full", "quota")
"""Reasons caused by what the job writes."""

HEADLINES = {
    "full": Sentence("a disk is full: a write failed"),
    "quota": Sentence("the disk quota is exceeded: a write failed"),
    "read_only": Sentence("a file system turned read-only"),
    "stale": Sentence("stale file handle: the file server no longer knows the file"),
    "unreachable": Sentence("the file server stopped answering"),
}
"""Reason -> the answer in one clause; of others :data:`STORAGE_FAILED`."""
INFERRED = {
    "full": Sentence("a write failed, most likely for lack of space"),
    "io_error": Sentence("a file operation failed; the log names no reason"),
}
"""The same if the log does not name the reason."""
STORAGE_FAILED = Sentence("a file system failed with an I/O error")
RAISED = Sentence("a file operation failed: {type}: {message}")
AWAY = Sentence("a file server did not answer: {line}")
REFUSED = Sentence("reported as: {line}")
OWN_SPACE = Sentence(
    "a write failed for lack of space: a full disk, a quota or a file size limit; the newest checkpoint "
    "may be truncated"
)
BROKEN = Sentence("the file system failed under the job; the code is not at fault")
WHOSE = Sentence("whose data filled the disk")
WHY = Sentence("why the file system failed")
MAKE_ROOM = Sentence("free space or raise the limit, keep fewer checkpoints, and resume from the last complete one")
FREE_SPACE = (Command("{node_shell} 'df -h; df -i; quota -s'"), Command("df -h; df -i; quota -s"))
CHECK_MOUNT = Sentence("check the file server, and its mounts on that node")
SHOW_MOUNTS = Command("{node_shell} 'dmesg -T | tail -n 30; findmnt -t nfs,nfs4,lustre,gpfs,beegfs,ceph'")
ESCALATE = Sentence("report it to the operators, and rerun on another node or mount")
COMPLETED = Sentence("the run ended by itself: {how}")
HANDLED = Sentence("a file operation failed, and the run continued: {line}")
NONE = Sentence("the log has {count:failures} of a file system")


def judge(exceptions: Exceptions, faults: StorageFaults, ending: Ending) -> Finding:
    """An unhandled exception about storage, else a line about a file-system error at the run's end."""
    if ending.completed is not None:
        survived = first(faults.lines)
        handled = [HANDLED(line=faults.line(survived))] if survived is not None else []
        return absent(COMPLETED(how=ending.completed), *handled)
    cause, last, ended = faults.cause, faults.last, ending.abnormal is not None
    if cause is None:
        return absent(NONE(count=faults.frame.reduce("count")))
    raised = bool(faults.raised)
    shows: list[Claim] = [RAISED(**exceptions.values(cause))] if raised else []
    if last and not (raised and last[0].at == cause.at):
        away = last[0].plane == "kernel" and last[0].get("reason") == "unreachable"
        shows.append((AWAY if away else REFUSED)(line=faults.line(last[0])))
    kernel = any(row.plane == "kernel" for row in last)
    own = faults.reason in JOBS_OWN
    return present(
        Certainty.ESTABLISHED if raised or (kernel and ended) else Certainty.SUPPORTED,
        "job" if own else "infrastructure",
        shows,
        headline=_headline(faults)(),
        implies=[OWN_SPACE() if own else BROKEN()],
        cannot_decide=[WHOSE() if own else WHY()],
        actions=[action(MAKE_ROOM, *FREE_SPACE)]
        if own
        else [action(CHECK_MOUNT, SHOW_MOUNTS), action(ESCALATE, *RESUBMIT_ELSEWHERE)],
        since=cause.time,
        at=cause.at,
        variant=faults.reason.replace("_", "-"),
        nodes=(cause.node,) if cause.node else (),
        ranks=(cause.rank,) if cause.rank is not None and raised else (),
        exception=named_exception(cause) if raised else None,
        latent=not raised and not ended,  # a line alone, without a bad end, is a warning
    )


def _headline(faults: StorageFaults) -> Sentence:
    """The reason, as certain as the log names it."""
    if faults.inferred and faults.reason in INFERRED:
        return INFERRED[faults.reason]
    return HEADLINES.get(faults.reason, STORAGE_FAILED)


FAMILY = Family(
    code="H4",
    id="storage-fault",
    title="Storage fault",
    example=("storage-gone", "busy-wait"),
    judge=judge,
    explains=("H2", "A1", "A2", "C2", "F3", "E2"),
    rivals=("E2",),
    collect=("df and quota of the file system at the time", "dmesg -T of the node: file system and NFS messages"),
)
