"""Application exception during training.

Meaning
-------
Training was under way, then a Python exception that the job did not handle ended a rank, and with it the run.

What it looks like
------------------
A traceback of the job's own after at least one completed step, no logged step after it, a non-zero exit.
Other ranks then lose their peer and report more errors; the launcher summarizes it as a failed child.

Not this family when
--------------------
- Steps were printed after the exception: then it was handled.
- No step had been completed and the GPUs had not worked: that is a crash at startup.
- The exception is about GPU memory, a collective, a rendezvous, a checkpoint that cannot be loaded, storage or an
  interrupt: those have families of their own.
- The exception says that the loss is not finite: then the divergence is the cause.

Impact
------
The work after the last checkpoint.

Do next
-------
Read the named frame; fix the data, the configuration or the code, and resume. If the log lacks the traceback, look for
it above the excerpt and in the log of the rank that failed first.

What it cannot decide
---------------------
Whether the same input would fail again at the same step.

References
----------
- [PyTorch: error propagation of torchrun](https://docs.pytorch.org/docs/stable/elastic/errors.html)
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Value
from trackside.facts.gpu.startup import StartupUse
from trackside.facts.hardware.reports import HardwareReports
from trackside.facts.logs.deaths import Deaths
from trackside.facts.logs.ending import Ending, exit_signal
from trackside.facts.logs.error_remedies import ErrorPlace, error_remedy
from trackside.facts.logs.exceptions import (
    Exceptions,
    error_in_brief,
    error_type,
    is_raised,
    is_raised_in_import,
    named_exception,
    source_line,
)
from trackside.facts.logs.fault_rules import classify
from trackside.facts.logs.fault_rules.rule import FaultClass
from trackside.facts.logs.order import follows, last_after, points_before
from trackside.facts.logs.restarts import MAY_RECUR, LauncherRestarts
from trackside.facts.logs.startup_errors import RAISED_ON
from trackside.facts.logs.unread_errors import UnreadErrors, unread_finding
from trackside.facts.ranks import cited_ranks, ranks_of
from trackside.facts.training.last_loop import LastLoop
from trackside.facts.training.learning import Trajectory, cited_loss, place_of, printed_loss
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, absent, action, present
from trackside.model import Event, EventRole
from trackside.remedies import PROGRAMMING_ERRORS, SUSPECTS


@dataclass(frozen=True)
class Limits:
    """When a run counts as training if no point can be read."""

    training_s: float = 180.0
    """Seconds of GPU work; less may be startup: the limit of A1."""


FAMILY_TOPICS = ("application", "cuda", "dataloader", "host_memory", None)
"""Topics of this family's exceptions."""
AMBIGUOUS_CUDA_ERRORS = ("unspecified launch failure", "unknown error")
"""CUDA errors that a lost GPU and a faulty kernel both cause (CUDA runtime, cudaError)."""

TRAINING_REACHED = Sentence("before the error, the log reaches {place}, loss {loss}")
GPUS_HAD_COMPUTED = Sentence(
    "the GPUs had computed for {seconds} before the error, though no logged step could be read"
)
TRAINING_REACHED_PLACE = Sentence("before the error, the log reaches {place}")
TRAINING_RAN = Sentence("the last progress line before the error: {line}")
WORK_BEFORE = Sentence("training had begun: {line}")
WORK_AFTER = Sentence("training went on: {line}")
RAISED_AT = Sentence("raised at {frame}")
LAST_OWN_LINE = Sentence("last line of the job's own code in the traceback: {frame}")
FRAME_CLAIMS = {"user_frame": LAST_OWN_LINE, "frame": RAISED_AT}
JOB_AT_FAULT = Sentence("the job's own code, data or configuration ended the run, not the cluster")
GPU_OR_CODE = Sentence("whether the GPU or a CUDA kernel of the job failed: no kernel log of the node was given")
CLASS_REMEDIES = {
    "code": Sentence("fix the code that the traceback leads to, and resume from the last checkpoint if there is one"),
    "data": Sentence(
        "find the input that this step read, fix or drop it, and resume from the last checkpoint if there is one"
    ),
    "config": Sentence("fix the setting that the error names, and resume from the last checkpoint if there is one"),
    "env": Sentence("fix the environment as the error says, and resume from the last checkpoint if there is one"),
    "asset": Sentence("make the file or repository available, and resume from the last checkpoint if there is one"),
}
CHECK_PLACE = {
    kind: Sentence(f"check {{place}} and {suspect}, then resume from the last checkpoint if there is one")
    for kind, suspect in SUSPECTS.items()
}
FOLLOW_ERROR = Sentence(
    "fix what the error message says, and resume from the last checkpoint if there is one; the log has no traceback of "
    "it"
)
FIX_PLACE = Sentence("fix {place} or what it calls, and resume from the last checkpoint if there is one")
CRASHED = Sentence("crashed during training: {error}")
CRASHED_AT = Sentence("crashed during training in {place}: {error}")
CRASHED_AFTER = Sentence("crashed after training: {error}")
CRASHED_AFTER_AT = Sentence("crashed after training, in {place}: {error}")
TRAINING_WAS_OVER = Sentence("the training was over before the error: {line}")
RERUN_REST = Sentence("then rerun only what comes after the training, with the saved model")
FIX_PLACE_AND_RERUN_REST = Sentence(
    "fix {place} or what it calls, then rerun only what comes after the training, with the saved model"
)
FIX_AND_RERUN_REST = Sentence(
    "fix what the error says, then rerun only what comes after the training, with the saved model"
)
RESTARTED_AFTER = Sentence("the launcher restarted the workers after an exception: {error}")
COMPLETED = Sentence("the run completed: {how}")
COMPLETED_IN_SPITE = Sentence("the run completed in spite of {error}: {how}")
MIN_SCORES = 3
"""Printed scores from which on a model had been trained before an exception, though no logged step could be read."""
MIN_SIGNAL_CODE = 124
"""Exit codes from here on have meanings of their own: time limits, commands that cannot be run, signals."""
UNSEEN = Sentence("crashed during training with exit code {code}; the traceback is not in this log")
FAILED_FIRST = Sentence("first report of a failure: {line}")
USUALLY_RAISED = Sentence("a process that ends so has usually raised an exception")
WHAT_WAS_RAISED = Sentence("what the process raised: its traceback stands above this excerpt, or in another file")
FIND_TRACEBACK = Sentence(
    "look for the traceback above this excerpt and in the logs of that rank (torchrun --log-dir keeps one per rank)"
)
RAISED_BEFORE_STEP = Sentence("the log shows {type} before any logged step")


def judge(
    exceptions: Exceptions,
    trajectory: Trajectory,
    restarts: LauncherRestarts,
    ending: Ending,
    use: StartupUse,
    reports: HardwareReports,
    unread: UnreadErrors,
    deaths: Deaths,
    loop: LastLoop,
    limits: Limits,
) -> Finding:
    """The earliest of the job's own unhandled exceptions, if a step was completed before it; else an error line of any
    kind that ends the log; else a launcher's report that a process failed whose traceback is not in the log."""
    own_exceptions = [row for row in exceptions.unhandled if row.get("about") in FAMILY_TOPICS]
    good_end = ending.completed
    if (recovered := _survived_exception(exceptions, restarts)) is not None and (
        good_end is not None or not own_exceptions
    ):
        return recovered
    if good_end is not None and ending.jobs:
        errors = own_exceptions or [row for row in exceptions.frame.events if row.role is EventRole.ROOT]
        if not errors:
            return absent(COMPLETED(how=good_end))
        return absent(COMPLETED_IN_SPITE(error=error_in_brief(exceptions.frame, errors[-1]), how=good_end))
    if not own_exceptions:
        has_trained = bool(trajectory.points) or any(_loop_claims(loop, row) for row in unread.rows[-1:])
        unread_end = unread_finding(unread, CRASHED) if has_trained and not exceptions.unhandled else None
        unseen = None if reports.faults else _unseen_exception(exceptions, trajectory, ending, deaths)
        return unread_end or unseen or absent(exceptions.none_of_job)
    row = own_exceptions[0]
    training = _training_before(trajectory, use, row, limits)
    is_startup = training is None and is_raised_in_import(row)
    milestones = (
        [] if is_startup or training is not None else _milestone_claims(trajectory, row) or _loop_claims(loop, row)
    )
    if training is None and not milestones and ending.summary_before(row) is None:
        if exceptions.is_other_topic(exceptions.final):
            return absent(exceptions.other_topic(exceptions.final))
        return absent(RAISED_BEFORE_STEP(type=error_type(exceptions.frame, row), count=trajectory.count))
    over = _training_over(ending, row)
    frame_field = next((name for name in FRAME_CLAIMS if row.get(name) is not None), None)
    copies = [exception for exception in own_exceptions if exception.get("type") == row.get("type")]
    ranks = cited_ranks(exceptions.frame, copies)
    claim = (
        exceptions.raised_claim(row)
        if ranks is None or not is_raised(row)
        else RAISED_ON(**exceptions.values(row), ranks=ranks)
    )
    shows = [claim, *([] if training is None else [training]), *milestones, *over]
    kind = classify(row)
    error, source = error_in_brief(exceptions.frame, row), source_line(exceptions.frame, row)
    is_guess = kind != "code" and str(row.get("type")).rpartition(".")[2] in PROGRAMMING_ERRORS
    # A CUDA error may be the GPU's: without a kernel log it is undecided.
    may_be_gpu = row.get("about") == "cuda" and not reports.has_kernel_log
    is_ambiguous = may_be_gpu and any(text in str(row.get("message")) for text in AMBIGUOUS_CUDA_ERRORS)
    return present(
        Certainty.SUPPORTED if may_be_gpu else Certainty.ESTABLISHED,
        "unknown" if is_ambiguous else "job",
        shows
        if frame_field is None
        else [*shows, FRAME_CLAIMS[frame_field](frame=exceptions.frame.value(row, frame_field))],
        headline=_headline(error, source, bool(over)),
        implies=[] if is_ambiguous else [JOB_AT_FAULT()],
        cannot_decide=[GPU_OR_CODE()] if is_ambiguous else [],
        actions=_actions(_specific_remedy(exceptions, row, kind), kind, source, is_guess, bool(over)),
        since=row.time,
        at=row.at,
        ranks=ranks_of(copies),
        nodes=(row.node,) if row.node else ending.first_failed_node,
        fault_class=kind,
        exception=named_exception(row),
    )


def _specific_remedy(exceptions: Exceptions, row: Event, kind: FaultClass) -> Action | None:
    """What to change, if the message shows it, or if nothing but the message shows it."""
    remedy = error_remedy(exceptions.frame, row, kind, ErrorPlace())
    return action(FOLLOW_ERROR) if remedy is None and kind == "code" and not row.get("frames") else remedy


def _training_over(ending: Ending, row: Event) -> list[Claim]:
    """That the training was over before an exception, by a closing line above it."""
    lines = [
        end for end in ending.ends.events
        if end.get("status") != "aborted" and end.at.path == row.at.path and follows(row, end)
    ]  # fmt: skip
    return [TRAINING_WAS_OVER(line=ending.ends.value(end, "text")) for end in lines[-1:]]


def _headline(error: Value, place: Value | None, over: bool) -> Claim:
    """``over``: whether the training was over."""
    if place is None:
        return CRASHED_AFTER(error=error) if over else CRASHED(error=error)
    return CRASHED_AFTER_AT(error=error, place=place) if over else CRASHED_AT(error=error, place=place)


def _actions(
    specific: Action | None, kind: FaultClass, place: Value | None, is_guess: bool, over: bool
) -> list[Action]:
    """What to mend and to repeat: not the training if that was over. ``specific``: the remedy that the error names."""
    if not over:
        return [specific or _remedy(kind, place, is_guess)]
    if specific is not None:
        return [specific, action(RERUN_REST)]
    return [action(FIX_AND_RERUN_REST) if place is None else action(FIX_PLACE_AND_RERUN_REST, place=place)]


def _remedy(kind: FaultClass, place: Value | None, is_guess: bool) -> Action:
    """What to change, at the line of the job's own code if a traceback shows it."""
    if place is not None and kind == "code":
        return action(FIX_PLACE, place=place)
    if place is not None and (is_guess or kind in ("config", "data")):
        return action(CHECK_PLACE[kind], place=place)
    return action(CLASS_REMEDIES[kind])


def _unseen_exception(exceptions: Exceptions, trajectory: Trajectory, ending: Ending, deaths: Deaths) -> Finding | None:
    """A process that failed with an exit code while the job trained, as a launcher or Slurm reports it, if nothing in
    the log says why: its traceback stands above an excerpt, or in another file."""
    has_exception = any(row.role is EventRole.ROOT for row in exceptions.frame.events)
    has_stop = exceptions.stops or ending.notices or ending.interrupts or ending.ended_from_outside
    if has_exception or has_stop or deaths.report is not None or deaths.memory or deaths.evidence["timeouts"]:
        return None
    failed = [
        (frame, row) for frame in (ending.launchers, ending.exits) for row in frame.events
        if isinstance(status := row.get("exit_code"), int) and 0 < status < MIN_SIGNAL_CODE and exit_signal(row) is None
    ]  # fmt: skip
    frame, row = next(((of, row) for of, row in failed if row.get("first")), failed[0] if failed else (None, None))
    if frame is None or row is None or not trajectory.points or trajectory.is_complete:
        return None
    if last_after(row, trajectory.points) is not None:
        return None
    rank = row.get("global_rank")
    return present(
        Certainty.POSSIBLE,
        "unknown",
        [FAILED_FIRST(line=frame.value(row, "text")), *trajectory.last_logged_claims],
        headline=UNSEEN(code=frame.value(row, "exit_code")),
        implies=[USUALLY_RAISED()],
        cannot_decide=[WHAT_WAS_RAISED()],
        actions=[action(FIND_TRACEBACK)],
        since=row.time,
        at=row.at,
        ranks=(rank,) if isinstance(rank, int) else (),
    )


def _training_before(trajectory: Trajectory, use: StartupUse, row: Event, limits: Limits) -> Claim | None:
    """Evidence that training was under way before an exception: a point, else long GPU work."""
    before, frame = points_before(trajectory.points, row), trajectory.progress
    if before:
        place = place_of(frame, before[-1])
        if place.unit and printed_loss(before[-1]) is not None:
            return TRAINING_REACHED(place=place, loss=cited_loss(frame, before[-1]))
        return TRAINING_REACHED_PLACE(place=place) if place.unit else TRAINING_RAN(line=place)
    work_s = use.trained(limits.training_s)
    return None if work_s is None else GPUS_HAD_COMPUTED(seconds=work_s)


def _milestone_claims(trajectory: Trajectory, row: Event) -> list[Claim]:
    """The last checkpoint or evaluation of a step before an exception, else the first one after it."""
    frames = (trajectory.saves, trajectory.evaluations)
    marks = [(frame, mark) for frame in frames for mark in frame.events if mark.get("step")]
    before = [pair for pair in marks if points_before([pair[1]], row)]
    if not marks:
        scores = [score for score in trajectory.scores.events if points_before([score], row)]
        before = [(trajectory.scores, score) for score in scores] if len(scores) >= MIN_SCORES else []
    sentence = WORK_BEFORE if before else WORK_AFTER
    return [sentence(line=frame.value(mark, "text")) for frame, mark in (before[-1:] or marks[:1])]


def _loop_claims(loop: LastLoop, row: Event) -> list[Claim]:
    """That a loop was at work before an exception, though no logged step could be read."""
    line = loop.work_before(row)
    return [] if line is None else [WORK_BEFORE(line=line)]


def _survived_exception(exceptions: Exceptions, restarts: LauncherRestarts) -> Finding | None:
    """An exception after which the launcher restarted the workers: not the cause of the end, but it may recur."""
    for row in exceptions.frame.events:
        if row.role is not EventRole.ROOT or row.get("about") not in FAMILY_TOPICS or row.get("logged"):
            continue
        if restart_claims := restarts.restart_claims(row):
            return present(
                Certainty.SUPPORTED,
                "job",
                [exceptions.raised_claim(row), *restart_claims],
                headline=RESTARTED_AFTER(error=error_in_brief(exceptions.frame, row)),
                implies=[MAY_RECUR()],
                actions=[action(CLASS_REMEDIES["code"])],
                since=row.time,
                at=row.at,
                ranks=() if row.rank is None else (row.rank,),
                exception=named_exception(row),
                latent=True,
            )
    return None


FAMILY = Family(
    code="H2",
    id="application-exception",
    title="Application exception during training",
    example=("app-exception", "timeline"),
    judge=judge,
    limits=Limits(),
    explains=("C1", "C2", "F3", "H1", "H3"),
    rivals=("A1", "E1"),
    collect=("every rank's output with its tracebacks",),
)
