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

from trackside.evidence import Missing
from trackside.facts.fact import Maybe
from trackside.facts.logs.cancellation import Cancellation
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, found
from trackside.model import Run

STATE = Sentence("the scheduler recorded {state}")
NOTICE = Sentence("the notice names no cause: {line}")
INTERRUPT = Sentence("the run was interrupted: {line}")
UNTIL = Sentence("the last training point was {place} with a loss of {loss}")
ON_PURPOSE = Sentence("somebody ended the run on purpose; it is no fault by itself")
WHY = Sentence("why it was cancelled")
WHO = Sentence("who cancelled it: no record that was given names them")
RESUME = Sentence("resume from the last checkpoint if the run is still wanted")
SLURMS_OWN = Sentence("Slurm ended it by itself: {line}")
NO_CANCEL = Sentence("notices of a cancellation of the job: {count}")


def judge(cancellation: Cancellation, ending: Ending, trajectory: Maybe[Trajectory], run: Run) -> Finding | Missing:
    """The scheduler's record, else its notice without a cause, else an interrupt."""
    if ending.unrecorded is not None:
        return ending.unrecorded
    if (contradiction := _contradiction(cancellation, ending)) is not None:
        return absent(contradiction)
    shows: list[Claim] = [STATE(state=ending.state)] if cancellation.recorded and ending.state is not None else []
    shows += cancellation.sender
    certain = bool(shows)  # then any notice is of this cancellation
    notice = next((row for row in cancellation.notices if certain or cancellation.of_the_job(row)), None)
    interrupt, line = cancellation.interrupts[0] if cancellation.interrupts else (None, None)
    shows += [] if notice is None else [NOTICE(line=ending.notices.value(notice, "text"))]
    shows += [] if line is None else [INTERRUPT(line=line)]
    if not shows:
        if ending.job is not None or ending.ends or ending.notices.covered:
            return absent(NO_CANCEL(count=ending.notices.reduce("count")))
        return Missing("no scheduler record of the job was given")
    if not isinstance(trajectory, Missing) and trajectory.curve.finite:
        shows.append(UNTIL(place=trajectory.curve.place(-1), loss=trajectory.curve.loss(-1)))
    first = cancellation.notices[0] if cancellation.notices else interrupt
    return found(
        Certainty.SUPPORTED if cancellation.record is None else Certainty.ESTABLISHED,
        "none",
        shows,
        implies=[ON_PURPOSE()],
        cannot_decide=[WHY(), *([] if cancellation.sender or interrupt is not None else [WHO()])],
        actions=[action(RESUME)],
        since=run.end if first is None or first.time is None else first.time,
        at=None if first is None else first.at,
        variant="interrupt"
        if interrupt is not None and first is interrupt and not cancellation.recorded
        else "scancel",
    )


def _contradiction(cancellation: Cancellation, ending: Ending) -> Claim | None:
    """Another state than CANCELLED, unless an interrupt made it FAILED; Slurm's own reason to end it."""
    state, job = ending.state, ending.job
    interrupted = state is not None and state.value == "FAILED" and bool(cancellation.interrupts)
    if state is not None and not cancellation.recorded and not interrupted:
        return STATE(state=state)
    if cancellation.by_slurm is not None:
        return SLURMS_OWN(line=cancellation.by_slurm)
    if cancellation.recorded and job is not None and job.get("reason") == "Dependency":
        return STATE(state=ending.jobs.value(job, "reason"))
    return None


FAMILY = Family(
    code="H1",
    id="user-cancelled",
    title="Cancelled by a user",
    pictured=("cancelled", "timeline"),
    judge=judge,
    loses="nothing",
    explains=("A2", "C2", "H3"),
    rivals=("C1", "C2", "C3"),
    collect=("sacct for the final state, with the uid after CANCELLED by",),
)
