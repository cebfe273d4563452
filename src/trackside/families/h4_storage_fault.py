"""Storage fault.

Meaning
-------
The disk or the quota was full, the file system became read-only or unavailable, or returned errors. Training
stops at its next checkpoint, log line or read.

What it looks like
------------------
"No space left on device", "Disk quota exceeded", "Read-only file system", "Stale file handle", "Input/output
error", "Transport endpoint is not connected"; a checkpoint writer that fails in the middle of a file; in the kernel
log "nfs: server ... not responding", often with tasks blocked for more than 120 seconds.

Not this family when
--------------------
- Shared memory is too small: that is a setting of the container.
- The error was handled and training continued.
- A file is simply missing.
- A truncated checkpoint fails when it is loaded: that is a failed resume.

Impact
------
The work after the last complete checkpoint; the newest checkpoint may be truncated.

Do next
-------
Full disk or quota: free space (`df -h`, `df -i`, `quota -s`), keep fewer checkpoints. Read-only, stale or I/O errors:
check the file server and the node's mounts; rerun on other nodes if only this node has lost it.

What it cannot decide
---------------------
Whose data filled the file system, or why the server failed.

References
----------
- [Linux: errno(3)](https://man7.org/linux/man-pages/man3/errno.3.html)
"""

from __future__ import annotations

import re

from trackside.evidence import Value, derived
from trackside.facts.logs.ending import ENDED_WELL, Ending
from trackside.facts.logs.exceptions import Exceptions, message_of, named_exception
from trackside.facts.logs.order import first
from trackside.facts.logs.storage_faults import StorageFaults
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event
from trackside.remedies import RESUBMIT_ELSEWHERE

CAUSED_BY_JOB = ("full", "quota")
"""Reasons caused by what the job writes."""

HEADLINES = {
    "full": Sentence("a file system is full"),
    "quota": Sentence("the disk quota is exceeded"),
    "read_only": Sentence("a file system turned read-only"),
    "stale": Sentence("stale file handle: the file server no longer knows the file"),
    "unreachable": Sentence("a file server stopped answering"),
}
"""Reason -> the answer in one clause; of others :data:`STORAGE_FAILED`."""
SERVER_HEADLINE = Sentence("file server {server} stopped answering")
SERVER_PATTERN = re.compile(r"\bserver ([A-Za-z0-9][\w.-]{0,62}),? (?:is )?not responding")
PATH_HEADLINES = {
    "full": Sentence("a file system is full: no space for {path}"),
    "quota": Sentence("the disk quota is exceeded: no space for {path}"),
}
"""Headlines if the exception names the path."""
PATH_PATTERN = re.compile(r"['\"](/[A-Za-z0-9_./-]{1,150})['\"]")
INFERRED_HEADLINES = {
    "full": Sentence("a write failed, possibly for lack of space; the log names no reason"),
    "io_error": Sentence("a file operation failed; the log names no reason"),
}
"""Headlines if the log does not name the reason."""
STORAGE_FAILED = Sentence("a file system failed with an I/O error")
OPERATION_FAILED = Sentence("a file operation failed: {type}: {message}")
OPERATION_FAILED_LINE = Sentence("a file operation failed: {line}")
FAILED_AFTER_IT = Sentence("after that, the job raised {type}: {message}")
SERVER_SILENT = Sentence("a file server did not answer: {line}")
REPORTED_AS = Sentence("reported as: {line}")
NO_SPACE = Sentence(
    "there was no space: a full disk, a quota or a file size limit; the newest checkpoint may be truncated"
)
MAYBE_NO_SPACE = Sentence(
    "a write that fails without a reason often means that the disk or the quota is full, or that a file size limit was "
    "reached; a checkpoint that was being written is incomplete"
)
FILE_SYSTEM_FAILED = Sentence("the file system failed while the job was running; the code is not at fault")
SERVER_NOT_REACHED = Sentence(
    "{node} could not reach file server {server} while the job was running; the code is not at fault"
)
FILE_SYSTEM_NOT_REACHED = Sentence(
    "a file system could not be reached while the job was running; the code is not at fault"
)
DATA_OWNER_UNKNOWN = Sentence("whose data filled the disk")
SPACE_UNKNOWN = Sentence("whether the disk or the quota was full: no line says so")
FAILURE_UNEXPLAINED = Sentence("why the file system failed")
PLACE_UNKNOWN = Sentence("whether the server, the network or only the mount on {node} failed")
FREE_SPACE = Sentence(
    "free space or raise the limit, keep fewer checkpoints, and resume from the last complete one, if any"
)
CHECK_SPACE = Sentence(
    "check on the node whether the disk or the quota of the folder that was written to is full; if so, free space or "
    "raise the limit, keep fewer checkpoints, and resume from the last complete one, if any"
)
FREE_SPACE_IN = Sentence("free space in {folder} or use another folder (for /tmp set TMPDIR), and resume or resubmit")
SHOW_SPACE_IN = (
    ShellCommand("ssh {node} 'df -h {folder}; df -i {folder}; quota -s'"),
    ShellCommand("df -h {folder}; df -i {folder}; quota -s"),
)
SHOW_SPACE = (ShellCommand("ssh {node} 'df -h; df -i; quota -s'"), ShellCommand("df -h; df -i; quota -s"))
CHECK_SERVER = Sentence("check from {node} whether file server {server} answers at each of its mounts")
CHECK_SERVER_ANYWHERE = Sentence("check from the node whether file server {server} answers at each of its mounts")
SHOW_SERVER = (
    ShellCommand(
        "ssh {node} 'findmnt -nt nfs,nfs4 -o TARGET,SOURCE | grep {server} | "
        'while read m s; do timeout -s KILL 10 stat -f $m || echo "$m does not answer"; done\''
    ),
)
CHECK_MOUNT = Sentence("check the file server, and its mounts on the node")
SHOW_MOUNTS = (
    ShellCommand("ssh {node} 'sudo dmesg -T | tail -n 30; findmnt -t nfs,nfs4,lustre,gpfs,beegfs,ceph'"),
    ShellCommand("sudo dmesg -T | tail -n 30; findmnt -t nfs,nfs4,lustre,gpfs,beegfs,ceph"),
)
RERUN = Sentence(
    "if other nodes still reach the file system, rerun on them now; otherwise rerun with the same options once it works"
)
RERUN_WITHOUT = Sentence(
    "if other nodes still reach {server}, rerun on them now; otherwise rerun with the same options once it answers"
)
MIN_REPEATED_CHARS = 20
"""A shorter message may stand in a line about something else."""
ERROR_HANDLED = Sentence("a file operation failed, and the run continued: {line}")
NO_STORAGE_FAILURE = Sentence("no failure of a file system in the log")


def judge(exceptions: Exceptions, faults: StorageFaults, ending: Ending) -> Finding:
    """An unhandled exception about storage, else a line about a file-system error at the run's end."""
    if ending.completed is not None:
        handled_line = first(faults.lines)
        handled = [ERROR_HANDLED(line=faults.line(handled_line))] if handled_line is not None else []
        return absent(ENDED_WELL(state=ending.completed), *handled)
    cause, last, ended = faults.cause, faults.last, ending.abnormal is not None
    if cause is None:
        return absent(NO_STORAGE_FAILURE(count=faults.frame.reduce("count")))
    has_exception = bool(faults.unhandled)
    shows = _raised_claims(exceptions, faults, cause) if has_exception else []
    if last and not (has_exception and (last[0].at == cause.at or _repeats(last[0], cause))):
        server_silent = last[0].plane == "kernel" and last[0].get("reason") == "unreachable"
        shows.append((SERVER_SILENT if server_silent else REPORTED_AS)(line=faults.line(last[0])))
    kernel = any(row.plane == "kernel" for row in last)
    is_jobs_own = faults.reason in CAUSED_BY_JOB
    server = next((name for row in last if (name := _server(faults, row)) is not None), None)
    path = _path(exceptions, cause) if is_jobs_own and has_exception else None
    guessed = is_jobs_own and faults.inferred
    return present(
        Certainty.ESTABLISHED if (has_exception and not guessed) or (kernel and ended) else Certainty.SUPPORTED,
        ("job" if faults.reason == "quota" else "unknown") if is_jobs_own else "infrastructure",
        shows,
        headline=_headline(faults, path) if server is None else SERVER_HEADLINE(server=server),
        implies=[_meaning(faults, guessed, server, cause)],
        cannot_decide=[_unknown(faults, guessed, server, cause)],
        actions=[action(CHECK_SPACE, *SHOW_SPACE) if guessed and path is None else _free_space(path)]
        if is_jobs_own
        else [
            *(
                [action(CHECK_MOUNT, *SHOW_MOUNTS)]
                if server is None
                else [action(CHECK_SERVER if cause.node else CHECK_SERVER_ANYWHERE, *SHOW_SERVER, server=server)]
            ),
            action(RERUN, *RESUBMIT_ELSEWHERE)
            if server is None
            else action(RERUN_WITHOUT, *RESUBMIT_ELSEWHERE, server=server),
        ],
        since=cause.time,
        at=cause.at,
        variant="write-failed" if guessed else faults.reason.replace("_", "-"),
        nodes=(cause.node,) if cause.node else (),
        ranks=(cause.rank,) if cause.rank is not None and has_exception else (),
        exception=named_exception(cause) if has_exception else None,
        latent=not (has_exception or ended or faults.ends_log),  # a line alone, without a bad end, is a warning
    )


def _meaning(faults: StorageFaults, guessed: bool, server: Value | None, cause: Event) -> Claim:
    """What the fault means for the job. ``guessed``: whether the lack of space is."""
    if faults.reason in CAUSED_BY_JOB:
        return MAYBE_NO_SPACE() if guessed else NO_SPACE()
    if server is not None:
        return SERVER_NOT_REACHED(server=server, node=derived(cause.node or "a node of the run", server))
    return (FILE_SYSTEM_NOT_REACHED if faults.reason == "unreachable" else FILE_SYSTEM_FAILED)()


def _unknown(faults: StorageFaults, guessed: bool, server: Value | None, cause: Event) -> Claim:
    """What the inputs do not show."""
    if faults.reason in CAUSED_BY_JOB:
        return SPACE_UNKNOWN() if guessed else DATA_OWNER_UNKNOWN()
    if server is not None:
        return PLACE_UNKNOWN(node=derived(cause.node or "that node", server))
    return FAILURE_UNEXPLAINED()


def _raised_claims(exceptions: Exceptions, faults: StorageFaults, cause: Event) -> list[Claim]:
    """The exception; if it came after another one, that one first: it is the failed operation."""
    frame, values = exceptions.frame, exceptions.values(cause)
    if cause.get("root_message") in (None, cause.get("message")):
        return [OPERATION_FAILED(**values)]
    root = str(cause.get("root_message")).partition("\n")[0].strip()
    if not root:  # the first one has no message: its type alone says less than what came of it
        return [OPERATION_FAILED(**values)]
    if (line := next((row for row in faults.last if root in row.text), None)) is not None:
        return [OPERATION_FAILED_LINE(line=faults.line(line)), FAILED_AFTER_IT(**values)]
    first_one = {"type": frame.value(cause, "root_type"), "message": message_of(frame, cause, "root_message")}
    return [OPERATION_FAILED(**first_one), FAILED_AFTER_IT(**values)]


def _repeats(row: Event, cause: Event) -> bool:
    """Whether a line only repeats the message of an exception, or of the one that it came after."""
    messages = (str(cause.get(field) or "").strip().partition("\n")[0] for field in ("message", "root_message"))
    return any(len(message) >= MIN_REPEATED_CHARS and message in row.text for message in messages)


def _server(faults: StorageFaults, row: Event) -> Value | None:
    """The file server that a line of the kernel names."""
    match = SERVER_PATTERN.search(row.text) if faults.reason == "unreachable" else None
    return None if match is None else derived(match[1], faults.line(row))


def _path(exceptions: Exceptions, cause: Event) -> Value | None:
    """The path that an exception's message names."""
    match = PATH_PATTERN.search(str(cause.get("message") or ""))
    return None if match is None else derived(match[1], exceptions.frame.value(cause, "message"))


def _free_space(path: Value | None) -> Action:
    if path is None:
        return action(FREE_SPACE, *SHOW_SPACE)
    return action(FREE_SPACE_IN, *SHOW_SPACE_IN, folder=derived(str(path.value).rpartition("/")[0] or "/", path))


def _headline(faults: StorageFaults, path: Value | None) -> Claim:
    """The reason, as certain as the log names it, and the path."""
    if faults.inferred and faults.reason in INFERRED_HEADLINES:
        return INFERRED_HEADLINES[faults.reason]()
    if path is not None:
        return PATH_HEADLINES[faults.reason](path=path)
    return HEADLINES.get(faults.reason, STORAGE_FAILED)()


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
