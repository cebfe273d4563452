"""How the run ended: the scheduler's final record, exits and signals, and the job's own closing line.

The scheduler's record of the last attempt overrides a notice in the output, and a final record overrides one from while
the job was still ending. Each answer is cited, or None if the evidence does not show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.catalog.job_states import ACTIVE_STATES, ENDING_STATES
from trackside.catalog.signals import signal_name
from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import fact, unmet_need
from trackside.facts.logs.order import follows, last_after, latest
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole, Record
from trackside.query import Query, events, record

ENDING: Mapping[str, Query] = {
    "jobs": record("job"),
    "ends": events("training_end"),
    "launchers": events("launcher_failure"),
    "exits": events("process_exit"),
    "notices": events("scheduler_notice"),
    "interrupts": events("user_interrupt"),
    "changes": events("job_state"),
    "requests": events("requeue_requested"),
    "steps": events("progress"),
    "scores": events("score"),
    "saves": events("checkpoint_saved"),
    "starts": events("training_start"),
}
"""The queries behind :class:`Ending`."""
ERRORS: Mapping[str, Query] = {"exceptions": events("exception"), "ooms": events("cuda_oom")}

ENDED_WELL = Sentence("the run ended normally: {state}")
RECORDED = Sentence("the scheduler recorded {state}")
ENDED_ITSELF = Sentence("the run ended by itself: {line}")
ABORTED_ITSELF = Sentence("the run ended by itself; its log says that it was aborted: {line}")
RUN_ENDED = Sentence("the run ended: {state}")
LISTED_AS = Sentence("the scheduler lists it as {state}")
EXIT_CODE = Sentence("a process exited with code {code}")
EXIT_SIGNAL = Sentence("a process was ended by {signal}")
NOTICE_REASON = Sentence("the scheduler's notice gives the reason {reason}")
NOTICE_ENDS: Mapping[str, Sentence] = {
    "time_limit": Sentence("the run hit its time limit"),
    "cancelled": Sentence("the run was canceled"),
    "preemption": Sentence("the run was preempted"),
    "requeue": Sentence("the run was requeued"),
    "node_failure": Sentence("a node of the run failed"),
    "out_of_memory": Sentence("the scheduler reported that the run exceeded its memory limit"),
    "launch_failure": Sentence("a Slurm step of the run could not be launched"),
    "revoked": Sentence("the run's allocation was revoked"),
    "unkillable": Sentence("Slurm could not end the run's processes"),
}
"""A notice's reason -> how the run ended; of others :data:`NOTICE_REASON`."""
REPORTS_END = "the log reports its end"
EVALUATION_ENDED = "the log reports the end of its evaluation"
ALL_EXITED = "the launcher reports that all its processes exited successfully"

BAD_STATES = frozenset(
    ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED", "PREEMPTED", "DEADLINE", "BOOT_FAIL", "REVOKED")
)
LIVE_STATES = ACTIVE_STATES | ENDING_STATES
OUTSIDE_END_STATES = ("TIMEOUT", "DEADLINE", "CANCELLED", "RUNNING")
"""States of runs that were ended from outside, or that still run."""
CUT_SHORT = frozenset(
    ("TIMEOUT", "CANCELLED", "PREEMPTED", "DEADLINE", "NODE_FAIL", "REQUEUED", "REVOKED", "BOOT_FAIL")
)
"""States in which someone else ended the run: its last exit code and signals do not show its own fault."""

MIN_DONE_SHARE = 0.9
"""Share of the planned steps from which an error below the last step did not break the training off."""
MIN_STEPS_OF_SUMMARY = 4
"""Logged steps from which on a time or a result that is printed once is that of the whole run."""
MIN_STEPS_AFTER = 2
"""Logged steps below a closing line that show another loop; a single one may be a summary, unless it is the first."""
FATAL_SIGNALS = frozenset({3, 4, 5, 6, 7, 8, 9, 11, 31})
"""Signals of crashes and kills; SIGTERM, SIGINT and the user signals are requests to stop."""


def exit_signal(row: Event | Record) -> int | None:
    """The signal that ended a process: as recorded, or from a shell's 128+n or a launcher's -n.

    A Python launcher that passes on -n exits with 256-n (247 for SIGKILL); only fatal signals are decoded this way.
    """
    number, code = row.get("signal"), row.get("exit_code")
    if isinstance(number, int) and number > 0:
        return number & 0x7F
    if not isinstance(code, int):
        return None
    if code < 0:
        return -code
    if 128 < code < 128 + 65:
        return code - 128
    return 256 - code if 256 - code in FATAL_SIGNALS and code < 254 else None


def last_job(jobs: Frame) -> Record | None:
    """The record of the job's last attempt: a final one in preference to one made while the job was ending."""
    rows = [row for row in jobs.records if row.get("state") is not None]

    def late(row: Record) -> tuple[float, bool, float]:
        start, end = row.get("start"), row.get("end")
        final = row.get("state") not in LIVE_STATES
        began = float(start) if isinstance(start, (int, float)) else 0.0
        return began, final, float(end) if isinstance(end, (int, float)) else 0.0

    return max(rows, key=late) if rows else None


@dataclass(frozen=True, eq=False)
class Ending:
    """How the run ended. Frames without an answer are empty."""

    missing_end: Missing | None
    """Why there is neither a scheduler record nor a notice; None if there is one."""
    missing_record: Missing | None
    """Why there is no scheduler record; None if there is one."""
    jobs: Frame
    ends: Frame
    """The job's own closing lines, but those below an error that broke training off and those above training."""
    launchers: Frame
    exits: Frame
    notices: Frame
    """The scheduler's notices in the output."""
    interrupts: Frame
    """Ctrl-C."""
    changes: Frame
    """The job's states in the controller's log."""
    requests: Frame
    """Requeue requests by the application."""
    steps: Frame
    """Logged steps: a closing line above them ended an earlier loop."""
    scores: Frame
    """Printed scores."""
    saves: Frame
    """Saved models."""
    starts: Frame
    """The job's own lines that training starts."""
    failures: tuple[Event, ...] = ()
    """The job's own exceptions, and Ctrl-C, without a later logged step: a closing line above them ended an earlier
    part, such as the training."""

    @cached_property
    def job(self) -> Record | None:
        """The scheduler's record of the last attempt."""
        return last_job(self.jobs)

    @cached_property
    def state(self) -> Value | None:
        """The scheduler's state of the last attempt."""
        return None if self.job is None else self.jobs.value(self.job, "state")

    @cached_property
    def first_failed_node(self) -> tuple[str, ...]:
        """The node of the only task that exited with an error, by srun, which then ends the others; else empty."""
        rows = [row for row in self.exits.events if row.get("source") == "srun" and row.get("exit_code")]
        nodes = tuple({row.node for row in rows if row.node})
        return nodes if len(nodes) == 1 else ()

    @property
    def job_name(self) -> Value | None:
        """The job's name, by the scheduler's newest record."""
        rows = [row for row in self.jobs.records[-1:] if row.get("name")]
        return self.jobs.value(rows[0], "name") if rows else None

    @property
    def by_slurm(self) -> bool:
        """Whether Slurm ran the job, by its records, its notices in the output, or the controller's log."""
        return bool(self.jobs or self.notices or self.changes)

    @property
    def bad_state(self) -> bool:
        """Whether the scheduler recorded a bad end."""
        return self.state is not None and self.state.value in BAD_STATES

    @property
    def running(self) -> bool:
        """Whether the scheduler lists the job as not finished."""
        return self.state is not None and self.state.value in LIVE_STATES

    @cached_property
    def limit_notices(self) -> tuple[Event, ...]:
        """The scheduler's notices that the time limit was reached."""
        return tuple(row for row in self.notices.events if row.get("reason") == "time_limit")

    @property
    def ended_from_outside(self) -> bool:
        """Whether the run was ended from outside, or still runs."""
        return (self.state is not None and self.state.value in OUTSIDE_END_STATES) or bool(self.limit_notices)

    def summary_before(self, row: Event) -> Value | None:
        """The summary of a training that was over before an event: a closing line with a training loss or steps."""
        summaries = [
            end for end in self.ends.events
            if (end.get("train_loss") is not None or end.get("steps")) and follows(row, end)
        ]  # fmt: skip
        return self.ends.value(summaries[-1], "text") if summaries else None

    @cached_property
    def completed(self) -> Value | None:
        """Evidence of a good end: COMPLETED with exit code 0, or the job's own closing line if nothing contradicts
        it."""
        if self.state is not None:
            return self.state if self.state.value == "COMPLETED" else None
        closing_lines = [row for row in self.ends.events if row.get("status") != "aborted" and self._closes(row)]
        if not closing_lines or self.abnormal is not None:
            return None
        if closing_lines[-1].get("status") is None:
            return self.ends.value(closing_lines[-1], "text")
        state = ALL_EXITED if closing_lines[-1].get("all_exited") else REPORTS_END
        state = EVALUATION_ENDED if closing_lines[-1].get("evaluation") else state
        return derived(state, self.ends.value(closing_lines[-1], "status"))

    def _closes(self, row: Event) -> bool:
        """Whether a closing line ended the run: something was trained, and nothing failed below it."""
        scored = any(score.at != row.at for score in self.scores.events)
        if row.get("bare") and not (self.steps or scored or self.saves or self.starts):
            return False
        if row.get("by_save") and self.steps:
            return False  # models are saved in mid-training, too
        if row.get("sums_up") and self.steps and self._has_just_begun:
            return False  # each epoch may end so
        return not any(failure.at.path == row.at.path and failure.at.line > row.at.line for failure in self.failures)

    @property
    def _has_just_begun(self) -> bool:
        """Whether so few steps were logged, or so few of those that are planned, that a time or a result may be one of
        many."""
        step, planned = (self.steps.events[-1].get(name) for name in ("step", "total_steps"))
        is_short = (
            isinstance(step, (int, float)) and isinstance(planned, (int, float)) and step < MIN_DONE_SHARE * planned
        )
        return is_short or len(self.steps.events) < MIN_STEPS_OF_SUMMARY

    @property
    def only_evaluated(self) -> bool:
        """Whether the run trained nothing, and its evaluation came to its end."""
        return self.completed is not None and bool(self.ends) and bool(self.ends.events[-1].get("evaluation"))

    @cached_property
    def own_end(self) -> Claim | None:
        """The run's own closing line, and whether it calls that end aborted; None if something failed or was
        interrupted: then the line says nothing of the run's end."""
        if not self.ends or self.failures:
            return None
        line = self.ends.value(self.ends.events[-1], "text")
        return ABORTED_ITSELF(line=line) if self.aborted_itself else ENDED_ITSELF(line=line)

    @property
    def aborted_itself(self) -> bool:
        """Whether the run's own closing line calls the end aborted."""
        return bool(self.ends) and self.ends.events[-1].get("status") == "aborted"

    @cached_property
    def abnormal(self) -> Value | None:
        """Evidence of a bad end: the scheduler's state, else a launcher's or a shell's report."""
        if self.state is not None:
            return self.state if self.state.value in BAD_STATES else None
        if self._failed is not None:
            frame, row = self._failed
            return frame.value(row, "text")
        return self.notices.value(self.notices.events[-1], "reason") if self.notices.events else None

    @cached_property
    def _failed(self) -> tuple[Frame, Event] | None:
        """The launcher's or a shell's report that a process failed, unless the run ended normally after it: then it is
        about a side process."""
        for frame in (self.launchers, self.exits):
            for row in frame.events:
                failed = exit_signal(row) is not None or row.get("exit_code") not in (None, 0)
                if failed and last_after(row, self.ends.events) is None:
                    return frame, row
        return None

    @cached_property
    def bad_end(self) -> Claim | None:
        """How the run ended badly, as a claim; None if it did not."""
        if (source := self.abnormal) is None:
            return None
        if self.state is not None:
            return RECORDED(state=source)
        if self._failed is None:
            return NOTICE_ENDS.get(str(source.value), NOTICE_REASON)(reason=source)
        row = self._failed[1]
        number = exit_signal(row)
        if number is not None:
            return EXIT_SIGNAL(signal=derived(signal_name(number), source))
        return EXIT_CODE(code=derived(row.get("exit_code"), source, unit="code"))

    @cached_property
    def time(self) -> Value | None:
        """When the run ended, POSIX seconds: by the scheduler's record, else by its notice in the output."""
        if self.job is not None and self.job.get("end") is not None:
            return self.jobs.value(self.job, "end", "time")
        closing = [row for row in self.notices.events if row.time is not None and row.role is EventRole.ROOT]
        return self.notices.value(closing[-1], "time", "time") if closing else None

    @cached_property
    def elapsed(self) -> Value | None:
        """The run's elapsed seconds, from its accounting record."""
        if self.job is None:
            return None
        if isinstance(self.job.get("elapsed_s"), (int, float)):
            return self.jobs.value(self.job, "elapsed_s", "s")
        start, end = self.job.get("start"), self.job.get("end")
        if isinstance(start, (int, float)) and isinstance(end, (int, float)):
            times = (self.jobs.value(self.job, name, "time") for name in ("start", "end"))
            return derived(end - start, *times, unit="s")
        return None


def how_it_ended(state: Value) -> Claim:
    """How the run ended, or that it still runs."""
    return (LISTED_AS if state.value in LIVE_STATES else RUN_ENDED)(state=state)


@fact({**ENDING, **ERRORS})
def ending(evidence: Evidence) -> Ending:
    """Needs no particular input; each answer is None if no record and no line gives it."""
    missing_end = unmet_need(evidence, (("jobs", "notices"),))
    frames = {name: evidence[name] for name in ENDING}
    breaks = _breaks(frames["steps"], evidence["ooms"], evidence["exceptions"])
    frames["ends"] = frames["ends"].filtered(
        lambda row: not isinstance(row, Event) or not _is_of_a_part(row, frames["steps"], breaks)
    )
    errors = [row for row in evidence["exceptions"].events if not row.get("logged") and not row.get("in_summary")]
    steps = latest(frames["steps"].events)
    failures = [
        row
        for row in (*errors, *frames["interrupts"].events)
        if row.role is EventRole.ROOT and last_after(row, steps) is None
    ]
    return Ending(missing_end, evidence.missing("jobs"), **frames, failures=tuple(failures))


def _breaks(steps: Frame, ooms: Frame, exceptions: Frame) -> dict[str, Event]:
    """Path -> the first error below the last logged step, if that is far from the planned one: a closing line below the
    error says that the program caught it and ended. Without any step only a GPU that ran out of memory counts."""
    last = steps.events[-1] if steps else None
    errors = [error for error in ooms.events if error.role is EventRole.ROOT]
    if last is not None:
        step, planned = last.get("step"), last.get("total_steps")
        if not isinstance(step, (int, float)) or not isinstance(planned, (int, float)):
            return {}
        if step >= MIN_DONE_SHARE * planned:
            return {}
        errors += [error for error in exceptions.events if error.role is EventRole.ROOT]
    breaks: dict[str, Event] = {}
    for error in errors:
        earlier = breaks.get(error.at.path)
        if (last is None or follows(error, last)) and (earlier is None or follows(earlier, error)):
            breaks[error.at.path] = error
    return breaks


def _is_of_a_part(closing_line: Event, steps: Frame, breaks: Mapping[str, Event]) -> bool:
    """Whether a closing line says nothing of the run's end: below a break, above the training, or of an evaluation in a
    run that trains."""
    of_evaluation = bool(closing_line.get("evaluation")) and bool(steps)
    return of_evaluation or _is_below_break(closing_line, breaks) or _is_above_training(closing_line, steps)


def _is_below_break(closing_line: Event, breaks: Mapping[str, Event]) -> bool:
    """Whether the training broke off above a closing line."""
    error = breaks.get(closing_line.at.path)
    return error is not None and follows(closing_line, error) is True


def _is_above_training(closing_line: Event, steps: Frame) -> bool:
    """Whether the training went on, or only began, below a closing line: that line ended an earlier part of the work,
    such as the tokenizer's training."""
    last_steps = [step for step in steps.events[-MIN_STEPS_AFTER:] if step.at.path == closing_line.at.path]
    below = [step for step in last_steps if step.at.line > closing_line.at.line]
    if not below or len(below) >= MIN_STEPS_AFTER or len(last_steps) > len(below):
        return len(below) >= MIN_STEPS_AFTER
    step, planned = below[0].get("step"), below[0].get("total_steps")
    if not isinstance(step, (int, float)):
        return False
    return step == 0 or (isinstance(planned, (int, float)) and step < MIN_DONE_SHARE * planned)
