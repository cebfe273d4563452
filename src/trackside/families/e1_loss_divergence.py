"""Loss divergence: the run trains, but the model learns nothing or loses what it had learned.

Meaning
-------
The loss is not a number, rises far above its start and stays there, sits dead on a plateau, or is flat from
the first step. The machines are fine and the run may well end with exit code 0.

What it looks like
------------------
nan or inf in the loss (Transformers hides it as loss 0 beside grad_norm nan, Megatron leaves the loss out);
a tail level a multiple of the head's; a loss that repeats to the digit with a gradient norm of zero; a loss
of guessing (the logarithm of the number of classes) all along; nearly every step skipped for overflow;
an evaluation score that drops to zero; the job's own "loss is nan" abort.

The GPUs worked meanwhile and counted no memory error. Where one was counted, or reported by the kernel, before the
loss went wrong, it may have spoilt the numbers: then the hardware is as much in question as the job.

Not this when
-------------
A spike recovers. The objective is a preference or a reinforcement one, whose loss is near zero or negative by
nature. Only the evaluation loss is nan while the training loss falls. Only the gradient norm rises. The loss
is low because the model has converged. There are too few points to have a shape.

Impact
------
The whole allocation from the onset on bought nothing, and nothing else will say so.

Do next
-------
Go back to a checkpoint from before the onset; look at the learning rate and its warm-up, gradient clipping,
the precision of the trained weights and the data around the onset.

What it cannot tell
-------------------
Why: learning rate, precision or data. The configuration behind the curve is not in the telemetry.

References
----------
PaLM (2022), section 5.1 on loss spikes; OPT-175B logbook.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.gpu.signals import ACTIVITY
from trackside.facts.gpus import ours
from trackside.facts.hardware.health import HEALTH, MEASURED, clean, health
from trackside.facts.hardware.health import SAYS as HEALTH_SAYS
from trackside.facts.logs.ending import ENDING, completed
from trackside.facts.logs.exceptions import type_and_message
from trackside.facts.logs.order import first
from trackside.facts.training.divergence import Limits, Shape, wrong_shape
from trackside.facts.training.learning import LEARNING, Curve, curve, number, steps_done, steps_planned
from trackside.facts.training.sampled import GAUGES, points_of
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Outcome, absent, action, claim, found, unknown
from trackside.model import Event, Run
from trackside.query import events

NOT_FINITE = re.compile(
    r"\b(loss|losses|grad\w*|logits|weights?)\b.{0,60}\b(nan|nans|inf|infinite|infinity|not finite|non-?finite)\b"
    r"|\b(nan|nans|infinite|non-?finite)\b.{0,40}\b(loss|losses|grad\w*|logits)\b"
    r"|returned nan values|loss scale.{0,40}\bminimum\b|minimum loss scale reached"
    r"|probability tensor contains either .?inf.?, .?nan.? or element",
    re.IGNORECASE | re.DOTALL,
)
"""Exceptions by which a job, a framework or a library ends a run for a loss or gradient that is not finite."""
SCORE = re.compile(r"acc|dice|f1|iou|map\b|score|prec|recall|auc|bleu|rouge", re.IGNORECASE)
NO_SCORE = re.compile(r"loss|ppl|perplexity|error|time|runtime", re.IGNORECASE)

OF_MEMORY = (48, 64, 94, 95, 140)
"""Xids of memory errors: double-bit, remap failed, contained, uncontained, unrecovered."""
CLOCKS_S = 120.0
"""By which the clocks of log, kernel and monitor may differ."""

COLLECT = ("training output that prints the loss at steps (five points or more), or gauges of it",)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Look at the curve, then at the job's own abort, then at the evaluations; and whether the machines were well."""
    finding = _judge(evidence, limits)
    if finding.outcome is not Outcome.FOUND:
        return finding
    well = completed(evidence)
    more = [claim("completed", state=well)] if well is not None else []
    sm = evidence.grid("sm")
    if sm is not None and _works(sm.value("median")):
        more.append(claim("gpus_busy", sm=sm.value("median")))
    suspects = _memory_errors(evidence, run, finding.since)
    if suspects:
        finding = replace(
            finding,
            culprit="unknown",
            cannot_decide=(claim("hardware_or_job"), *finding.cannot_decide),
            actions=(action("test_gpu"), *finding.actions),
        )
    cleared = [] if suspects else clean(evidence)
    implies = (*finding.implies, claim("no_memory_error")) if cleared else finding.implies
    shows = (*finding.shows, *more, *suspects, *cleared)
    planes = tuple(dict.fromkeys(cite.plane for each in shows for cite in each.cites))
    return replace(finding, shows=shows, implies=implies, planes=planes)


def _memory_errors(evidence: Evidence, run: Run, onset: float | None) -> list[Claim]:
    """Memory errors of the run's GPUs that came before the loss went wrong: they may have spoilt the numbers."""
    latest = onset + CLOCKS_S if onset is not None else run.end
    grids = [evidence.grid(name) for name in (*MEASURED, "seen_memory")]
    xids, told = evidence["xids"], []
    for row in xids.events:
        known = row.time is not None and (run.start is None or row.time >= run.start - CLOCKS_S)
        mine = row.get("pci") is None or ours(str(row.get("pci")), row.node, grids, run)
        if row.get("xid") in OF_MEMORY and mine and known and (latest is None or (row.time or 0.0) <= latest):
            told.append(claim("xid_before", xid=xids.value(row, "xid"), line=xids.value(row, "text")))
    measured = [fault for fault in health(evidence, run).faults if fault.claim.key != "vanished"]
    measured = [fault for fault in measured if fault.number is None or fault.number in OF_MEMORY]
    early = [fault for fault in measured if latest is None or fault.time is None or fault.time <= latest]
    return [*told[:1], *(fault.claim for fault in early[:2])]


def _judge(evidence: Evidence, limits: Limits) -> Finding:
    line = curve(points_of(evidence))
    shape = wrong_shape(line, _finished(evidence), limits)
    aborted = _abort(evidence["exceptions"], line)
    if shape is not None:
        return _from_shape(line, shape, evidence["exceptions"], aborted)
    if aborted is not None:
        frame = evidence["exceptions"]
        return _found(
            "non-finite",
            Certainty.SUPPORTED,
            aborted,
            [claim("abort", **type_and_message(frame, aborted))],
            aborted,
            bool(line.finite),
        )
    gave_up = [row for row in evidence["ends"].events if row.get("reason") == "not_finite"]
    if gave_up:
        said = claim("gave_up", line=evidence["ends"].value(gave_up[0], "text"))
        return _found("non-finite", Certainty.SUPPORTED, gave_up[0], [said], good_before=bool(line.finite))
    collapsed = _evaluation_collapse(evidence)
    if collapsed is not None:
        row, shows = collapsed
        return _found("diverging", Certainty.SUPPORTED, row, shows)
    if not line.finite:
        return unknown(["no line that prints the training loss was recognised: correctness is unverifiable"], COLLECT)
    if len(line.finite) < limits.least_points:
        return unknown(["too few loss values to judge a shape"], COLLECT)
    head, tail = (_nearest(line, at) for at in (0, -1))
    if line.fell:
        return absent(claim("fell", first=head, last=tail, points=_count(line)))
    return absent(claim("level", first=head, last=tail, points=_count(line)))


def _finished(evidence: Evidence) -> bool:
    """Whether at least half of what was planned was done, so that a flat curve is not a warm-up."""
    if completed(evidence) is not None:
        return True
    done = steps_done(evidence["progress"], evidence["ends"])
    planned = steps_planned(evidence["progress"], evidence["plans"])
    if done is None or planned is None:
        return len(points_of(evidence)) >= 100
    both = (done.value, planned.value)
    return all(isinstance(v, (int, float)) for v in both) and float(both[0]) >= 0.5 * float(both[1])  # type: ignore[arg-type]


def _from_shape(line: Curve, shape: Shape, exceptions: Frame, aborted: Event | None) -> Finding:
    rows = line.points if shape.key == "steps_skipped" else line.rows
    onset = rows[shape.onset]
    points = derived(len(line.rows), _count(line), unit="points")  # also those that print no loss
    values: dict[str, Value] = {"points": points, "count": derived(shape.count, _count(line))}
    if shape.key == "steps_skipped":
        values["skipped"] = line.frame.value(rows[-1], "skipped", "steps")
        values["step"] = line.frame.value(rows[-1], "step")
    else:
        values |= {"loss": line.loss(shape.witness), "place": line.place(shape.onset), "first": _nearest(line, 0)}
        lowest = line.losses.index(min(line.finite)) if line.finite else 0
        highest = line.losses.index(max(line.finite)) if line.finite else 0
        values |= {"lowest": line.loss(lowest), "highest": line.loss(highest), "last": line.loss(-1)}
    for field, key in (("grad_norm", "gradient"), ("lr", "rate")):
        told = [row for row in rows[shape.onset :] or rows if number(row, field) is not None]
        if told:
            values[key] = line.frame.value(told[-1], field)
    shows = [claim(shape.key, **values)]
    if shape.key in ("risen", "lost") and shape.variant == "plateau" and "gradient" in values:
        shows.append(claim("gradient_gone", gradient=values["gradient"]))
    if aborted is not None:
        shows.append(claim("abort", **type_and_message(exceptions, aborted)))
    variant = shape.variant if aborted is None else "non-finite"  # the run's own word for where it went
    return _found(variant, shape.certainty, onset, shows, aborted, good_before=shape.onset > 0 and variant != "flat")


def _found(
    variant: str,
    certainty: Certainty,
    onset: Event,
    shows: list[Claim],
    aborted: Event | None = None,
    good_before: bool = True,
) -> Finding:
    exception = None
    if aborted is not None:
        exception = (str(aborted.get("type")), str(aborted.get("message") or "")[:500])
    return found(
        certainty,
        "job",
        shows,
        implies=[claim(f"implies_{variant.replace('-', '_')}")],
        cannot_decide=[claim("why")],
        actions=([action("go_back")] if good_before else [])
        + [action("look_non_finite" if variant == "non-finite" else "look_rate")],
        since=onset.time,
        at=onset.at,
        variant=variant,
        exception=exception,
    )


def _abort(exceptions: Frame, line: Curve) -> Event | None:
    """The first exception by which the run ended itself for a value that is not finite."""
    own = [row for row in exceptions.events if row.get("about") in ("application", None) and not row.get("wrapper")]
    said = [row for row in own if NOT_FINITE.search(f"{row.get('type')}: {row.get('message')}"[:600])]
    said = [row for row in said if "probability tensor" not in str(row.get("message")) or line.points]
    return first(said)


def _evaluation_collapse(evidence: Evidence) -> tuple[Event, list[Claim]] | None:
    """A score that falls to zero and stays there, or is zero from the first evaluation of a run that gave up."""
    frame = evidence["evaluations"]
    scores: dict[str, list[Event]] = {}
    for row in frame.events:
        name = str(row.get("metric") or "")
        if number(row, "value") is not None and SCORE.search(name) and not NO_SCORE.search(name):
            scores.setdefault(name, []).append(row)
    aborted = any(row.get("status") == "aborted" for row in evidence["ends"].events)
    for rows in scores.values():
        values = [number(row, "value") or 0.0 for row in rows]
        if abs(values[-1]) > 1e-6:
            continue
        best = max(range(len(values)), key=values.__getitem__)
        if values[best] >= 0.1:
            zero = next(i for i in range(best + 1, len(values)) if abs(values[i]) <= 1e-6)
            last, high = (frame.value(rows[i], "value") for i in (-1, best))
            return rows[zero], [claim("score_collapsed", metric=frame.value(rows[-1], "metric"), best=high, last=last)]
        if aborted and max(values) <= 1e-6:
            metric, last = frame.value(rows[0], "metric"), frame.value(rows[-1], "value")
            return rows[0], [claim("score_zero", metric=metric, last=last)]
    return None


def _nearest(line: Curve, at: int) -> Value:
    """The first or last finite loss."""
    places = [place for place, loss in enumerate(line.losses) if loss == loss and abs(loss) != float("inf")]
    return line.loss(places[at] if places else at)


def _works(sm: Value) -> bool:
    """Whether SM activity is that of work; in a run of less than some minutes the start-up may be most of it."""
    from trackside.facts.gpu.activity import FLOORS

    return sm.value is not None and sm.number > FLOORS.sm


def _count(line: Curve) -> Value:
    return line.frame.reduce("count", "loss", unit="points")


SAYS: Mapping[str, str] = {
    **HEALTH_SAYS,
    "xid_before": "the kernel had reported Xid {xid}, a memory error: {line}",
    "hardware_or_job": "whether the memory errors of the GPU spoilt the numbers, or the job's settings did",
    "no_memory_error": "no GPU counted a memory error: nothing that was measured speaks for a fault of the hardware",
    "test_gpu": "test the GPU that reported memory errors, and rerun from a checkpoint of before without it",
    "completed": "the run ended well: {state}",
    "gpus_busy": "the GPUs worked meanwhile: SM activity {sm} (median)",
    "not_finite_to_the_end": "the loss is not finite from {place} to the end ({count} of {points}); first {first}",
    "not_finite_again": "the loss was not finite at {count} of {points}, first at {place}; "
    "the finite values reach from {lowest} to {highest}",
    "zero_at_once": "the loss dropped to {loss} at once at {place} and stayed there for {count:points}, "
    "the way not-a-number is printed where it is filtered",
    "zero_throughout": "the loss is {loss} at all of its {count:points}: not-a-number that is filtered, "
    "or nothing to learn from",
    "gradient_not_finite": "the gradient norm is {gradient} from {place} to the end ({count:points}) "
    "and the loss no longer falls",
    "steps_skipped": "nearly every recent step was skipped for overflow: {skipped} at step {step}",
    "exploded": "the loss went from {first} to {last}",
    "dead_plateau": "the loss repeats {loss} to the digit from {place} to the end ({count:points}) "
    "with a gradient norm of {gradient}; the highest was {highest}",
    "same_value": "the loss repeats {loss} to the digit from {place} to the end ({count:points}); "
    "the highest was {highest}",
    "no_rate": "the loss went from {first} to {last} over {points}; the learning rate stayed at {rate}",
    "no_gradient": "the loss went from {first} to {last} over {points}; the gradient norm stayed at {gradient}",
    "vanished": "the loss rests at {loss} from {place} to the end ({count} of {points}) with a gradient norm of "
    "{gradient} at last: nothing moves it any more",
    "risen": "the loss rose far above its start and stayed there from {place}: {first} at first, {last} at last, "
    "{highest} at its highest",
    "gradient_gone": "the loss no longer moves there and the gradient norm is {gradient} at last",
    "lost": "the loss had come down from {first} to {lowest}, then stayed high from {place}: {last} at last",
    "worse_than_guessing": "the loss went above that of guessing among all tokens and never became a model's: "
    "{first} at first, {highest} at its highest, {lowest} at its lowest, {last} at last",
    "repeats": "the loss repeats {count:values} over {points}: the weights do not change",
    "guessing": "the loss stayed at the level of guessing for {count} of {points}: {first} at first, {last} at last",
    "abort": "the run ended itself with {type}: {message}",
    "gave_up": "the job stopped itself for a loss that is not finite: {line}",
    "score_collapsed": "{metric} had reached {best} and ended at {last}",
    "score_zero": "{metric} was {last} at every evaluation and the run gave up",
    "implies_non_finite": "the numbers overflowed: from there on no step taught the model anything",
    "implies_diverging": "the optimiser left the region where it learned; the model is worse than it was",
    "implies_plateau": "the model is dead: it answers the same to everything and gets no gradient to leave that",
    "implies_flat": "no learning took place at all",
    "why": "whether the learning rate, the numeric precision or the data caused it is not in the telemetry",
    "go_back": "continue from a checkpoint from before the onset, not from the last one",
    "look_non_finite": "keep trained weights in full precision or bfloat, clip gradients, "
    "and look at the batches around the onset",
    "look_rate": "check the learning rate, its warm-up and clipping, and that labels and trainable parameters "
    "are what was meant",
    "fell": "the loss went from {first} to {last} over {points}",
    "level": "the loss stayed finite and kept its level: {first} at first, {last} at last over {points}",
}

GOING: Mapping[str, str] = {
    "not_finite_to_the_end": "the loss is not finite from {place} on ({count} of {points} so far); first {first}",
    "gradient_not_finite": "the gradient norm is {gradient} from {place} on ({count:points} so far) "
    "and the loss no longer falls",
    "dead_plateau": "the loss repeats {loss} to the digit from {place} on ({count:points} so far) "
    "with a gradient norm of {gradient}; the highest was {highest}",
    "same_value": "the loss repeats {loss} to the digit from {place} on ({count:points} so far); "
    "the highest was {highest}",
    "vanished": "the loss rests at {loss} from {place} on ({count} of {points} so far) with a gradient norm of "
    "{gradient} at last: nothing moves it any more",
    "abort": "the run stopped itself with {type}: {message}",
    "score_collapsed": "{metric} had reached {best} and is {last} now",
    "fell": "the loss went from {first} to {last} over {points} so far",
    "level": "the loss stays finite and keeps its level: {first} at first, {last} at last over {points} so far",
}
"""The same of a run that goes on."""

FAMILY = Family(
    code="E1",
    id="loss-divergence",
    title="Loss divergence: the run trains but does not learn",
    pictured=("loss-plateau", "learning"),
    asks={
        **LEARNING,
        **ENDING,
        **GAUGES,
        **HEALTH,
        **ACTIVITY,
        "xids": events("xid"),
        "evaluations": events("evaluation"),
        "exceptions": events("exception"),
    },
    needs=(("progress", "gauge_loss"),),
    says=SAYS,
    going=GOING,
    judge=judge,
    loses="result",
    limits=Limits(),
    explains=("H2", "H1", "A1"),
    rivals=("E2", "B2"),
    collect=COLLECT,
)
