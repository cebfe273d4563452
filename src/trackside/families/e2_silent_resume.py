"""Resume failed: the checkpoint was not loaded.

Meaning
-------
A run that was to resume from a checkpoint started from scratch without saying so, or any run died while it loaded
a checkpoint or weights. The first looks healthy, and wastes all that the run before it had computed.

What it looks like
------------------
Silent: the run depends on another run, restarts it or follows its requeue, but no load message is printed, the
steps start over and the loss is back at the parent's first value instead of its last. Or the steps continue and only
the loss is back: the step counter was restored, the weights were not. A library's warning that the requested
checkpoint is missing and that training starts from random weights. Crash: an exception in the load, of a resume,
an evaluation or a start from pretrained weights: size mismatch, missing keys, a truncated archive, an empty folder.

Not this family when
--------------------
- Fine-tuning loads base weights and trains: that is not a resume.
- The warning that no checkpoint exists belongs to a first run.
- The job depends on one that did not train.
- The loss continues where the parent stopped; or the steps do, and the loss is not back at its first value.
- Writing a checkpoint failed: that is a storage fault.

Impact
------
Silent: the parent's whole computation is repeated. Crash: nothing runs until it is fixed.

Do next
-------
Silent: point the resume argument at the last checkpoint of the run before it, and rerun; if only the steps
continued, load the weights too. Corrupt file: resume from the previous checkpoint. Mismatch: build the model as the
checkpoint has it: base model, vocabulary, sizes.

What it cannot decide
---------------------
Whether the run was meant to resume, if neither the scheduler nor an argument shows it. Whether other data raised the
loss, if the steps continue.

References
----------
- [Megatron-LM: checkpointing.py](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/checkpointing.py)
- [DeepSpeed: model checkpointing](https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html)
- [PyTorch: serialization](https://docs.pytorch.org/docs/stable/notes/serialization.html)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trackside.evidence import Missing, Value, derived
from trackside.facts.logs.error_remedies import weights_remedy
from trackside.facts.logs.exceptions import error_in_brief, named_exception
from trackside.facts.logs.state_dict_errors import SIZE_MISMATCH
from trackside.facts.training.learning import TrainingCurve, Trajectory, numeric_field
from trackside.facts.training.parent_run import ParentRun
from trackside.facts.training.resume import (
    CHECKPOINT_PATH,
    NEEDED_TORCH,
    OTHER_WORLD_SIZE,
    LoadFailure,
    Resume,
    load_failure,
)
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, present
from trackside.model import Event, Run
from trackside.remedies import CHECK_PATH, CHECK_RELATIVE_PATH


@dataclass(frozen=True)
class Limits:
    """When a run started over."""

    lost_progress_share: float = 0.5
    """Training started over if its first loss is higher than the parent's last one by at least this share of what the
    parent had gained. A true resume loses a few percent (optimizer state and data order differ)."""
    same_loss_share: float = 0.02
    """First losses this close are the same start: same seed, same initial weights. If the steps continue, a loss this
    close to the parent's first one, or higher, is back at its start."""
    restart_step_share: float = 0.2
    """If the first step is at most this share of the parent's last step, the run started over."""
    resume_step_share: float = 0.8
    """If the first step is at least this share of the parent's last step, the run continued."""


RESUME_FAILED = Sentence("resume failed: {error}")
LOAD_FAILED = Sentence("loading a checkpoint failed: {error}")
"""The same of a run that no line shows to be a resume: an evaluation, or a start from pretrained weights."""
CHECKPOINT_NOT_FOUND = Sentence("checkpoint not found: {path}")
FRESH_START = Sentence("the checkpoint was not loaded: training started from scratch")
NO_CHECKPOINT = Sentence("the resume found no checkpoint")
NOT_RESUMED = Sentence("did not resume from job {parent}: training started from scratch")
WEIGHTS_NOT_RESUMED = Sentence(
    "the steps go on from job {parent}, but the weights do not: the loss is back at its start"
)
ATTEMPT_WEIGHTS_NOT_RESUMED = Sentence(
    "the steps go on from the attempt before, but the weights do not: the loss is back at its start"
)
ATTEMPT_NOT_RESUMED = Sentence("attempt {attempt} of the job did not resume: it started from scratch")
RESUME_SIZES_DIFFER = Sentence("resume failed: {parameter} is {saved} in the checkpoint and {expected} in the model")
SIZES_DIFFER = Sentence(
    "the checkpoint does not fit the model: {parameter} is {saved} in the checkpoint and {expected} in the model"
)
LOAD_RAISED = Sentence("loading the checkpoint raised {type}: {message}")
FAILURE_MEANINGS: dict[LoadFailure, Sentence] = {
    "mismatch": Sentence("the checkpoint's sizes or names do not match the model"),
    "world_size": Sentence("ZeRO's optimizer states are split by ranks: they fit only as many ranks as saved them"),
    "corrupt": Sentence("the checkpoint file is truncated or damaged, as after an interrupted write"),
    "absent": Sentence("there is no valid checkpoint at the path that the run tried"),
    "unreadable": Sentence("the checkpoint could not be loaded"),
    "old_torch": Sentence("the installed torch is too old for this file; the file itself is not at fault"),
    "not_weights": Sentence(
        "torch.load refused the file because it holds more than weights: weights_only=True is its default since "
        "recent versions"
    ),
}
FAILURE_REMEDIES: dict[LoadFailure, Sentence] = {
    "mismatch": Sentence("use the base model, vocabulary and sizes of the run that wrote the checkpoint"),
    "world_size": Sentence(
        "resume on {saved:ranks}; or load only the weights, with a new optimizer; or convert the checkpoint to "
        "DeepSpeed's universal format (ds_to_universal), and load that"
    ),
    "corrupt": Sentence("resume from the previous checkpoint, and check the free disk space"),
    "absent": Sentence("point the resume argument at a complete checkpoint"),
    "unreadable": Sentence("do what the message says; if it names no remedy, resume from the previous checkpoint"),
    "old_torch": Sentence("upgrade torch to {version} or later, or save the checkpoint as safetensors"),
    "not_weights": Sentence(
        "load it with weights_only=False if you trust the file, or list its classes with "
        "torch.serialization.add_safe_globals"
    ),
}
LOAD_REMEDIES: dict[LoadFailure, Sentence] = {
    "mismatch": Sentence(
        "build the model as the checkpoint has it: the same architecture, vocabulary and number of classes; or load "
        "only the parameters that fit, if the others are to be trained anew"
    ),
    "corrupt": Sentence(
        "resume from the previous checkpoint, or download the file again if it was downloaded; check the free disk "
        "space before the next save"
    ),
    "absent": Sentence("check the path of the checkpoint, relative to the folder in which the job starts"),
    "unreadable": Sentence("do what the message says; if it names no remedy, try another checkpoint"),
}
"""The same of a run that no line shows to be a resume."""
OLD_TORCH = Sentence("the checkpoint could not be loaded: it needs torch {version} or later")
OTHER_WORLD_SIZE_HEADLINE = Sentence(
    "resume failed: the checkpoint was saved by {saved:ranks}, and this run has {current}"
)
NOT_WEIGHTS = Sentence(
    "the checkpoint could not be loaded: torch.load refused the checkpoint, which holds more than weights"
)
CHECKPOINT_LOADED = Sentence("a checkpoint was loaded: {line}")
LOSS_CONTINUED = Sentence("the first loss, {first}, continues the parent run's last loss, {last}")
STEPS_CONTINUED = Sentence("the first logged step, {step}, continues the parent run's last, {end}")
STARTED_LATER = Sentence("the first logged step is {step}: not a fresh start")
LOSS_RESTARTED = Sentence("the first loss is {first}; the parent run started at {head} and reached {tail}")
STEPS_RESTARTED = Sentence("the first logged step is {step}; the parent run had reached {end}")
LOSS_CONTINUED_ATTEMPT = Sentence("the first loss, {first}, continues the last loss of the attempt before it, {last}")
STEPS_CONTINUED_ATTEMPT = Sentence(
    "the first logged step, {step}, continues the last one of the attempt before it, {end}"
)
LOSS_RESTARTED_ATTEMPT = Sentence(
    "the first loss is {first}; the attempt before it started at {head} and reached {tail}"
)
STEPS_RESTARTED_ATTEMPT = Sentence("the first logged step is {step}; the attempt before it had reached {end}")
FIRST_STEP = Sentence("the first logged step is {step}")
NOTHING_LOADED = Sentence("the log says that nothing was loaded: {line}")
FIRST_RUN = Sentence("there was no checkpoint and no request to resume: a first run ({line})")
TRAINED_FROM_SCRATCH = Sentence("the run trained from scratch: it repeats the steps of the previous run")
ATTEMPT_FROM_SCRATCH = Sentence("the attempt trained from scratch: it repeats the steps of the one before it")
WEIGHTS_LOST = Sentence("the step counter was restored and the weights were not: what was learned before is lost")
INTENT_UNKNOWN = Sentence("whether this was meant to resume or is a first run")
OTHER_DATA = Sentence("whether other data, or another definition of the loss, raised it instead")
RESTORE_WEIGHTS = Sentence(
    "let the resume load the weights and the optimizer state from the checkpoint that the step counter comes from, "
    "then rerun from it"
)
SET_CHECKPOINT_PATH = Sentence(
    "point the resume argument (such as resume_from_checkpoint, ckpt_path or --load) at the last complete checkpoint, "
    "and rerun"
)
SET_CHECKPOINT_OF = Sentence(
    "point the resume argument (such as resume_from_checkpoint, ckpt_path or --load) at the last complete checkpoint "
    "of job {parent}, and rerun"
)
RESUME_ON_RESTART = Sentence(
    "let the job script pass the resume argument (such as resume_from_checkpoint, ckpt_path or --load) whenever it "
    "starts again"
)
NO_RESUME_REQUESTED = Sentence("no line about a resume was recognized, and no checkpoint is reported as missing")


def judge(resume: Resume, parent: ParentRun, trajectory: Trajectory, run: Run, limits: Limits) -> Finding | Missing:
    """A crash at the load is conclusive; a silent restart needs the parent, a library message or a request."""
    if resume.failed_load is not None:
        return _load_failure(resume, resume.failed_load)
    if resume.loaded is not None:
        return absent(CHECKPOINT_LOADED(line=resume.loaded))
    run_curve = trajectory.curve
    judged = _against_parent(resume, parent, run_curve, run, limits) or _against_absence(
        resume, run_curve, bool(trajectory.scores or trajectory.evaluations)
    )
    judged = judged or _against_request(resume, run_curve)
    if judged is not None:
        return judged
    if resume.request is not None or (run.parent is not None and run_curve.points and not parent.points):
        return Missing("no message about loading the checkpoint was recognized, and there are no losses to compare")
    none = derived(0, resume.requests.reduce("count"), resume.missing_messages.reduce("count"))
    return absent(NO_RESUME_REQUESTED(count=none))


def _load_failure(resume: Resume, row: Event) -> Finding:
    failure, values, is_resume = load_failure(row), {}, resume.is_resume
    headline = (RESUME_FAILED if is_resume else LOAD_FAILED)(error=error_in_brief(resume.exceptions.frame, row))
    remedy = FAILURE_REMEDIES[failure] if is_resume else LOAD_REMEDIES.get(failure, FAILURE_REMEDIES[failure])
    if (needed := NEEDED_TORCH.search(str(row.get("message")))) is not None:
        values = {"version": derived(needed[1], resume.exceptions.frame.value(row, "message"))}
        headline = OLD_TORCH(**values)
    elif (counts := OTHER_WORLD_SIZE.search(str(row.get("message")))) is not None:
        message = resume.exceptions.frame.value(row, "message")
        values = {"saved": derived(int(counts[1]), message), "current": derived(int(counts[2]), message)}
        headline = OTHER_WORLD_SIZE_HEADLINE(**values)
    elif failure == "not_weights":
        headline = NOT_WEIGHTS(**resume.exceptions.values(row))
    elif (sizes := SIZE_MISMATCH.search(" ".join(str(row.get("message")).split()))) is not None:
        message = resume.exceptions.frame.value(row, "message")
        parameter, *shapes = (derived(text.replace(", ", " x "), message) for text in sizes.groups())
        sentence = RESUME_SIZES_DIFFER if is_resume else SIZES_DIFFER
        headline = sentence(parameter=parameter, saved=shapes[0], expected=shapes[1])
    elif (
        failure == "absent" and not is_resume and (match := CHECKPOINT_PATH.search(str(row.get("message")))) is not None
    ):
        values = {"path": derived(match[1], resume.exceptions.frame.value(row, "message"))}
        headline = CHECKPOINT_NOT_FOUND(**values)
        remedy = CHECK_PATH if match[1].startswith("/") else CHECK_RELATIVE_PATH
    return present(
        Certainty.ESTABLISHED,
        "job",
        [LOAD_RAISED(**resume.exceptions.values(row))],
        headline=headline,
        implies=[FAILURE_MEANINGS[failure]()],
        actions=[weights_remedy(resume.exceptions.frame, row) or action(remedy, **values)],
        since=row.time,
        at=row.at,
        variant="crash",
        fault_class="config" if failure in ("mismatch", "world_size") else "asset",
        ranks=resume.failed_ranks,
        exception=named_exception(row),
    )


def _against_parent(
    resume: Resume, parent: ParentRun, curve: TrainingCurve, run: Run, limits: Limits
) -> Finding | None:
    """The finding by the first points of this run, or of its last run part, and those of the previous one; None if
    there are none."""
    parent_curve = parent.curve
    if parent_curve is None or not parent.has_learned or not curve.finite:
        return None
    own = run.parent is None or run.parent_by == "requeue"  # an attempt of the same run came before
    first_loss, head, tail = curve.finite[0], parent_curve.finite[0], parent_curve.finite[-1]
    step, parent_first, parent_last = (
        numeric_field(row, "step") for row in (curve.rows[0], parent_curve.rows[0], parent_curve.rows[-1])
    )
    starts_over = goes_on = False
    if step is not None and parent_last is not None:
        starts_over = parent_first is not None and step <= max(parent_first, limits.restart_step_share * parent_last)
        goes_on = parent_last > 1 and step >= limits.resume_step_share * parent_last
    if first_loss - tail < limits.lost_progress_share * (head - tail):
        continued = LOSS_CONTINUED_ATTEMPT if own else LOSS_CONTINUED
        return absent(continued(first=curve.loss(0), last=parent_curve.loss(-1)))
    back_at_start = first_loss >= head - limits.same_loss_share * abs(head)
    is_noise = first_loss <= max(parent_curve.finite[len(parent_curve.finite) // 2 :])  # it printed such losses late
    steps_continue = goes_on and not starts_over
    steps_continued = STEPS_CONTINUED_ATTEMPT if own else STEPS_CONTINUED
    if steps_continue and (is_noise or not back_at_start):
        return absent(steps_continued(step=curve.place(0), end=parent_curve.place(-1)))
    restarted = LOSS_RESTARTED_ATTEMPT if own else LOSS_RESTARTED
    shows = [restarted(first=curve.loss(0), head=parent_curve.loss(0), tail=parent_curve.loss(-1))]
    if starts_over:
        steps_restarted = STEPS_RESTARTED_ATTEMPT if own else STEPS_RESTARTED
        shows.append(steps_restarted(step=curve.place(0), end=parent_curve.place(-1)))
    if steps_continue:
        shows.append(steps_continued(step=curve.place(0), end=parent_curve.place(-1)))
    shows += [*resume.requested, resume.no_load]
    missing = resume.missing_between(parent_curve.rows[-1], curve.rows[0])
    shows += [] if missing is None else [NOTHING_LOADED(line=missing)]
    parent_job = None if run.parent is None or own else derived(run.parent, parent_curve.loss(-1))
    headline = None if parent_job is None else NOT_RESUMED(parent=parent_job)
    if steps_continue:
        headline = ATTEMPT_WEIGHTS_NOT_RESUMED() if parent_job is None else WEIGHTS_NOT_RESUMED(parent=parent_job)
    elif run.parent_by == "requeue" and run.attempts:
        headline = ATTEMPT_NOT_RESUMED(attempt=derived(run.attempts[-1].number, parent_curve.loss(-1)))
    is_guess = run.parent_by == "order" and not resume.requests
    same_start = abs(first_loss - head) <= limits.same_loss_share * abs(head)
    certainty = Certainty.ESTABLISHED if same_start and starts_over else Certainty.SUPPORTED
    finding = _silent_restart(
        curve.rows[0], shows, Certainty.POSSIBLE if is_guess else certainty, latent=is_guess, headline=headline,
        parent=parent_job, own=own,
    )  # fmt: skip
    if not steps_continue:
        return finding
    return replace(
        finding, implies=(WEIGHTS_LOST(),), cannot_decide=(OTHER_DATA(),), actions=(action(RESTORE_WEIGHTS),)
    )


def _against_absence(resume: Resume, curve: TrainingCurve, trained: bool) -> Finding | None:
    """The finding by a library message that the requested checkpoint is missing; None if there is none, or if steps
    continued. ``trained``: whether scores or evaluations show that the run trained."""
    row = resume.missing
    if row is None or _is_late_start(curve):
        return None
    shows = [NOTHING_LOADED(line=resume.missing_messages.value(row, "text")), *resume.requested, *resume.history]
    if resume.history:
        return _silent_restart(row, shows, Certainty.SUPPORTED)
    is_requested = resume.request is not None or (row.get("requested") is True and not curve.points)
    if not is_requested:  # a first run, whose load and save folders are often the same
        return absent(FIRST_RUN(line=resume.missing_messages.value(row, "text")))
    headline = FRESH_START() if curve.points or trained else NO_CHECKPOINT()  # else no step shows that it trained
    latent = bool(curve.points) or trained
    return _silent_restart(row, shows, Certainty.POSSIBLE, latent=latent, headline=headline)


def _against_request(resume: Resume, curve: TrainingCurve) -> Finding | None:
    """The finding by a resume request and the first steps; None if there is no request or the steps are
    inconclusive."""
    request, steps = resume.request, _first_steps(curve)
    if request is None or not steps:
        return None
    first = curve.frame.value(curve.points[0], "step")
    if _is_late_start(curve):
        return absent(STARTED_LATER(step=first))
    if steps[0] > max(1.0, steps[-1] - steps[0]):
        return None
    shows = [resume.request_claim(request), FIRST_STEP(step=first), resume.no_load]
    named = resume.names_checkpoint and resume.missing is None
    return _silent_restart(request, shows, Certainty.POSSIBLE, latent=not named)


def _first_steps(curve: TrainingCurve) -> list[float]:
    return [step for row in curve.points[:2] if (step := numeric_field(row, "step")) is not None]


def _is_late_start(curve: TrainingCurve) -> bool:
    """Whether the first printed step is far beyond one logging interval: the run did not start at zero."""
    steps = _first_steps(curve)
    return len(steps) == 2 and steps[0] > 2 * max(1.0, steps[1] - steps[0])


def _silent_restart(
    row: Event, shows: list[Claim], certainty: Certainty, latent: bool = False, headline: Claim | None = None,
    parent: Value | None = None, own: bool = False,
) -> Finding:  # fmt: skip
    return present(
        certainty,
        "job",
        shows,
        headline=FRESH_START() if headline is None else headline,
        implies=[(ATTEMPT_FROM_SCRATCH if own else TRAINED_FROM_SCRATCH)()],
        cannot_decide=[] if certainty is Certainty.ESTABLISHED else [INTENT_UNKNOWN()],
        actions=[
            action(RESUME_ON_RESTART)
            if own
            else action(SET_CHECKPOINT_PATH)
            if parent is None
            else action(SET_CHECKPOINT_OF, parent=parent)
        ],
        since=row.time,
        at=row.at,
        variant="silent",
        latent=latent,
    )


FAMILY = Family(
    code="E2",
    id="silent-resume",
    title="Resume failed: the checkpoint was not loaded",
    example=("silent-resume", "learning"),
    judge=judge,
    cost_kind="repeated",
    limits=Limits(),
    explains=("A1", "H2"),
    rivals=("A1", "E1"),
    collect=(
        "the parent run's output next to this one's",
        "the run's command line or configuration with its resume argument",
        "sacct with SubmitLine, Restarts and all attempts (-D)",
    ),
)
