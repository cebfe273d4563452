"""Healthy: no fault found.

Meaning
-------
No fault was found. The verdict is *established* only with positive evidence, not merely without errors: the run came
to its own end, steps were completed, the GPUs did real work, their error counters stayed clean, and the loss fell.

What it looks like
------------------
COMPLETED with exit code zero, or the framework's own message that training is over; logged steps to the end and a
loss that is lower at the end than at the start; SM activity of GPUs that work, or kernels launched, and counters of
uncorrectable errors that did not rise. Only all of these together establish it: without the GPUs' work or without
counters it is at most supported. A log excerpt without an end can be healthy as far as it goes.

Not this family when
--------------------
- Any fault family is found: then the run is not healthy, whatever its exit code.
- The job itself calls its end aborted: then the finding says so, and health cannot be verified.
- Progress cannot be read: then health is unverifiable. A warning (a latent hardware counter, a spike that recovers,
  data wait) changes nothing.

Impact
------
None.

Do next
-------
Nothing; check the warnings, if any.

What it cannot decide
---------------------
What was not measured: without metrics, whether the GPUs did the work and their counters stayed clean; and
whether the model is good at its task.

References
----------
- [NVIDIA DCGM: profiling metrics](https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#profiling-metrics)
- [Slurm: job state codes](https://slurm.schedmd.com/job_state_codes.html)
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Frame, Missing, Value
from trackside.facts.fact import Maybe, all_missing, or_none
from trackside.facts.gpu.gpu_work import GpuWork
from trackside.facts.logs.ending import BAD_STATES, ENDED_WELL, Ending
from trackside.facts.logs.exceptions import Exceptions, error_type, unhandled_exceptions
from trackside.facts.logs.oom_kills import OomKills
from trackside.facts.logs.unread_errors import UnreadErrors
from trackside.facts.training.evaluations import Evaluations
from trackside.facts.training.last_loop import LastLoop
from trackside.facts.training.last_position import last_position, position_claims
from trackside.facts.training.learning import Trajectory
from trackside.facts.training.learning_evidence import LearningEvidence
from trackside.facts.training.loss_curve import LossCurve
from trackside.facts.training.scores import Scores
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, absent, action, present
from trackside.model import Record, Run
from trackside.remedies import NOTHING_TO_DO

HEADLINES = {
    "healthy": Sentence("no fault found; the training loss fell", running="no fault so far; the training loss falls"),
    "slow": Sentence(
        "no fault found, but the GPUs computed little", running="no fault so far, but the GPUs compute little"
    ),
    "unverifiable": Sentence(
        "no fault found; whether the model learned could not be checked",
        running="no fault so far; whether the model learns cannot be checked",
    ),
}
LOG_ENDS_AT = Sentence(
    "no fault found; the log ends at step {done:plain} of {planned:plain}",
    running="no fault so far; whether the model learns cannot be checked",
)
EVALUATION_LOSS_FELL = Sentence(
    "no fault found; the evaluation loss fell", running="no fault so far; the evaluation loss falls"
)
SCORE_IMPROVED = Sentence(
    "no fault found; no training loss was recognized, but {metric} improved",
    running="no fault so far; no training loss was recognized, but {metric} improves",
)
SCORE_IMPROVED_TOO = Sentence("no fault found; {metric} improved", running="no fault so far; {metric} improves")
NO_TRAINING_LOSS = Sentence(
    "no training loss was recognized: {count} of {metric} show how the model learned",
    running="no training loss was recognized: {count} of {metric} show how it learns",
)
EVALUATED = Sentence("no fault found; the evaluation finished")
EVALUATED_WITH_ERRORS = Sentence("no fault found, and the evaluation finished; an error line was not recognized")
ONLY_TRAINING_LOSS_FELL = Sentence(
    "no fault found; the training loss fell, but the evaluation loss rose",
    running="no fault so far; the training loss falls, but the evaluation loss rises",
)
GAINS = {
    HEADLINES["healthy"]: ("the training loss fell", "the training loss falls"),
    ONLY_TRAINING_LOSS_FELL: (
        "the training loss fell, but the evaluation loss rose",
        "the training loss falls, but the evaluation loss rises",
    ),
    EVALUATION_LOSS_FELL: ("the evaluation loss fell", "the evaluation loss falls"),
    SCORE_IMPROVED: ("{metric} improved", "{metric} improves"),
    SCORE_IMPROVED_TOO: ("{metric} improved", "{metric} improves"),
}
"""What each of these answers says of the learning, about a run that ended and about one that goes on."""
END_NOT_KNOWN = {
    (sentence, has_place): Sentence(
        f"no fault found{' up to {place}' if has_place else ''}, and {fell}; how the run ended is not known",
        running=f"no fault so far; {falls}",
    )
    for sentence, (fell, falls) in GAINS.items()
    for has_place in (False, True)
}
"""The same if no line and no record of the end was recognized; whether with the last step."""
ERRORS_NOT_KNOWN = {
    sentence: Sentence(
        f"no fault found, and {fell}; an error line was not recognized",
        running=f"no fault so far, and {falls}; an error line was not recognized",
    )
    for sentence, (fell, falls) in GAINS.items()
}
"""The same if the log has an error line that Trackside does not recognize."""
LOSS_DID_NOT_FALL = Sentence(
    "no fault found, but the loss did not clearly fall", running="no fault so far, but the loss has not clearly fallen"
)
LOSS_WITHOUT_MEANING = Sentence(
    "no fault found; a loss of this kind, as in reinforcement learning, does not show whether the model learned",
    running="no fault so far; a loss of this kind, as in reinforcement learning, does not show if the model learns",
)
LOSS_ROSE = Sentence("no fault found, but the loss rose", running="no fault so far, but the loss rises")
STEP_FAILED = Sentence("step {step} failed with exit code {code}; the batch script went on and exited with zero")
STEP_RECORDED = Sentence("the scheduler recorded {state} for step {step}, with exit code {code}")
SCRIPT_WENT_ON = Sentence("the batch script did not stop when the step failed, so the job counts as completed")
SEE_STEP = Sentence("see in the output why step {step} failed, and let the job script end with its exit code (set -e)")
UNCLEAN_EXIT = Sentence("no fault found in training, but the job did not exit cleanly")
LOG_SAYS_ABORTED = Sentence("no fault found, but the log says that the job was aborted")
RAISED_UNHANDLED = Sentence("the log shows {type}, and no training step was recognized after it")
REPORTED_DONE = Sentence("the job reported that training was done: {line}")
EXIT_NOT_CLEAN = Sentence("the job did not exit cleanly: {how}")
HEALTHY = Sentence(
    "healthy: the run completed, its loss fell, its GPUs computed, and their error counters did not rise"
)
GPUS_NOT_MEASURED = Sentence("the end is normal and the loss fell; GPU activity and hardware errors were not measured")
GPU_REPORTED_ERRORS = Sentence("the end is normal and the loss fell, but a GPU reported errors")
GPUS_LITTLE_USED = Sentence(
    "healthy, but the GPUs were little used: slow, not broken",
    running="healthy so far, but the GPUs are little used: slow, not broken",
)
TRAINED_BUT_FAILED = Sentence("training was done; a process then ended with an error")
NO_SUCCESS_REPORTED = Sentence("no fault was found, but the job itself does not report success")
OVERFITTED = Sentence(
    "the model fits its training data and gets worse on others: it overfits, or the evaluation data differ in kind"
)
NO_FAULT = Sentence("nothing in the inputs points to a fault", running="nothing in the inputs points to a fault so far")
IDLE_GPUS_LOST = Sentence("the GPU-hours of the idle GPUs are lost")
LEARNING_UNKNOWN = Sentence(
    "whether the model learned: no loss or score that shows it was recognized",
    running="whether the model learns: no loss or score that shows it was recognized",
)
END_UNKNOWN = Sentence(
    "how the run ended: no line about its end was recognized", running="how the run will end: it is still running"
)
END_NOT_GIVEN = Sentence(
    "how the run ended: neither a log nor a record of its end was given",
    running="how the run will end: it is still running",
)
HARDWARE_UNKNOWN = Sentence(
    "whether the GPUs did the work and had no errors: neither GPU activity nor error counters were given"
)
PLAN_UNKNOWN = Sentence(
    "whether the run reached the planned {planned}",
    running="whether the run will reach the planned {planned}",
)
ABORT_UNEXPLAINED = Sentence("why the log says that the job was aborted: it may not have reached its target")
PRINT_LOSS = Sentence("print the training loss regularly, so that learning can be verified")
SEE_WARNINGS = Sentence("if it has to be faster, see the warnings for what slows it down")
CHECK_CHECKPOINT = Sentence(
    "check that the last checkpoint is complete before resuming from it, and see in every rank's output why a process "
    "failed after training"
)
EXIT_UNEXPLAINED = Sentence("why a process failed after training was done")
NOTHING_BUT_ERROR = Sentence("nothing to do, unless the error line that Trackside does not recognize matters")
USE_BEST_CHECKPOINT = Sentence(
    "use the checkpoint with the lowest evaluation loss, and check that the evaluation data have the labels and the "
    "preprocessing of the training data"
)
ADD_END = Sentence(
    "if the job is still running, diagnose it again later; if not, add its sacct record or the rest of its log: either "
    "shows how it ended",
    running="nothing to do so far",
)
ADD_OUTPUT = Sentence("add the job's output and its sacct record: metrics alone do not show how it ended")
TEST_GPU = Sentence("run the vendor's diagnostics on that GPU before it gets another long job")
REQUEST_FEWER = Sentence("request only as many GPUs as the job uses, or start a process for each of them")


@dataclass(frozen=True)
class Limits:
    """What proves learning."""

    min_losses: int = 5
    """Minimum number of losses for a reliable fall."""


@dataclass(frozen=True)
class RunEnding:
    """How the run ended, as far as it concerns its health."""

    good: Value | None
    bad: Value | None
    """A bad end after the job's own message that it was done."""
    aborted: Claim | None
    """The job's own closing line, if it calls the end aborted."""
    reported_done: Value | None
    evaluated: bool = False
    """Whether the run was only an evaluation."""


def judge(
    run: Run, ending: Ending, work: GpuWork, evaluations: Evaluations, scores: Scores, exceptions: Exceptions,
    trajectory: Maybe[Trajectory], loss: Maybe[LossCurve], unread: UnreadErrors, kills: OomKills,
    loop: LastLoop, limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """Completed, or at least without a fault as far as the log goes; then GPU and loss evidence."""
    if (nothing := all_missing(trajectory, ending.missing_record, loss)) is not None:
        return nothing
    end, training = _run_ending(ending), or_none(trajectory)
    if end.bad is not None and end.reported_done is None:
        return absent(ending.bad_end if ending.bad_end is not None else EXIT_NOT_CLEAN(how=end.bad))
    if run.disposition in BAD_STATES and end.bad is None:
        return Missing("the records disagree on how the run ended")
    if (claim := _unhandled_exception(ending, exceptions, training)) is not None:
        return absent(claim)
    if work.contradiction is not None:
        return absent(work.contradiction)
    learning = LearningEvidence(or_none(loss), evaluations, scores)
    is_worked_through = loop.done is not None and not unread.rows
    if not learning.readable and end.good is None and not is_worked_through:
        return Missing("neither the end of the run nor its progress can be read")
    if end.good is None and not learning.learned and training is not None and _is_at_first_step(training):
        return Missing("the log ends at its first step")
    variant = "slow" if work.slow else "healthy"
    variant = "unverifiable" if not (learning.learned or end.evaluated) or end.aborted is not None else variant
    if variant == "unverifiable" and end.good is not None and (step := _failed_step(kills.steps)) is not None:
        return _step_finding(kills.steps, step, end.good)
    implies = [
        _conclusion(end, learning, work, variant),
        *([OVERFITTED()] if learning.overfits else []),
        *([IDLE_GPUS_LOST()] if work.unused is not None else []),
    ]
    return present(
        _certainty(end, learning, work, training, unread, limits),
        "none",
        [*_shows(end, ending.bad_end, learning, work, training), *(() if learning.readable else loop.done_claims)],
        headline=_headline(end, learning, variant, training, unread),
        implies=implies,
        cannot_decide=[*unread.open_questions, *_open_questions(end, learning, work, training)],
        actions=_actions(end, learning, work, variant, training, unread),
        variant=variant,
    )


def _failed_step(steps: Frame) -> Record | None:
    """The first step that failed with an exit code, other than the batch script's own."""
    own = (row for row in steps.records if not str(row.get("id")).endswith((".batch", ".extern")))
    return next((row for row in own if row.get("state") == "FAILED" and row.get("exit_code")), None)


def _step_finding(steps: Frame, row: Record, good_end: Value) -> Finding:
    """The finding about a job that completed although one of its steps failed."""
    values = {"step": steps.value(row, "id"), "code": steps.value(row, "exit_code")}
    return present(
        Certainty.SUPPORTED,
        "job",
        [STEP_RECORDED(state=steps.value(row, "state"), **values), ENDED_WELL(state=good_end)],
        headline=STEP_FAILED(**values),
        implies=[SCRIPT_WENT_ON()],
        cannot_decide=[LEARNING_UNKNOWN()],
        actions=[action(SEE_STEP, step=values["step"])],
        variant="unverifiable",
    )


def _headline(
    end: RunEnding, learning: LearningEvidence, variant: str, training: Trajectory | None, unread: UnreadErrors
) -> Claim:
    """The answer, limited to what was shown."""
    if end.aborted is not None:
        return LOG_SAYS_ABORTED()
    if end.bad is not None:
        return UNCLEAN_EXIT()
    if end.evaluated:
        return (EVALUATED_WITH_ERRORS if unread.rows else EVALUATED)()
    if variant == "healthy" and not (learning.loss_fell or learning.evaluations.fell):
        if learning.right_way and learning.scores.best is not None:
            sentence = SCORE_IMPROVED if learning.only_scores else SCORE_IMPROVED_TOO
            return _learned(sentence, end, training, unread, metric=learning.scores.best.name)
        curve = None if learning.loss is None else learning.loss.curve
        if curve is None or not curve.level_has_meaning:
            return LOSS_WITHOUT_MEANING()
        return (LOSS_ROSE if curve.has_risen else LOSS_DID_NOT_FALL)()
    if variant == "healthy":
        sentence = HEADLINES["healthy"] if learning.loss_fell else EVALUATION_LOSS_FELL
        if learning.overfits:
            sentence = ONLY_TRAINING_LOSS_FELL
        return _learned(sentence, end, training, unread)
    if variant == "unverifiable" and (short := _stops_short(end, training)) is not None:
        return LOG_ENDS_AT(done=short[0], planned=short[1])
    return HEADLINES[variant]()


def _learned(
    sentence: Sentence, end: RunEnding, training: Trajectory | None, unread: UnreadErrors, **values: Value
) -> Claim:
    """The claim that the model learned, with what keeps it from being more than possible."""
    if not _has_ended(end, training):
        place = None if training is None else last_position(training)
        values |= {} if place is None else {"place": place}
        return END_NOT_KNOWN[sentence, place is not None](**values)
    return (ERRORS_NOT_KNOWN[sentence] if unread.rows else sentence)(**values)


def _has_ended(end: RunEnding, training: Trajectory | None) -> bool:
    """Whether the run came to its own end, or to its last planned step."""
    complete = training is not None and training.is_complete
    return end.good is not None or (complete and end.bad is None)


def _stops_short(end: RunEnding, training: Trajectory | None) -> tuple[Value, Value] | None:
    """Steps done and planned, if the log shows neither the end of the run nor all its steps."""
    if training is None or end.good is not None or end.bad is not None or end.aborted is not None:
        return None
    done, planned = training.done, training.planned
    if done is None or planned is None or training.in_epochs or done.number >= planned.number:
        return None
    return done, planned


def _is_at_first_step(training: Trajectory) -> bool:
    """Whether step 0 is all that the log shows: no step is known to have been completed."""
    return len(training.points) == 1 and training.done is not None and training.done.value == 0


def _is_short_piece(end: RunEnding, learning: LearningEvidence) -> bool:
    """Whether the log prints its loss, but neither enough of them nor its end: then more of the log is missing."""
    return end.good is None and end.aborted is None and learning.loss is not None and bool(learning.loss.curve.finite)


def _run_ending(ending: Ending) -> RunEnding:
    """The job's own message that it was done counts against a bad end only if no scheduler evidence contradicts it."""
    success_lines = [row for row in ending.ends.events if row.get("status") == "success"]
    bad_end, good_end = ending.abnormal, ending.completed
    has_scheduler_evidence = ending.state is not None or bool(ending.notices)
    done_line = (
        ending.ends.value(success_lines[-1], "text")
        if success_lines and bad_end is not None and not has_scheduler_evidence
        else None
    )
    return RunEnding(
        good_end,
        bad_end,
        ending.own_end if good_end is None and ending.aborted_itself else None,
        done_line,
        ending.only_evaluated,
    )


def _unhandled_exception(ending: Ending, exceptions: Exceptions, training: Trajectory | None) -> Claim | None:
    """An exception that the run did not survive as far as known, unless the scheduler says that the run completed."""
    if ending.completed is not None and ending.jobs:
        return None
    own_exceptions = [
        row
        for row in exceptions.frame.events
        if row.get("about") not in ("signal", "wrapper") and row.at.path not in exceptions.went_on
    ]
    unhandled = unhandled_exceptions(own_exceptions, () if training is None else training.progress.events)
    if not unhandled:
        return None
    row = exceptions.final if exceptions.final in unhandled else unhandled[0]
    return RAISED_UNHANDLED(type=error_type(exceptions.frame, row))


def _conclusion(end: RunEnding, learning: LearningEvidence, work: GpuWork, variant: str) -> Claim:
    """The conclusion, limited to what was shown."""
    if end.aborted is not None:
        return NO_SUCCESS_REPORTED()
    if end.bad is not None:
        return TRAINED_BUT_FAILED()
    if end.good is None or not (learning.loss_fell or learning.evaluations.fell):
        return NO_FAULT()
    if work.complete or variant == "slow":
        return {"slow": GPUS_LITTLE_USED, "healthy": HEALTHY, "unverifiable": LEARNING_UNKNOWN}[variant]()
    return GPU_REPORTED_ERRORS() if work.unclean else GPUS_NOT_MEASURED()


def _certainty(
    end: RunEnding,
    learning: LearningEvidence,
    work: GpuWork,
    training: Trajectory | None,
    unread: UnreadErrors,
    limits: Limits,
) -> Certainty:
    """More than possible needs the end, learning, and a log without unknown errors; established also needs GPU work and
    clean hardware."""
    if not _has_ended(end, training) or unread.rows or not learning.right_way:
        return Certainty.POSSIBLE
    if learning.only_scores and learning.score_values < limits.min_losses:
        return Certainty.POSSIBLE
    fell_enough = (
        learning.loss_fell and learning.loss is not None and len(learning.loss.curve.finite) >= limits.min_losses
    )
    is_proven = end.good is not None and fell_enough and work.complete
    return Certainty.ESTABLISHED if is_proven else Certainty.SUPPORTED


def _shows(
    end: RunEnding, bad_end: Claim | None, learning: LearningEvidence, work: GpuWork, training: Trajectory | None
) -> list[Claim]:
    """Its end, steps, work, learning and hardware."""
    shows = [ENDED_WELL(state=end.good)] if end.good is not None else []
    shows += [end.aborted] if end.aborted is not None else []
    if end.bad is not None and end.reported_done is not None:
        shows += [REPORTED_DONE(line=end.reported_done), EXIT_NOT_CLEAN(how=end.bad) if bad_end is None else bad_end]
    shows += () if training is None else position_claims(training)
    loss, evaluated = learning.loss, learning.evaluations.claims
    expects_loss = training is not None and not (evaluated or learning.only_scores or end.evaluated)
    if loss is not None and (loss.curve.finite or expects_loss):
        shows += loss.claims
    if not (learning.loss_fell or learning.evaluations.fell):
        evaluated = (*evaluated, *learning.scores.claims)
    work_done = [*([work.unused] if work.unused is not None else []), *work.claims]
    return [*shows, *evaluated, *work.unclean, *work_done, *work.clean]


def _open_questions(
    end: RunEnding, learning: LearningEvidence, work: GpuWork, training: Trajectory | None
) -> list[Claim]:
    """What was not measured or not seen."""
    claims = [] if learning.learned or end.evaluated else [LEARNING_UNKNOWN()]
    if learning.only_scores and learning.scores.best is not None:
        best = learning.scores.best
        claims.append(NO_TRAINING_LOSS(count=best.count, metric=best.name))
    if end.bad is not None:
        claims.append(EXIT_UNEXPLAINED())
    elif end.good is None and end.aborted is None:
        claims.insert(0, END_NOT_GIVEN() if training is None else END_UNKNOWN())
    claims += work.open_questions if work.measured else [HARDWARE_UNKNOWN()]
    planned, done = (None, None) if training is None else (training.planned, training.done)
    if end.good is None and planned is not None and (done is None or done.number < planned.number):
        claims.append(PLAN_UNKNOWN(planned=planned))
    return [*claims, ABORT_UNEXPLAINED()] if end.aborted is not None else claims


def _actions(
    end: RunEnding,
    learning: LearningEvidence,
    work: GpuWork,
    variant: str,
    training: Trajectory | None,
    unread: UnreadErrors,
) -> list[Action]:
    """What would show more, or improve the run."""
    after = [TEST_GPU] if work.unclean else []
    after += [REQUEST_FEWER] if work.unused is not None else []
    if end.good is None and training is None:
        first = [ADD_OUTPUT]
    elif end.bad is not None:
        first = [CHECK_CHECKPOINT]
    elif end.evaluated:
        first = [NOTHING_TO_DO]
    elif not learning.learned and (_stops_short(end, training) is not None or _is_short_piece(end, learning)):
        first = [ADD_END]
    elif not learning.learned:
        first = [PRINT_LOSS]
    else:
        last = NOTHING_TO_DO if end.good is not None or end.aborted is not None else ADD_END
        first = [SEE_WARNINGS] if variant == "slow" else [] if after else [last]
    first += [USE_BEST_CHECKPOINT] if learning.overfits else []
    sentences = [sentence for sentence in (*first, *after) if sentence is not NOTHING_TO_DO or not learning.overfits]
    if unread.rows:
        sentences = [NOTHING_BUT_ERROR if sentence is NOTHING_TO_DO else sentence for sentence in sentences]
    return [action(sentence) for sentence in sentences]


FAMILY = Family(
    code="G1",
    role="health",
    id="healthy",
    title="Healthy: no fault found",
    example=("healthy", "busy-wait"),
    judge=judge,
    limits=Limits(),
    rivals=("E1",),
    collect=(
        "the job's whole output, so that its end and its loss can be read",
        "sacct for the final state",
        "GPU activity and error counters of the run",
    ),
    cost_kind="nothing",
)
