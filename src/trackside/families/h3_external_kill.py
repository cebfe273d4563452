"""Stopped by an unknown sender.

Meaning
-------
The processes got SIGTERM or SIGHUP, or a time limiter or a watchdog fired, and neither the scheduler, nor the
launcher's teardown, nor the kernel's OOM killer explains it: a `timeout` command, a node's watchdog, another
script, an operator's kill.

What it looks like
------------------
"Received SIGTERM" or exit code 143 as the first sign of the end, with no notice of the scheduler, no failed
rank before it and no exception; exit code 124 of `timeout`.

Not this family when
--------------------
- The scheduler gives a reason: time limit, preemption, requeue, node failure, cancellation.
- A rank had failed before, so that the launcher ended the others.
- The signal is SIGKILL without a message: host memory explains that better.
- The job had logged that it was done.

Impact
------
The work after the last checkpoint.

Do next
-------
SIGHUP means that the terminal or the SSH session closed: start the run in tmux, with setsid or as a batch job
(torchrun handles SIGHUP itself, so nohup alone does not protect it). SIGTERM: look for a `timeout` in the job
script, and for watchdogs and cleanup scripts in the node's system log at that time (`journalctl --since TIME`, as
root).

What it cannot decide
---------------------
Who sent the signal.

References
----------
- [Linux: signal(7)](https://man7.org/linux/man-pages/man7/signal.7.html)
- [GNU coreutils: timeout](https://www.gnu.org/software/coreutils/manual/html_node/timeout-invocation.html)
"""

from __future__ import annotations

from trackside.catalog.signals import signal_name
from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe
from trackside.facts.logs.ending import CUT_SHORT, ENDED_WELL, RECORDED, Ending, exit_signal
from trackside.facts.logs.order import follows
from trackside.facts.logs.stop_request import SIGHUP, SIGTERM, STOP_SIGNALS, StopRequest
from trackside.facts.logs.system_log import AROUND_S, SHOW_SYSTEM_LOG, system_log_values
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, Run

STOPPED = Sentence("stopped by a signal whose sender is unknown")
STOPPED_BY = Sentence("stopped by {signal}; its sender is unknown")
STOPPED_FROM = Sentence("stopped by {signal} from process {sender}; what that was is unknown")
STOPPED_FROM_USER = Sentence("stopped by {signal} from process {sender} of user id {user}")
HUNG_UP = Sentence("stopped by {signal}: the terminal or SSH session probably closed")
HANGUP_FOLLOWED = Sentence("SIGHUP followed: {line}")
FIRST_REPORT = Sentence("first report of the stop: {line}")
RECEIVED = Sentence("{signal} was received: {line}")
ENDED_AT = Sentence("the run ended at {time}; when the signal came is not known")
RECORDED_WITHOUT_REASON = Sentence("the scheduler recorded {state} and gives no reason")
UNEXPLAINED = Sentence("neither the scheduler nor a failed rank explains the signal")
UNEXPLAINED_BY_LOG = Sentence("no line of the log explains the signal")
SESSION_CLOSED = Sentence("a closed terminal or session sends SIGHUP to what was started in it")
LOGIN_CLOSED = Sentence("SIGHUP after it points to a login session that was closed, or to a machine that shut down")
SENDER_UNKNOWN = Sentence("who sent the signal")
SENDER_OR_SCHEDULER = Sentence("who sent the signal; it may be the scheduler, whose record of the job was not given")
PROCESS_UNKNOWN = Sentence("what the process was that sent the signal")
FIND_SENDER = Sentence(
    "find the sender: a timeout command in the job script, or a person or a service on the node; the node's system log "
    "shows who was logged in and which services stopped (as root, or ask an administrator)"
)
FIND_PROCESS = Sentence(
    "find out what process {sender} was, on the node of the run: a person's command, a script or a service; the node's "
    "system log shows it (as root, or ask an administrator)"
)
_USER = "getent passwd {user}; "
_LINES = "journalctl _PID={sender}"
_AT = " --since @{since} --until @{until}"
SHOW_PROCESS = tuple(
    ShellCommand(f"ssh {{node}} '{command}'" if on_node else command)
    for on_node in (True, False)
    for command in (_USER + _LINES + _AT, _USER + _LINES, _LINES + _AT, _LINES)
)
"""The account of the sender, and its lines in the system log; times in seconds since 1970 need no time zone."""
READ_CONTROLLER_LOG = Sentence("see what the controller's log says about the job, on the controller's host")
SHOW_CONTROLLER_LOG = ShellCommand("grep -w {job} \"$(scontrol show config | awk '/SlurmctldLogFile/ {{print $3}}')\"")
SENDER_FIELDS = ("sender_pid", "sender_uid")
DETACH = Sentence(
    "start it detached from the terminal: in tmux, with setsid, or as a batch job; torchrun handles SIGHUP itself, so "
    "that nohup alone does not protect it"
)
SCHEDULER_EXPLAINS = Sentence("the scheduler explains the end: {line}")
NO_SIGNAL = Sentence("no process reports a received signal")
NO_STOP_SIGNAL = Sentence("no received signal ended the run")
FAILURE_EXPLAINS = Sentence("another failure explains the signal: {line}")


def judge(stops: StopRequest, ending: Ending, trajectory: Maybe[Trajectory], run: Run) -> Finding | Missing:
    """SIGTERM or SIGHUP as the first sign of the end, without another explanation. Schedulers send no SIGHUP."""
    if (contradiction := _contradiction(ending)) is not None:
        return absent(contradiction)
    sign, line, state = stops.sign, stops.line, ending.state
    if sign is None or line is None:
        return absent((NO_STOP_SIGNAL if stops.frame else NO_SIGNAL)(count=stops.frame.reduce("count")))
    if stops.accounted is not None:
        return absent(FAILURE_EXPLAINS(line=stops.accounted))
    if state is None and not ending.launchers and not ending.exits and not stops.frame:
        return Missing("no scheduler record of the job was given")
    number = exit_signal(sign)
    signal = number or SIGTERM
    named = None if number is None else derived(signal_name(number), line)
    shows = [FIRST_REPORT(line=line) if named is None else RECEIVED(signal=named, line=line)]
    shows += [] if stops.hangup is None else [HANGUP_FOLLOWED(line=stops.hangup)]
    shows += [] if sign.time is not None or ending.time is None else [ENDED_AT(time=ending.time)]
    shows += [] if state is None else [RECORDED_WITHOUT_REASON(state=state)]
    shows += () if isinstance(trajectory, Missing) else trajectory.last_logged_claims
    return present(
        Certainty.SUPPORTED
        if state is not None or (number is not None and not _follows_failure(sign, ending))
        else Certainty.POSSIBLE,
        "unknown",
        shows,
        headline=STOPPED() if named is None else _headline(sign, named, line),
        implies=[
            SESSION_CLOSED()
            if number == SIGHUP
            else LOGIN_CLOSED()
            if stops.hangup is not None
            else UNEXPLAINED_BY_LOG()
            if state is None
            else UNEXPLAINED()
        ],
        cannot_decide=[
            PROCESS_UNKNOWN()
            if sign.get("sender_pid") is not None
            else SENDER_UNKNOWN()
            if state is not None or number == SIGHUP
            else SENDER_OR_SCHEDULER()
        ],
        actions=[action(DETACH)]
        if number == SIGHUP
        else [*_find_sender(sign, line, ending, run), *([action(DETACH)] if stops.hangup is not None else [])],
        since=sign.time,
        at=sign.at,
        signal=(signal_name(signal), signal) if number in (*STOP_SIGNALS, None) else None,
    )


def _follows_failure(sign: Event, ending: Ending) -> bool:
    """Whether a process had failed by itself before the signal, which may then be the launcher's clean-up."""
    rows = (*ending.launchers.events, *ending.exits.events)
    return any(
        row.get("exit_code") not in (None, 0) and exit_signal(row) is None and follows(sign, row) for row in rows
    )


def _headline(sign: Event, signal: Value, line: Value) -> Claim:
    """The signal, and its sender as far as the line names it."""
    if exit_signal(sign) == SIGHUP:
        return HUNG_UP(signal=signal)
    sender, user = (None if sign.get(name) is None else derived(str(sign.get(name)), line) for name in SENDER_FIELDS)
    if sender is None:
        return STOPPED_BY(signal=signal)
    if user is None:
        return STOPPED_FROM(signal=signal, sender=sender)
    return STOPPED_FROM_USER(signal=signal, sender=sender, user=user)


def _find_process(sign: Event, line: Value) -> Action:
    """How to find out what the process was that the line names as the sender."""
    fields = zip(("sender", "user"), SENDER_FIELDS, strict=True)
    known = [(name, field) for name, field in fields if sign.get(field) is not None]
    values = {name: derived(str(sign.get(field)), line) for name, field in known}
    if isinstance(time := sign.get("unix_time"), int):
        values |= {
            name: derived(str(time + shift), line) for name, shift in (("since", -AROUND_S), ("until", AROUND_S))
        }
    return action(FIND_PROCESS, *SHOW_PROCESS, **values)


def _find_sender(sign: Event, line: Value, ending: Ending, run: Run) -> list[Action]:
    """How to find the sender: in the system log around the signal, else around the run's end, and in the controller's
    log if it was not given."""
    time = sign.time if sign.time is not None or ending.time is None else ending.time.number
    if sign.get("sender_pid") is not None:
        return [_find_process(sign, line)]
    controller = [action(READ_CONTROLLER_LOG, SHOW_CONTROLLER_LOG)] if ending.jobs and not ending.changes else []
    if time is None:
        return [action(FIND_SENDER), *controller]
    values = system_log_values(time, sign.node, run, line)
    return [action(FIND_SENDER, *SHOW_SYSTEM_LOG, **values), *controller]


def _contradiction(ending: Ending) -> Claim | None:
    """The scheduler's explanation of the end, or a good end."""
    if ending.state is not None and ending.state.value in CUT_SHORT:
        return RECORDED(state=ending.state)
    notices = (row for row in ending.notices.events if row.get("reason") not in ("step_ended", "revoked"))
    if (notice := next(notices, None)) is not None:
        return SCHEDULER_EXPLAINS(line=ending.notices.value(notice, "text"))
    return None if ending.completed is None else ENDED_WELL(state=ending.completed)


FAMILY = Family(
    code="H3",
    id="external-kill",
    title="Stopped by an unknown sender",
    example=("external-kill", "timeline"),
    judge=judge,
    rivals=("H1", "F1", "F2", "F3", "A2"),
    collect=("sacct for the final state", "the job script", "the node's system log around the end"),
)
