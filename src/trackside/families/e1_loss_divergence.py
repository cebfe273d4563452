"""Loss divergence: the model does not learn.

Meaning
-------
The loss is not a number, rises far above its start and stays there, is constant on a plateau, or is flat from
the first step. The machines are fine and the run may well end with exit code 0.

What it looks like
------------------
nan or inf in the loss (Transformers logs it as loss 0 with grad_norm nan, Megatron omits the loss); a loss that is at
the end several times what it was at the start; a loss that hardly changes from one logged step to the next, with a
gradient norm of zero; a loss that is flat throughout, at the level of random guessing (the logarithm of the number of
classes) or above 4; nearly every step skipped for overflow; an evaluation score that drops to zero; the job's own
"loss is nan" abort.

The GPUs worked meanwhile and counted no memory error. If a memory error was counted, or reported by the kernel,
before the loss went wrong, it may have corrupted the numbers: then the hardware may be the cause as well as the
job.

Not this family when
--------------------
- A spike recovers.
- The model is trained on preferences or by reinforcement: such a loss is near zero or negative by nature.
- Only the evaluation loss is NaN while the training loss falls.
- Only the gradient norm rises.
- The loss is low because the model has converged.
- Too few losses were logged to judge the shape.

Impact
------
All GPU time after the onset is wasted, and nothing else reports it.

Do next
-------
Go back to a checkpoint from before the onset; check the learning rate and its warm-up, gradient clipping, the
precision of the trained weights and the data around the onset.

What it cannot decide
---------------------
The cause (learning rate, precision or data): Trackside does not analyze the training configuration.

References
----------
- [PaLM (2022), section 5.1: loss spikes](https://arxiv.org/abs/2204.02311)
- [OPT-175B: logbook](https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/OPT175B_Logbook.pdf)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.evidence import Missing
from trackside.facts import maths
from trackside.facts.fact import Maybe
from trackside.facts.gpu.activity import FLOORS, GpuActivity
from trackside.facts.hardware.health import HardwareHealth
from trackside.facts.hardware.reports import HardwareReports
from trackside.facts.logs.ending import ENDED_WELL, Ending
from trackside.facts.logs.exceptions import Exceptions, error_in_brief, named_exception
from trackside.facts.logs.order import first
from trackside.facts.training.evaluations import Evaluations
from trackside.facts.training.loss_curve import LossCurve
from trackside.facts.training.loss_shape import LossShape
from trackside.facts.training.shapes.dead import (
    DEAD_PLATEAU,
    GRADIENT_NEAR_ZERO,
    GRADIENT_VANISHED,
    LOSSES_REPEAT,
    RATE_NEAR_ZERO,
)
from trackside.facts.training.shapes.level import AT_GUESSING, STAYS_FLAT, WORSE_THAN_GUESSING
from trackside.facts.training.shapes.not_finite import (
    GRADIENT_NOT_FINITE,
    NEVER_FINITE,
    NOT_FINITE_AGAIN,
    ONLY_LOSS_NOT_FINITE,
    REWARD_NOT_FINITE,
    STEPS_SKIPPED,
    ZERO_AT_ONCE,
    ZERO_THROUGHOUT,
)
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, present
from trackside.model import Event
from trackside.witness import Witness

NOT_FINITE = re.compile(
    r"\b(loss|losses|grad\w*|logits|weights?)\b.{0,60}\b(nan|nans|inf|infinite|infinity|not finite|non-?finite)\b"
    r"|\b(nan|nans|infinite|non-?finite)\b.{0,40}\b(loss|losses|grad\w*|logits)\b"
    r"|returned nan values|loss scale.{0,40}\bminimum\b|minimum loss scale reached"
    r"|probability tensor contains either .?inf.?, .?nan.? or element",
    re.IGNORECASE | re.DOTALL,
)
"""Exceptions with which a job, a framework or a library ends a run for a loss or gradient that is not finite."""

ENDED_ITSELF = Sentence(
    "the run ended itself with {type}: {message}", running="the run stopped itself with {type}: {message}"
)
LAST_OWN_LINE = Sentence("last line of the job's own code in the traceback: {frame}")
STOPPED_FOR_LOSS = Sentence("the job stopped itself because the loss is not finite: {line}")
HARDWARE_OR_JOB = Sentence("whether GPU memory errors or the job's settings caused it")
NO_MEMORY_ERROR = Sentence("no GPU counted a memory error: nothing points to the hardware")
TEST_GPU = Sentence("test the GPU that reported memory errors, and rerun without it from an earlier checkpoint")
GPUS_BUSY = Sentence("the GPUs computed: SM activity {sm} (median of the run)")
HEADLINES = {
    "non-finite": Sentence("training diverged: the loss is no longer finite"),
    "diverging": Sentence("training diverged: the loss rose and stayed high"),
    "plateau": Sentence("training collapsed: the loss is stuck at a higher level"),
    "flat": Sentence("the model learns nothing: the loss stays flat"),
}
HEADLINES_BY_STEP = {
    "non-finite": Sentence("training diverged by {place}: the loss is no longer finite"),
    "diverging": Sentence("training diverged by {place}: the loss rose and stayed high"),
    "plateau": Sentence("training collapsed by {place}: the loss rose and stayed there"),
}
"""Headlines if the onset is known and is not the first point."""
STUCK = Sentence("training collapsed by {place}: the loss is stuck near {loss} with a gradient norm of {gradient}")
STUCK_SHAPES = (DEAD_PLATEAU, GRADIENT_VANISHED)
"""Whether the loss rose before, or fell, does not matter: no gradient is left."""
SHAPE_HEADLINES = {
    STEPS_SKIPPED: Sentence("gradients overflow: nearly every recent step was skipped"),
    NOT_FINITE_AGAIN: Sentence("training is unstable: the loss is repeatedly not finite"),
    NEVER_FINITE: Sentence("training diverged: the loss was never finite"),
    ONLY_LOSS_NOT_FINITE: Sentence("training diverged: the only logged loss is not finite"),
    ZERO_AT_ONCE: Sentence("training diverged: the loss is stuck at zero, as when the trainer logs NaN as zero"),
    ZERO_THROUGHOUT: Sentence(
        "the loss is zero throughout: the trainer logs NaN as zero, or there is nothing to learn from"
    ),
    GRADIENT_NOT_FINITE: Sentence("training diverged: the gradient is no longer finite"),
    REWARD_NOT_FINITE: Sentence("training diverged: the reward is not finite"),
    WORSE_THAN_GUESSING: Sentence("training diverged: the loss was above that of random guessing and did not recover"),
    RATE_NEAR_ZERO: Sentence("the model learns nothing: the learning rate is near zero"),
    GRADIENT_NEAR_ZERO: Sentence("the model learns nothing: the gradient is near zero"),
    LOSSES_REPEAT: Sentence("the model learns nothing: the loss repeats the same values"),
    STAYS_FLAT: HEADLINES["flat"],
    AT_GUESSING: Sentence("the model learns nothing: the loss stays at that of random guessing"),
}
"""The answer for shapes that the variant alone would describe wrongly or vaguely."""
ENDED_AFTER = {
    sentence: Sentence(f"{sentence.text}; the run ended itself with {{error}}")
    for sentence in (STUCK, *HEADLINES.values(), *HEADLINES_BY_STEP.values(), *SHAPE_HEADLINES.values())
}
"""The answer if the curve is wrong, and the run ended itself for a loss that is not finite, which it did not log."""
STOPPED_WITH_ERROR = Sentence("training diverged: the job stopped itself with {error}")
SCORE_ZERO = Sentence("the model collapsed: its evaluation score is zero, or nearly")
MEANINGS = {
    "non-finite": Sentence("a step whose loss or gradient is not finite does not improve the model"),
    "diverging": Sentence("the model is worse than it was"),
    "plateau": Sentence("the model no longer improves"),
    "flat": Sentence("the loss shows no learning"),
}
NEVER_BETTER = Sentence("the model is worse than random guessing; its checkpoints are of no use")
CAUSE_BEFORE_UPDATE_UNKNOWN = Sentence(
    "the cause (numeric precision, data or code): Trackside does not analyze the training configuration"
)
CAUSE_UNKNOWN = Sentence(
    "the cause (learning rate, numeric precision or data): Trackside does not analyze the training configuration"
)
USE_EARLIER_CHECKPOINT = Sentence(
    "if there is a checkpoint from before the loss went wrong, continue from it, not from the last one"
)
KEEP_PRECISION = Sentence(
    "lower the learning rate, clip gradients, and inspect the batches just before the loss went wrong; if you train in "
    "half precision, keep a full-precision master copy of the weights"
)
KEEP_PRECISION_FROM_START = Sentence(
    "lower the learning rate, clip gradients, and inspect the first batches; if you train in half precision, keep a "
    "full-precision master copy of the weights"
)
CHECK_FIRST_STEP = Sentence(
    "check the inputs and the loss function, such as a logarithm of zero or a division by zero: the loss is not finite "
    "from the first logged step; if steps before it were not logged, lower the learning rate, too"
)
CHECK_BEFORE_UPDATE = Sentence(
    "check the inputs, the initial weights and the loss function, such as a logarithm of zero or a division by zero: "
    "the loss is not finite before the first update of the weights, so that the learning rate is not the cause"
)
CHECK_RATE = Sentence(
    "check the learning rate, its warm-up, gradient clipping, the labels, and which parameters are trainable"
)
LOWER_RATE = Sentence(
    "lower the learning rate, clip gradients, and inspect the batches just before the loss went wrong"
)
EARLY_STOPPING = re.compile(r"early[ -]?stop|stopping early", re.IGNORECASE)
NOT_DIVERGED = Sentence(
    "the loss stayed finite, without a clear divergence: {first} and {last}, medians of the first and the last {size} "
    "of {points}",
    running="the loss is finite, without a clear divergence: {first} and {last}, medians of the first and the last "
    "{size} of {points} so far",
)
ROSE_SOMEWHAT = Sentence(
    "the loss stayed finite and rose from {first} to {last}, which is no clear divergence: medians of the first and "
    "the last {size} of {points}",
    running="the loss is finite and rises, from {first} to {last} so far, which is no clear divergence: medians of the "
    "first and the last {size} of {points}",
)
ROSE_WITHOUT_MEANING = (
    "the loss rose far above its first values, but for such a loss the level alone does not show a divergence"
)
NO_DIVERGENCE_RATIO = 10
"""Last level over the largest of the first losses: a rise beyond it does not rule a divergence out."""
RECOVERED = Sentence(
    "the loss shows no lasting divergence: {first} and {last}, medians of the first and the last {size} of {points}",
    running="the loss shows no lasting divergence: {first} and {last}, medians of the first and the last {size} of "
    "{points} so far",
)


@dataclass(frozen=True)
class _LossWitness(Witness):
    """Evidence about the loss, its onset, and whether the run had learned before."""

    onset: Event
    headline: Claim
    learned: bool = True


def judge(
    curve: LossCurve,
    shape: LossShape,
    exceptions: Exceptions,
    evaluations: Evaluations,
    ending: Ending,
    reports: HardwareReports,
    health: HardwareHealth,
    activity: Maybe[GpuActivity],
) -> Finding | Missing:
    """The curve first, then the job's own abort, then the evaluations; and whether the machines worked."""
    loss_exception = _loss_exception(exceptions, trained=bool(curve.curve.points))
    witness = _first_witness(curve, shape, exceptions, loss_exception, evaluations, ending)
    if witness is None:
        return _ruled_out(curve, shape)
    suspects = reports.memory_errors(witness.onset.time)
    cleared = () if suspects else health.unchanged
    keep_precision = KEEP_PRECISION if witness.learned else KEEP_PRECISION_FROM_START
    next_step = keep_precision if witness.variant == "non-finite" else CHECK_RATE
    if witness.learned and witness.variant in ("diverging", "plateau"):
        next_step = LOWER_RATE  # the labels and what is trained were right before
    if shape.shape is not None and shape.shape.sentence in (NEVER_FINITE, ONLY_LOSS_NOT_FINITE):
        first = curve.curve.rows[0]
        is_before_update = first.get("step") == 0 and first.get("epoch") is None  # an epoch has many updates
        next_step = CHECK_BEFORE_UPDATE if is_before_update else CHECK_FIRST_STEP
    never_better = shape.shape is not None and shape.shape.sentence is WORSE_THAN_GUESSING
    meaning = NEVER_BETTER if never_better and witness.variant == "diverging" else MEANINGS[witness.variant]
    cause_unknown = (CAUSE_BEFORE_UPDATE_UNKNOWN if next_step is CHECK_BEFORE_UPDATE else CAUSE_UNKNOWN)()
    actions = [*([TEST_GPU] if suspects else []), *([USE_EARLIER_CHECKPOINT] if witness.learned else []), next_step]
    return present(
        witness.certainty,
        "unknown" if suspects else "job",
        [
            *witness.claims,
            *_raised_at(exceptions, loss_exception),
            *suspects,
            *cleared,
            *_machine_claims(ending, activity),
        ],
        headline=witness.headline,
        implies=[meaning(), *([NO_MEMORY_ERROR()] if cleared else [])],
        cannot_decide=[HARDWARE_OR_JOB(), cause_unknown] if suspects else [cause_unknown],
        actions=[action(sentence) for sentence in actions],
        since=witness.onset.time,
        at=witness.onset.at,
        variant=witness.variant,
        exception=None if loss_exception is None else named_exception(loss_exception[0]),
        latent=witness.learned and witness.variant != "non-finite" and _stopped_early(ending),
    )


def _stopped_early(ending: Ending) -> bool:
    """Whether early stopping ended the run: it had learned, and what it keeps is from before the loss rose again."""
    return any(EARLY_STOPPING.search(row.text) for row in ending.ends.events)


def _raised_at(exceptions: Exceptions, loss_exception: tuple[Event, Claim] | None) -> list[Claim]:
    """The line of the job's own code that ended it."""
    if loss_exception is None or loss_exception[0].get("user_frame") is None:
        return []
    return [LAST_OWN_LINE(frame=exceptions.frame.value(loss_exception[0], "user_frame"))]


def _loss_exception(exceptions: Exceptions, trained: bool) -> tuple[Event, Claim] | None:
    """The exception with which the job ended itself for a number that is not finite."""
    own_exceptions = [row for row in exceptions.frame.events if row.get("about") in ("application", None)]
    about_loss = [row for row in own_exceptions if NOT_FINITE.search(f"{row.get('type')}: {row.get('message')}"[:600])]
    row = first([row for row in about_loss if "probability tensor" not in str(row.get("message")) or trained])
    return None if row is None else (row, ENDED_ITSELF(**exceptions.values(row)))


def _first_witness(
    curve: LossCurve, shape: LossShape, exceptions: Exceptions, loss_exception: tuple[Event, Claim] | None,
    evaluations: Evaluations, ending: Ending,
) -> _LossWitness | None:  # fmt: skip
    """The first of these witnesses: the curve, the job's exception, its closing line, a score."""
    supported, trained, ends = Certainty.SUPPORTED, bool(curve.curve.finite), ending.ends
    if shape.shape is not None and shape.onset is not None:
        wrong = shape.shape
        variant = wrong.variant if loss_exception is None else "non-finite"  # the run's own word for where it went
        claims = shape.shows if loss_exception is None else (*shape.shows, loss_exception[1])
        headline, learned = _headline(shape, wrong.variant), wrong.onset > 0 and variant != "flat"
        if loss_exception is not None and wrong.variant != "non-finite":
            error = error_in_brief(exceptions.frame, loss_exception[0])
            headline = ENDED_AFTER[headline.sentence](**headline.values, error=error)
        return _LossWitness(variant, wrong.certainty, claims, shape.onset, headline, learned)
    if loss_exception is not None:
        headline = STOPPED_WITH_ERROR(error=error_in_brief(exceptions.frame, loss_exception[0]))
        return _LossWitness("non-finite", supported, (loss_exception[1],), loss_exception[0], headline, trained)
    for row in ends.events:
        if row.get("reason") == "not_finite":
            gave_up = (STOPPED_FOR_LOSS(line=ends.value(row, "text")),)
            return _LossWitness("non-finite", supported, gave_up, row, HEADLINES["non-finite"](), trained)
    if evaluations.collapse is not None:
        row, claim = evaluations.collapse
        return _LossWitness("diverging", supported, (claim,), row, SCORE_ZERO())
    return None


def _headline(shape: LossShape, variant: str) -> Claim:
    """What is wrong with the curve, and since which step."""
    if shape.shape is not None and shape.shape.variant == variant and shape.shape.sentence in SHAPE_HEADLINES:
        return SHAPE_HEADLINES[shape.shape.sentence]()
    if shape.shape is not None and shape.shape.sentence in STUCK_SHAPES and variant == "plateau":
        values = shape.shows[0].values
        return STUCK(**{name: values[name] for name in STUCK.placeholders})
    since = HEADLINES_BY_STEP.get(variant)
    return HEADLINES[variant]() if since is None or shape.onset_position is None else since(place=shape.onset_position)


def _machine_claims(ending: Ending, activity: Maybe[GpuActivity]) -> list[Claim]:
    """The claims that the run ended well, and that its GPUs worked: a run of some minutes may be mostly startup."""
    end_claims = [] if ending.completed is None else [ENDED_WELL(state=ending.completed)]
    grid = activity.grid("sm") if isinstance(activity, GpuActivity) else None
    sm = grid.value("median") if grid is not None else None
    works = sm is not None and sm.value is not None and sm.number > FLOORS.sm
    return [GPUS_BUSY(sm=sm), *end_claims] if works and sm is not None else end_claims


def _ruled_out(curve: LossCurve, shape: LossShape) -> Finding | Missing:
    run_curve = curve.curve
    if not run_curve.finite:
        return Missing("no line that prints the training loss was recognized")
    if not shape.judgeable:
        return Missing("too few loss values to judge a shape")
    if run_curve.has_fallen:
        return absent(curve.claims[0])
    finite = run_curve.finite
    first_losses = finite[: maths.end_size(len(finite))]
    if maths.ends(finite)[1] > NO_DIVERGENCE_RATIO * max(map(abs, first_losses)) > 0:
        return Missing(ROSE_WITHOUT_MEANING, by_data=False)
    if len(finite) < len(run_curve.losses):
        return absent(RECOVERED(**curve.levels))
    return absent((ROSE_SOMEWHAT if run_curve.has_risen else NOT_DIVERGED)(**curve.levels))


FAMILY = Family(
    code="E1",
    id="loss-divergence",
    title="Loss divergence: the model does not learn",
    example=("loss-plateau", "learning"),
    judge=judge,
    cost_kind="spoilt",
    explains=("H2", "H1", "A1"),
    rivals=("E2", "B2"),
    collect=("training output that prints the loss (five values or more), or a metric of the loss",),
)
