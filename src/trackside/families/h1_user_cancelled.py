"""Canceled by a user.

Meaning
-------
scancel by its user or an administrator, or Ctrl-C. Not a fault; if something had gone wrong before, that is
the cause and this its consequence.

What it looks like
------------------
CANCELLED by a user id, "CANCELLED AT" in the output without a cause after it, KeyboardInterrupt, SIGINT,
last words such as "stopped by the user".
A script that catches the signal may still exit with zero.

Not this family when
--------------------
- Slurm canceled the job: time limit, preemption, node failure, requeue, a dependency that cannot be met.
- Only a step was canceled because one of its tasks had failed: srun cleans up.
- A hang or a failed rendezvous came first.

Impact
------
The work after the last checkpoint.

Do next
-------
Ask the person who canceled it; resubmit it from the last checkpoint if there is one.

What it cannot decide
---------------------
Why it was canceled.

References
----------
- [Slurm: scancel](https://slurm.schedmd.com/scancel.html)
- [Slurm: job state codes](https://slurm.schedmd.com/job_state_codes.html)
"""

from __future__ import annotations

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe
from trackside.facts.logs.ending import RECORDED, Ending
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, EventRole, Record, Run
from trackside.remedies import RESUBMIT

SLURM_REASONS = ("time_limit", "preemption", "requeue", "node_failure", "dependency", "unkillable", "out_of_memory")
"""Reasons for which Slurm itself ends a job."""

WITHOUT_STEPS = frozenset(("lsf", "flux", "htcondor"))
"""Parsers of batch systems that cancel whole jobs only."""

CANCELED = Sentence("canceled by a user")
PROBABLY_CANCELED = Sentence("canceled, most likely with scancel")
INTERRUPTED = Sentence("interrupted from the keyboard (Ctrl-C)")
STOPPED_BY_HAND = Sentence("stopped by hand")
CANCELED_BY = Sentence("canceled by {who}")
CANCELED_BY_OWNER = Sentence("canceled by the user who submitted it ({who})")
REQUESTED_BY = Sentence("{who} requested its cancellation from the controller")
REQUESTED_BY_OWNER = Sentence("the user who submitted it ({who}) requested its cancellation from the controller")
SUBMITTED_BY = Sentence("the job was submitted by {owner}")
NOTICE_WITHOUT_REASON = Sentence(
    "Slurm's notice names no cause (such as the time limit or a preemption), as after scancel: {line}"
)
INTERRUPT_LINE = Sentence("the run was interrupted: {line}")
ENDED_ON_PURPOSE = Sentence("somebody ended the run on purpose; that is not a fault")
PROBABLY_ON_PURPOSE = Sentence("probably somebody canceled the run; no input names who")
REASON_UNKNOWN = Sentence("why it was canceled")
INTERRUPT_UNEXPLAINED = Sentence("why it was interrupted")
USER_UNKNOWN = Sentence("who canceled it: no record names the user")
SEE_WHO = Sentence("see who canceled it: the State column shows the uid of that user")
SHOW_STATE = ShellCommand("sacct -j {jobs} -X --format=JobID,State%40,Elapsed,Timelimit,End")
RESUBMIT_IF_WANTED = Sentence(
    "if the run is still wanted, resubmit it with the same options, from the last checkpoint if there is one"
)
START_AGAIN = Sentence(
    "nothing to fix; if the run is still wanted, start it again, from the last checkpoint if there is one"
)
START_OVER = Sentence("nothing to fix; if the run is still wanted, start it again")
ENDED_BY_SLURM = Sentence("Slurm itself ended the run: {line}")
NO_CANCEL = Sentence("no cancellation notice in the log")


def judge(ending: Ending, exceptions: Exceptions, trajectory: Maybe[Trajectory], run: Run) -> Finding | Missing:
    """The scheduler's record, else its notice without a cause, else an interrupt."""
    if ending.missing_end is not None:
        return ending.missing_end
    recorded = ending.state if ending.state is not None and ending.state.value == "CANCELLED" else None
    record, interrupt = None if recorded is None else _record(ending), _interrupt(ending, exceptions, trajectory)
    if (contradiction := _contradiction(ending, record, interrupt is not None)) is not None:
        return absent(contradiction)
    sender = [] if recorded is None else _sender(ending, record)
    shows = [] if recorded is None else [RECORDED(state=recorded), *sender]
    notices = [row for row in ending.notices.events if row.get("reason") == "cancelled"]
    # With a record, any notice is of this cancellation.
    relevant = [row for row in notices if recorded is not None or _concerns_job(row, ending, exceptions)]
    shows += [NOTICE_WITHOUT_REASON(line=ending.notices.value(row, "text")) for row in relevant[:1]]
    shows += [] if interrupt is None else [INTERRUPT_LINE(line=interrupt[1])]
    if not shows:
        if ending.job is not None or ending.ends or ending.notices.covered:
            return absent(NO_CANCEL(count=ending.notices.reduce("count")))
        return Missing("no scheduler record of the job was given")
    shows += () if isinstance(trajectory, Missing) else trajectory.last_logged_claims
    first = notices[0] if notices else None if interrupt is None else interrupt[0]
    interrupted = interrupt is not None and not notices and recorded is None
    if interrupt is not None and interrupted:
        headline = STOPPED_BY_HAND if interrupt[0].get("by_hand") else INTERRUPTED
    else:
        headline = CANCELED if recorded is not None or sender else PROBABLY_CANCELED
    unknown_reason = INTERRUPT_UNEXPLAINED() if interrupted else REASON_UNKNOWN()
    return present(
        Certainty.SUPPORTED if record is None else Certainty.ESTABLISHED,
        "none",
        shows,
        headline=headline(),
        implies=[ENDED_ON_PURPOSE() if sender or interrupted else PROBABLY_ON_PURPOSE()],
        cannot_decide=[unknown_reason, *([] if sender or interrupt is not None else [USER_UNKNOWN()])],
        actions=[action(START_OVER if _is_in_imports(interrupt) else START_AGAIN)]
        if interrupted
        else [
            *([action(SEE_WHO, SHOW_STATE)] if ending.by_slurm and not sender and run.id else []),
            action(RESUBMIT_IF_WANTED, *RESUBMIT),
        ],
        since=run.end if first is None or first.time is None else first.time,
        at=None if first is None else first.at,
        variant="interrupt" if interrupted else "scancel",
    )


def _record(ending: Ending) -> Record | None:
    """The record of the last attempt that names who canceled it: not every source does."""
    last = ending.job
    if last is None:
        return None
    rows = (last, *(row for row in ending.jobs.records if row.get("start") == last.get("start")))
    canceled_rows = (row for row in rows if row.get("state") == "CANCELLED")
    return next((row for row in canceled_rows if row.get("cancelled_by") is not None), None)


def _interrupt(ending: Ending, exceptions: Exceptions, trajectory: Maybe[Trajectory]) -> tuple[Event, Value] | None:
    """The first Ctrl-C or KeyboardInterrupt after which nothing continued, and its line."""
    points = () if isinstance(trajectory, Missing) else trajectory.progress.events
    last, files = max((row.at.line for row in points), default=0), {row.at.path for row in points}
    frames = (ending.interrupts, exceptions.frame.filtered(lambda row: row.get("about") == "interrupt"))
    rows = ((row, frame.value(row, "text")) for frame in frames for row in frame.events)
    return next(((row, line) for row, line in rows if row.at.path not in files or row.at.line > last), None)


def _is_in_imports(interrupt: tuple[Event, Value] | None) -> bool:
    """Whether the interrupted program was still importing modules: nothing can have been saved."""
    return interrupt is not None and str(interrupt[0].get("frames")).count("in <module>") > 1


def _contradiction(ending: Ending, record: Record | None, interrupted: bool) -> Claim | None:
    """Another state than CANCELLED, unless an interrupt made it FAILED; or Slurm's own reason to end it."""
    state, job, notices = ending.state, ending.job, ending.notices
    if state is not None and state.value != "CANCELLED" and not (state.value == "FAILED" and interrupted):
        return RECORDED(state=state)
    # A notice of unkillable processes follows a cancellation, too.
    canceled = record is not None or any(row.get("reason") == "cancelled" for row in notices.events)
    own_reasons = [reason for reason in SLURM_REASONS if reason != "unkillable" or not canceled]
    if (notice := next((row for row in notices.events if row.get("reason") in own_reasons), None)) is not None:
        return ENDED_BY_SLURM(line=notices.value(notice, "text"))
    if job is not None and job.get("state") == "CANCELLED" and job.get("reason") == "Dependency":
        return RECORDED(state=ending.jobs.value(job, "reason"))
    return None


def _sender(ending: Ending, record: Record | None) -> list[Claim]:
    """Who canceled it, and whether that was its owner, by accounting records, else by the controller's log."""
    jobs, notices = ending.jobs, ending.notices
    senders = [row for row in notices.events if row.get("reason") == "cancelled" and row.get("by") is not None]
    if record is not None:
        sender, sentence, by_owner = jobs.value(record, "cancelled_by"), CANCELED_BY, CANCELED_BY_OWNER
    elif senders:
        sender, sentence, by_owner = notices.value(senders[-1], "by"), REQUESTED_BY, REQUESTED_BY_OWNER
    else:
        return []
    field = "uid" if str(sender.value).isdigit() else "user"
    prefix = "uid " if field == "uid" else ""
    who = derived(prefix + str(sender.value), sender)
    row = next((row for row in jobs.records if row.get(field) is not None), None)
    if row is None:
        return [sentence(who=who)]
    owner = jobs.value(row, field)
    if str(owner.value) == str(sender.value):
        return [by_owner(who=derived(who.value, sender, owner))]
    return [sentence(who=who), SUBMITTED_BY(owner=derived(prefix + str(owner.value), owner))]


def _concerns_job(notice: Event, ending: Ending, exceptions: Exceptions) -> bool:
    """Whether a notice concerns the whole job: srun also cancels a step when one of its tasks has failed."""
    if "*** JOB" in notice.text or notice.parser in WITHOUT_STEPS:
        return True
    exits, launchers = ending.exits.events, ending.launchers.events
    # srun ended the step itself, as --kill-on-bad-exit has it: it says so, and a task had died of a signal before.
    ends = [row for row in ending.notices.events if row.get("reason") == "step_ended"]
    srun_ended_it = any("Terminating " in row.text and row.get("step") in (None, notice.get("step")) for row in ends)
    if srun_ended_it and any(row.role is EventRole.ROOT and row.get("signal") not in (None, 0, 2, 15) for row in exits):
        return False
    failed = any(row.get("exit_code") not in (None, 0) for row in exits)
    failed |= any(row.get("signal") not in (None, 0, 2, 9, 15) for row in exits)
    failed |= any(row.get("signal") not in (2, 15) for row in launchers)
    return not failed and not exceptions.unhandled


FAMILY = Family(
    code="H1",
    id="user-cancelled",
    title="Canceled by a user",
    example=("cancelled", "timeline"),
    judge=judge,
    cost_kind="nothing",
    explains=("A2", "C2", "H3"),
    rivals=("C1", "C2", "C3"),
    collect=("sacct for the final state, with the uid after CANCELLED by",),
)
