"""Jobs that report signals and requeues themselves: handlers, Lightning, submitit, Ctrl-C at a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.signals import CRASH_SIGNALS, signal_name, signal_number
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_NAMED = r"(?:Signals\.)?(?P<name>SIG(?:TERM|INT|HUP|USR1|USR2|QUIT|CONT|KILL|XCPU|ALRM|PWR))(?!\w)"
_SIGNAL_ARRIVED = re.compile(
    rf"(?i:\b(?:caught|received?|receiving|got|handling|trapped|"
    rf"intercepted)\b)[^\n]{{0,30}}?(?:{_NAMED}|(?i:signal) (?:number )?:? "
    rf"?(?P<number>\d{{1,2}})\b)"
    rf"|(?P<first>SIG(?:TERM|INT|HUP|USR1|USR2))\b (?i:was )?(?i:received|caught|handler (?:called|invoked|triggered))"
    rf"|(?i:signal handler called with signal) (?P<called>\d{{1,2}})"
    rf"|(?i:\b(?:caught|received|got|trapped)) (?:the )?(?P<short>TERM|USR1|USR2|INT)\b"
    rf"|(?i:auto-requeue signal): (?P<requeue>\d{{1,2}}|{_NAMED.replace('name', 'lightning')})"
)
_NO_ARRIVAL = re.compile(
    r"(?i:register|install|set(?:ting)? (?:up )?(?:signal )?handler|will be|when|\bif\b|in case|"
    r"bypass|ignor|Main process received|SignalException|got signal: )"
)
_REQUEUE = re.compile(
    r"(?i:\brequeu?e?ing (?:slurm )?job\b|\brequeued (?:slurm )?job\b|\bscontrol requeue\b|"
    r"\b(?:self-)?requeue(?:ing|d)? (?:myself|this job|the job|job|requested)\b"
    r"|\bresubmitt(?:ing|ed) (?:the |this )?(?:slurm )?job\b|handling auto-requeue signal|requeue_job)"
)
_NOT_REQUEUE = re.compile(r"DUE TO |JobId=|(?i:failed|enabled|disabled|error|not requeu|#SBATCH|to reclaim)|_slurm")
_INTERRUPT = re.compile(
    r"(?i:detected keyboardinterrupt|interrupted by (?:the )?user|keyboard ?interrupt (?:received|"
    r"caught|detected)|(?:caught|received) (?:a )?keyboard ?interrupt|user interrupted"
    r"|\b(?:you pressed ctrl ?[-+] ?c\b|ctrl ?[-+] ?c (?:was )?(?:pressed|received|caught|detected)|(?:caught|received|detected) ctrl ?[-+] ?c\b)"
    r"|\b(?:training|run|experiment) (?:was |has been )?(?:interrupted\s?[.!]|(?:stopped|aborted|cancell?ed) by (?:the )?user\b)"
    r"|\b(?:saved|saving)\b.{0,40}\bdue to (?:an? |the |user )?interrupt(?:ion)?\b)"
)
_NO_INTERRUPT = re.compile(r"\b(?:if|when|press|can|may|to (?:stop|quit|exit|kill))\b", re.IGNORECASE)
"""What makes such words a condition or an offer."""
_CTRL_C = re.compile(r"^\s*\^C")


def _signal_number(match: re.Match[str]) -> int | None:
    """The signal that a match names, or None."""
    text = next((value for value in match.groupdict().values() if value), "")
    return signal_number(text)


PARSER = Parser("self-signal", "signals and requeues that a job reports itself", "system")


@PARSER.pattern(
    rb"((caught|received?|receiving|got|handling|trapped|intercepted) [^\n\r]{0,30}(sig(term|int|"
    rb"hup|usr|quit|cont|kill|xcpu|alrm|nal [0-9]|nal: [0-9]|nals\.)|term\b|usr[12])|sig(term|int|"
    rb"hup|usr[12]) (was |received|caught|handler)|signal handler called with signal [0-9]|"
    rb"auto-requeue signal: )",
    safety="A signal that arrived, not a handler that was installed. SIGTERM is teardown, SIGINT is the user, "
    "SIGUSR1 is an observation.",
    matches=(
        "caught SIGUSR1, saving checkpoint and requeue this job",
        "Received SIGTERM: 15",
        "Handling auto-requeue signal: 10",
        "submitit WARNING (2026-01-05 10:00:00,000) - Caught signal SIGUSR2 on n1: this job is preempted.",
        "caught TERM, saving",
        "rank 1 caught TERM",
        "SIGTERM received, shutting down",
        "signal handler called with signal 10",
    ),
    avoids=(
        "SLURM auto-requeueing enabled. Setting signal handlers.",
        "Registered signal handler for SIGTERM",
        "the checkpoint will be saved when we received SIGTERM",
        "caught significant changes",
        "submitit WARNING - Bypassing signal SIGTERM",
        "[node-3:20418:0:20418] Caught signal 7 (Bus error: nonexistent physical address)",
    ),
    caseless=True,
)
def _arrived_signal(line: Line) -> Iterator[Event]:
    text = line.text
    requeues = bool(_REQUEUE.search(text)) and not _NOT_REQUEUE.search(text)
    match = None if _NO_ARRIVAL.search(text) else _SIGNAL_ARRIVED.search(text)
    number = _signal_number(match) if match else None
    if number in CRASH_SIGNALS:
        number = None  # a crash handler's report: the native-crash parser reads it
    if number == 2:
        exits.note_ending(line, "interrupt")
        yield line.event("user_interrupt", EventRole.ROOT, by="job")
    elif number is not None:
        if number in (1, 9, 15):
            exits.note_ending(line, "signal")
        role = EventRole.TEARDOWN if number in (1, 9, 15) else EventRole.OBSERVATION
        yield line.event("signal_received", role, signal=number, signal_name=signal_name(number), by="job")
    if requeues:
        yield line.event("requeue_requested", EventRole.OBSERVATION, by="job")


@PARSER.pattern(
    rb"(requeu?e?ing (slurm )?job|requeued (slurm )?job|scontrol requeue|requeue(ing|d)? (myself|"
    rb"this job|the job|requested)|resubmitt(ing|ed) [^\n\r]{0,12}job|requeue_job)",
    safety="The application asks to run again; another pattern reads the scheduler's own requeue notices.",
    matches=(
        "requeing job 4711...",
        "Requeuing SLURM job: 123",
        "Requeued SLURM job: 123",
        "+ scontrol requeue 4711",
        "Requeuing job 123 (2 remaining timeouts)",
    ),
    avoids=(
        "slurmstepd: error: *** JOB 27 ON g1 CANCELLED AT 2026-11-21T08:02:40 DUE TO JOB REQUEUE ***",
        "Requeuing SLURM job 123 failed with error code 1",
        "[2026-11-21T08:02:40] Requeuing JobId=27",
    ),
    caseless=True,
)
def _requeue(line: Line) -> Event | None:
    if _NOT_REQUEUE.search(line.text) or not _REQUEUE.search(line.text):
        return None
    return line.event("requeue_requested", EventRole.OBSERVATION, by="job")


@PARSER.pattern(
    rb"(\^C|Aborted!|eyboard ?[Ii]nterrupt|nterrupted by (the )?user|ser interrupted|nterrupted ?[.!]"
    rb"|trl ?[-+] ?[cC]|(topped|borted|ancell?ed) by (the )?user|due to [a-z ]{0,9}interrupt)",
    safety="Ctrl-C echoed at a line's start, or reported in words; the traceback parser reads KeyboardInterrupt.",
    matches=(
        "^CTraceback (most recent call last):",
        "Detected KeyboardInterrupt, attempting graceful shutdown ...",
        "Training interrupted by user",
        "Aborted!",
        "10:12:41 - INFO - You pressed Ctrl+C! Saving the model and exiting...",
        "Run interrupted! Writing a checkpoint...",
        "Model saved for epoch 12 due to interruption.",
        "Training stopped by user at step 300",
    ),
    avoids=(
        "use Ctrl+C (^C) to stop",
        "except KeyboardInterrupt:",
        "Press Ctrl-C to kill, the run is synced then",
        "If training was interrupted, start it again with --resume",
        "UserWarning: Your input ran out of data; interrupting training.",
    ),
)
def _interrupt(line: Line) -> Event | None:
    is_click = line.text.strip() == "Aborted!"  # what click prints for Ctrl-C
    is_reported = _INTERRUPT.search(line.text) is not None and _NO_INTERRUPT.search(line.text) is None
    if not (is_click or _CTRL_C.match(line.text) or is_reported):
        return None
    exits.note_ending(line, "interrupt")
    return line.event(
        "user_interrupt", EventRole.ROOT, by="click" if is_click else "terminal" if "^C" in line.text else "job"
    )
