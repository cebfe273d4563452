"""External kill: something outside the job ended its processes, and the scheduler says nothing of it.

Meaning
-------
The processes got SIGTERM or SIGHUP, or a time limiter or a watchdog fired, though neither the scheduler, nor the
launcher's teardown, nor the kernel for memory accounts for it: a `timeout` command, a node's watchdog, another
script, an operator's kill.

What it looks like
------------------
"Received SIGTERM" or exit code 143 as the first sign of the end, with no notice of the scheduler, no failed
rank before it and no exception; exit code 124 of `timeout`.

Not this when
-------------
The scheduler gives a reason: time limit, preemption, requeue, node failure, cancellation. A rank had failed
before, so that the launcher ended the others. SIGKILL without a word, which host memory explains better.
The run had said that it was done.

Impact
------
What came after the last checkpoint.

Do next
-------
Look for a `timeout` in the job script, watchdogs and clean-up scripts on the node, and ask the operators.

What it cannot tell
-------------------
Who sent the signal.

References
----------
signal(7); coreutils timeout(1).
"""

from __future__ import annotations

import re

from trackside.catalog.signals import signal_name
from trackside.evidence import Evidence, Value
from trackside.facts.logs.ending import CUT_SHORT, ENDING, completed, exit_signal, last_job
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.logs.order import first, followed_by, follows
from trackside.facts.training.learning import curve, training_points
from trackside.family import Family
from trackside.finding import Certainty, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Role, Run
from trackside.query import events

SIGTERM = 15
TOLD_TO_STOP = (SIGTERM, 1)
"""Signals that ask a process to end: SIGTERM, and SIGHUP when the session that started it goes away."""
_GOT = re.compile(r"\b(?:15|1)$")
TIMED_OUT = 124
"""Exit code of coreutils' timeout."""
COLLECT = ("sacct for the final state", "the job script", "the node's system log around the end")


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """SIGTERM or SIGHUP as the first sign of the end, and nobody who accounts for it."""
    last = last_job(evidence["jobs"])
    if last is not None and last.get("state") in CUT_SHORT:
        return absent(claim("other_state", state=evidence["jobs"].value(last, "state")))
    notices = evidence["notices"]
    told = [row for row in notices.events if row.get("reason") not in ("step_ended", "revoked")]
    if told:
        return absent(claim("accounted", line=notices.value(told[0], "text")))
    good = completed(evidence)
    if good is not None:
        return absent(claim("completed", how=good))
    kills = _kills(evidence)
    sign = first([row for _, row in kills])
    if sign is None:
        return absent(claim("none", count=evidence["signals"].reduce("count")))
    before = _failed_before(evidence, sign)
    if before is not None:
        return absent(claim("teardown", line=before))
    if last is None and not evidence["launchers"] and not evidence["exits"] and not evidence["signals"]:
        return unknown(["no scheduler record of the job was given"], COLLECT)
    name = next(name for name, row in kills if row is sign)
    shows = [claim("signal", line=evidence[name].value(sign, "text"))]
    if last is not None:
        shows.append(claim("state", state=evidence["jobs"].value(last, "state")))
    line = curve(evidence["progress"])
    if line.rows and line.finite:
        shows.append(claim("until", place=line.place(-1), loss=line.loss(-1)))
    number = exit_signal(sign)
    return found(
        Certainty.SUPPORTED if last is not None else Certainty.POSSIBLE,
        "unknown",
        shows,
        implies=[claim("outside")],
        cannot_decide=[claim("who"), *([] if last is not None else [claim("no_record")])],
        actions=[action("look")],
        since=sign.time,
        at=sign.at,
        signal=(signal_name(number or SIGTERM), number or SIGTERM) if number in (*TOLD_TO_STOP, None) else None,
    )


def _kills(evidence: Evidence) -> list[tuple[str, Event]]:
    """Signs of SIGTERM, SIGHUP or of a time limiter, after which no training point came."""
    points = training_points(evidence["progress"])
    rows = [("signals", row) for row in evidence["signals"].events if row.get("signal") in TOLD_TO_STOP]
    for name in ("exits", "launchers"):
        ended = [
            row for row in evidence[name].events if exit_signal(row) == SIGTERM or row.get("exit_code") == TIMED_OUT
        ]
        rows += [(name, row) for row in ended]
    rows += [
        ("exceptions", row)
        for row in evidence["exceptions"].events
        if row.get("about") == "signal" and _GOT.search(str(row.get("message")))
    ]
    return [(name, row) for name, row in rows if followed_by(row, points) is None]


def _failed_before(evidence: Evidence, sign: Event) -> Value | None:
    """Another failure that explains the signal as teardown: anything of its own, unless known to be later."""
    for name in ("launchers", "exits"):
        for row in evidence[name].events:
            number = exit_signal(row)
            other = number not in (None, SIGTERM, 1, 2) or (number is None and row.get("exit_code") not in (None, 0))
            if row.get("exit_code") in (1, TIMED_OUT):
                continue
            if other and (row.role is Role.ROOT or not _killed_after(row, sign)):
                return evidence[name].value(row, "text")
    frame = evidence["exceptions"]
    for row in unhandled(frame.events, evidence["progress"].events):
        if follows(row, sign) is not True:
            return frame.value(row, "type")
    for name in ("deaths", "oom_kills", "timeouts", "interrupts"):
        for row in evidence[name].events:
            return evidence[name].value(row, "text")
    return None


def _killed_after(row: Event, sign: Event) -> bool:
    """SIGKILL that follows SIGTERM is its escalation."""
    return exit_signal(row) == 9 and follows(row, sign) is True


FAMILY = Family(
    code="H3",
    id="external-kill",
    title="Ended from outside, with no word of the scheduler",
    pictured=("external-kill", "timeline"),
    asks={
        **ENDING,
        "signals": events("signal_received"),
        "exceptions": events("exception"),
        "progress": events("progress"),
        "deaths": events("dataloader_death"),
        "oom_kills": events("oom_kill"),
        "timeouts": events("collective_timeout"),
        "interrupts": events("user_interrupt"),
    },
    needs=("signals",),
    says={
        "signal": "the first sign of the end is: {line}",
        "state": "the scheduler recorded {state} and gives no reason",
        "until": "the last training point was {place} with a loss of {loss}",
        "outside": "something outside the job told it to stop",
        "who": "who sent the signal",
        "no_record": "whether the scheduler sent it: its record was not given",
        "look": "look for a timeout in the job script and for watchdogs on the node, and ask the operators",
        "other_state": "the scheduler recorded {state}",
        "accounted": "the scheduler accounts for the end: {line}",
        "completed": "the run came to its own end: {how}",
        "none": "of {count:received signals} none tells of somebody outside the run",
        "teardown": "the signal is teardown after: {line}",
    },
    going={"signal": "the first sign of it is: {line}"},
    judge=judge,
    rivals=("H1", "F1", "F2", "F3", "A2"),
    collect=COLLECT,
)
