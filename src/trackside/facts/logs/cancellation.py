"""A cancellation on purpose: the scheduler's record and notice of it, who sent it, and interrupts (Ctrl-C).

srun cancels a step, too, when one of its tasks has failed: such a notice is no cancellation of the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event, Record, Role
from trackside.query import events

BY = Sentence("it was cancelled by user {who}")
BY_OWNER = Sentence("it was cancelled by its own user, {who}")
ASKED_BY = Sentence("the controller was asked to cancel it by user {who}")
ASKED_BY_OWNER = Sentence("the controller was asked to cancel it by its own user, {who}")
NOT_OWNER = Sentence("that is another user than its own, {owner}")

SLURMS_OWN = ("time_limit", "preemption", "requeue", "node_failure", "dependency", "unkillable", "out_of_memory")
"""Reasons for which Slurm ends a job by itself."""


@dataclass(frozen=True, eq=False)
class Cancellation:
    """What shows that somebody ended the run."""

    ending: Ending
    exceptions: Maybe[Exceptions]
    interrupts: tuple[tuple[Event, Value], ...]
    """Ctrl-C and KeyboardInterrupt after which nothing went on, each with its line."""

    @property
    def recorded(self) -> bool:
        """Whether the scheduler recorded the last attempt as cancelled."""
        return self.ending.state is not None and self.ending.state.value == "CANCELLED"

    @cached_property
    def record(self) -> Record | None:
        """The record of the last attempt that says who cancelled it: of several sources one may, the others don't."""
        last = self.ending.job
        if last is None or not self.recorded:
            return None
        rows = (row for row in self.ending.jobs.records if row.get("state") == "CANCELLED")
        mine = (row for row in rows if row.get("start") == last.get("start"))
        return next((row for row in (last, *mine) if row.get("cancelled_by") is not None), None)

    @cached_property
    def sender(self) -> tuple[Claim, ...]:
        """Who cancelled it, and whether that was its owner, as far as the records tell: accounting's, else those of the
        controller's log."""
        jobs, notices = self.ending.jobs, self.ending.notices
        sent = [row for row in notices.events if row.get("reason") == "cancelled" and row.get("by") is not None]
        if self.record is not None:
            who, says, by_owner = jobs.value(self.record, "cancelled_by"), BY, BY_OWNER
        elif sent and self.recorded:
            who, says, by_owner = notices.value(sent[-1], "by"), ASKED_BY, ASKED_BY_OWNER
        else:
            return ()
        field = "uid" if str(who.value).isdigit() else "user"
        row = next((row for row in jobs.records if row.get(field) is not None), None)
        if row is None:
            return (says(who=who),)
        owner = jobs.value(row, field)
        if str(owner.value) == str(who.value):
            return (by_owner(who=derived(who.value, who, owner)),)
        return says(who=who), NOT_OWNER(owner=derived(str(owner.value), owner))

    @cached_property
    def by_slurm(self) -> Value | None:
        """Slurm's notice that it ended the job by itself; one of unkillable processes follows a cancellation, too."""
        own = [reason for reason in SLURMS_OWN if reason != "unkillable" or self.record is None]
        row = next((row for row in self.ending.notices.events if row.get("reason") in own), None)
        return None if row is None else self.ending.notices.value(row, "text")

    @cached_property
    def notices(self) -> tuple[Event, ...]:
        """The scheduler's notices of a cancellation, of the job or of a step."""
        return tuple(row for row in self.ending.notices.events if row.get("reason") == "cancelled")

    def of_the_job(self, notice: Event) -> bool:
        """Whether a notice speaks of the whole job."""
        if "*** JOB" in notice.text:
            return True
        if self._terminated(notice):
            return False
        exits, launchers = self.ending.exits.events, self.ending.launchers.events
        failed = any(row.get("exit_code") not in (None, 0) for row in exits)
        failed |= any(row.get("signal") not in (None, 0, 2, 9, 15) for row in exits)
        failed |= any(row.get("signal") not in (2, 15) for row in launchers)
        return not failed and (isinstance(self.exceptions, Missing) or not self.exceptions.unhandled)

    def _terminated(self, notice: Event) -> bool:
        """Whether srun ended the notice's step itself, as --kill-on-bad-exit has it: it says so, and a task had died of
        a signal before anything ended the step."""
        ends = [row for row in self.ending.notices.events if row.get("reason") == "step_ended"]
        if not any("Terminating " in row.text and row.get("step") in (None, notice.get("step")) for row in ends):
            return False
        exits = self.ending.exits.events
        return any(row.role is Role.ROOT and row.get("signal") not in (None, 0, 2, 15) for row in exits)


@fact({"interrupts": events("user_interrupt")})
def cancellation(
    evidence: Evidence, ending: Ending, exceptions: Maybe[Exceptions], trajectory: Maybe[Trajectory]
) -> Cancellation:
    """Of records, notices and the log; nothing is needed."""
    points = () if isinstance(trajectory, Missing) else trajectory.progress.events
    last, files = max((row.at.line for row in points), default=0), {row.at.path for row in points}
    interrupts = evidence["interrupts"]
    rows = [(row, interrupts) for row in interrupts.events]
    if not isinstance(exceptions, Missing):
        rows += [(row, exceptions.frame) for row in exceptions.frame.events if row.get("about") == "interrupt"]
    final = [(row, frame) for row, frame in rows if row.at.path not in files or row.at.line > last]
    return Cancellation(ending, exceptions, tuple((row, frame.value(row, "text")) for row, frame in final))
