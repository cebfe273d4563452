"""Cancelled: somebody ended the run on purpose.

Meaning
-------
scancel by its owner or an administrator, or Ctrl-C. Not a fault; if something had gone wrong before, that is
the cause and this its consequence.

What it looks like
------------------
CANCELLED by a user id, "CANCELLED AT" in the output without a cause after it, KeyboardInterrupt, SIGINT.
A script that catches the signal may still exit with zero.

Not this when
-------------
Slurm cancelled it: time limit, preemption, node failure, requeue, a dependency that can't be met. Only a step
was cancelled because one of its tasks had failed: that is srun's clean-up. A hang or a failed rendezvous came
first.

Impact
------
What came after the last checkpoint.

Do next
-------
Ask whoever cancelled it; resume from the last checkpoint.

What it cannot tell
-------------------
Why it was cancelled.

References
----------
Slurm documentation, scancel and job state codes.
"""

from __future__ import annotations

from trackside.evidence import Evidence, Frame, derived
from trackside.facts.logs.ending import ENDING, last_job
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.training.learning import curve
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Position, Record, Role, Run
from trackside.query import events

SLURMS_OWN = ("time_limit", "preemption", "requeue", "node_failure", "dependency", "unkillable", "out_of_memory")
COLLECT = ("sacct for the final state, with the uid after CANCELLED by",)


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """The scheduler's record, else its notice without a cause, else an interrupt."""
    jobs, notices = evidence["jobs"], evidence["notices"]
    last = last_job(jobs)
    by = _recorded(jobs, last)
    own = [reason for reason in SLURMS_OWN if reason != "unkillable" or by is None]  # it follows a cancellation, too
    other = [row for row in notices.events if row.get("reason") in own]
    if last is not None and last.get("state") != "CANCELLED":
        state = str(last.get("state"))
        if state != "FAILED" or not _interrupts(evidence):
            return absent(claim("other_state", state=jobs.value(last, "state")))
    if other:
        return absent(claim("slurms_own", line=notices.value(other[0], "text")))
    if last is not None and last.get("state") == "CANCELLED" and last.get("reason") in ("Dependency",):
        return absent(claim("other_state", state=jobs.value(last, "reason")))
    shows: list[Claim] = []
    if last is not None and last.get("state") == "CANCELLED":
        shows.append(claim("state", state=jobs.value(last, "state")))
    who = _who(evidence, last)
    shows += who
    told = [row for row in notices.events if row.get("reason") == "cancelled"]
    notice = next((row for row in told if shows or _of_the_job(evidence, row)), None)
    if notice is not None:
        shows.append(claim("notice", line=notices.value(notice, "text")))
    interrupts = _interrupts(evidence)
    for name, row in interrupts[:1]:
        shows.append(claim("interrupt", line=evidence[name].value(row, "text")))
    if not shows:
        if last is not None or evidence["ends"] or evidence.has("notices"):
            return absent(claim("no_cancel", count=notices.reduce("count")))
        return unknown(["no scheduler record of the job was given"], COLLECT)
    since, at = _when(run, told, interrupts)
    line = curve(evidence["progress"])
    if line.rows and line.finite:
        shows.append(claim("until", place=line.place(-1), loss=line.loss(-1)))
    strong = last is not None and last.get("state") == "CANCELLED"
    return found(
        Certainty.ESTABLISHED if strong and by is not None else Certainty.SUPPORTED,
        "none",
        shows,
        implies=[claim("on_purpose")],
        cannot_decide=[claim("why"), *([] if who or interrupts else [claim("who")])],
        actions=[action("resume")],
        since=since,
        at=at,
        variant="interrupt" if interrupts and not told and not strong else "scancel",
    )


def _recorded(jobs: Frame, last: Record | None) -> Record | None:
    """The record of the last attempt that says who cancelled it: of several sources one may, the others don't."""
    if last is None or last.get("state") != "CANCELLED":
        return None
    mine = (row for row in jobs.records if row.get("state") == "CANCELLED" and row.get("start") == last.get("start"))
    return next((row for row in (last, *mine) if row.get("cancelled_by") is not None), None)


def _who(evidence: Evidence, last: Record | None) -> list[Claim]:
    """Who cancelled it, and whether that was its owner, as far as the records tell: accounting's, else the
    controller's log's."""
    jobs, notices = evidence["jobs"], evidence["notices"]
    row = _recorded(jobs, last)
    sent = [each for each in notices.events if each.get("reason") == "cancelled" and each.get("by") is not None]
    if row is not None:
        who, key = jobs.value(row, "cancelled_by"), "by"
    elif sent and last is not None and last.get("state") == "CANCELLED":
        who, key = notices.value(sent[-1], "by"), "asked_by"
    else:
        return []
    field = "uid" if str(who.value).isdigit() else "user"
    owner = next((each for each in jobs.records if each.get(field) is not None), None)
    if owner is None:
        return [claim(key, who=who)]
    theirs = jobs.value(owner, field)
    if str(theirs.value) == str(who.value):
        return [claim(f"{key}_owner", who=derived(who.value, who, theirs))]
    return [claim(key, who=who), claim("not_owner", owner=derived(str(theirs.value), theirs))]


def _interrupts(evidence: Evidence) -> list[tuple[str, Event]]:
    """Ctrl-C events and KeyboardInterrupt tracebacks after which nothing went on."""
    points = evidence["progress"].events
    last = max((row.at.line for row in points), default=0)
    found_ = [("interrupts", row) for row in evidence["interrupts"].events]
    found_ += [("exceptions", row) for row in evidence["exceptions"].events if row.get("about") == "interrupt"]
    files = {row.at.path for row in points}
    return [(name, row) for name, row in found_ if row.at.path not in files or row.at.line > last]


def _of_the_job(evidence: Evidence, notice: Event) -> bool:
    """Whether the notice speaks of the whole job: srun also cancels a step when one of its tasks has failed."""
    if "*** JOB" in notice.text:
        return True
    if _terminated(evidence, notice):
        return False
    failed = [row for row in evidence["exits"].events if row.get("exit_code") not in (None, 0)]
    failed += [row for row in evidence["exits"].events if row.get("signal") not in (None, 0, 2, 9, 15)]
    failed += [row for row in evidence["launchers"].events if row.get("signal") not in (2, 15)]
    own = unhandled(evidence["exceptions"].events, evidence["progress"].events, crashed=True)
    return not failed and not own


def _terminated(evidence: Evidence, notice: Event) -> bool:
    """Whether srun ended the notice's step itself, as --kill-on-bad-exit has it: it says so, and a task had died of a
    signal before anything ended the step."""
    ends = [row for row in evidence["notices"].events if row.get("reason") == "step_ended"]
    if not any("Terminating " in row.text and row.get("step") in (None, notice.get("step")) for row in ends):
        return False
    return any(row.role is Role.ROOT and row.get("signal") not in (None, 0, 2, 15) for row in evidence["exits"].events)


def _when(run: Run, told: list[Event], interrupts: list[tuple[str, Event]]) -> tuple[float | None, Position | None]:
    first = told[0] if told else interrupts[0][1] if interrupts else None
    return (first.time if first is not None and first.time is not None else run.end), (
        first.at if first is not None else None
    )


FAMILY = Family(
    code="H1",
    id="user-cancelled",
    title="Cancelled by a user",
    pictured=("cancelled", "timeline"),
    asks={
        **ENDING,
        "progress": events("progress"),
        "interrupts": events("user_interrupt"),
        "exceptions": events("exception"),
    },
    needs=(("jobs", "notices"),),
    says={
        "state": "the scheduler recorded {state}",
        "by": "it was cancelled by user {who}",
        "by_owner": "it was cancelled by its own user, {who}",
        "asked_by": "the controller was asked to cancel it by user {who}",
        "asked_by_owner": "the controller was asked to cancel it by its own user, {who}",
        "not_owner": "that is another user than its own, {owner}",
        "who": "who cancelled it: no record that was given names them",
        "notice": "the notice names no cause: {line}",
        "interrupt": "the run was interrupted: {line}",
        "until": "the last training point was {place} with a loss of {loss}",
        "on_purpose": "somebody ended the run on purpose; it is no fault by itself",
        "why": "why it was cancelled",
        "resume": "resume from the last checkpoint if the run is still wanted",
        "other_state": "the scheduler recorded {state}",
        "slurms_own": "Slurm ended it by itself: {line}",
        "no_cancel": "notices of a cancellation of the job: {count}",
    },
    judge=judge,
    loses="nothing",
    explains=("A2", "C2", "H3"),
    rivals=("C1", "C2", "C3"),
    collect=COLLECT,
)
