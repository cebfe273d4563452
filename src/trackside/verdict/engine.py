"""Judges all families on the facts of one run, ranks the findings, and computes what the fault cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackside.evidence import BatchStore, Frame, Missing, Store
from trackside.facts import maths
from trackside.facts.cost.earlier_attempts import EarlierAttempts
from trackside.facts.fact import Facts, closure, derivation, guard
from trackside.facts.gpus import with_location
from trackside.facts.training.last_position import last_position
from trackside.facts.training.learning import Trajectory, is_plan_of_part, numeric_field, printed_loss
from trackside.facts.training.loss_curve import LossCurve
from trackside.facts.training.loss_shape import LossShape
from trackside.facts.trust.preflight import Preflight
from trackside.facts.trust.telemetry import trusted_facts
from trackside.families import families
from trackside.family import Family
from trackside.finding import Certainty, Finding, LastAttempt, Outcome, PendingEvidence, Progress, Verdict, unknown
from trackside.model import Event, Input, Run
from trackside.query import events
from trackside.remedies import NOTHING_TO_DO
from trackside.verdict import arbiter, plots
from trackside.verdict.commands import fill_commands
from trackside.verdict.confidence import confidence_of, evidence_pattern
from trackside.verdict.cost import cost
from trackside.verdict.partial_evidence import unknown_if_incomplete

EARLIER = events("earlier_progress")


def facts_of(store: Store, run: Run) -> Facts:
    """The facts of a run; announces all of a verdict's queries to the store, so that it needs few passes."""
    if isinstance(store, BatchStore):
        kinds = (*(kind for family in families() for kind in family.facts), Preflight, EarlierAttempts)
        derivations = (derivation(kind) for kind in closure(kinds))
        store.expect(dict.fromkeys(query for item in derivations if not item.lazy for query in item.queries.values()))
    return trusted_facts(store, run)


def judge_all(store: Store, run: Run, chosen: Sequence[Family] | None = None) -> list[Finding]:
    """Every family's finding on one run, by code."""
    return judge_by(trusted_facts(store, run), families() if chosen is None else chosen)


def judge_by(facts: Facts, chosen: Sequence[Family]) -> list[Finding]:
    """The findings of these families on the facts of one run."""
    findings = []
    for family in chosen:
        finding = _judge(family, facts)
        finding = replace(
            finding, family=family.code, id=family.id, role=family.role, title=finding.title or family.title
        )
        findings.append(unknown_if_incomplete(finding, facts, family.absence_based))
    return findings


def _judge(family: Family, facts: Facts) -> Finding:
    """The finding of one family; UNKNOWN if one of its facts is missing."""
    if missing := facts.missing(family.parameters):
        return unknown(missing, family.collect)
    values = facts.arguments(family.parameters)
    if family.limits is not None:
        values["limits"] = family.limits
    result = guard(family.code, lambda: family.judge(**values))
    finding = (
        unknown([result.reason], family.collect if result.by_data else ())
        if isinstance(result, Missing)
        else with_location(result, facts.run)
    )
    if finding.outcome is Outcome.UNKNOWN:  # sources that did not answer come first
        reasons = (*facts.unanswered_reasons(family.facts), *finding.missing)
        finding = replace(finding, missing=tuple(dict.fromkeys(reasons)))
    return finding


def verdict_of(
    facts: Facts, inputs: Sequence[Input] = (), version: str = "", unsettled: PendingEvidence | None = None
) -> Verdict:
    """The verdict on one run. ``inputs`` and ``version``: listed as its sources and its maker; ``unsettled``: why more
    evidence may still come, so that health is at most possible."""
    ranked = arbiter.arbitrate(judge_by(facts, families()), families())
    if unsettled is not None and ranked.primary.role == "health":
        actions = tuple(act for act in ranked.primary.actions if act.sentence is not NOTHING_TO_DO)
        ranked = replace(ranked, primary=replace(ranked.primary, certainty=Certainty.POSSIBLE, actions=actions))
    preflight = facts.get(Preflight)
    pattern = evidence_pattern(ranked.primary, ranked.consequences, ranked.rival_open, facts)
    return Verdict(
        run=facts.run,
        primary=replace(fill_commands(ranked.primary, facts), confidence=confidence_of(pattern)),
        consequences=tuple(fill_commands(finding, facts) for finding in ranked.consequences),
        warnings=tuple(fill_commands(finding, facts) for finding in ranked.warnings),
        ruled_out=ranked.ruled_out,
        unknown=ranked.unknown,
        preflight=() if isinstance(preflight, Missing) else preflight.claims,
        progress=_progress(facts),
        last_attempt=_last_attempt(facts),
        cost=cost(facts, ranked, {family.code: family.cost_kind for family in families()}),
        curves=plots.curves(facts.store, ranked.primary),
        inputs=tuple(inputs),
        version=version,
        unsettled=unsettled,
        pattern=pattern,
    )


def _progress(facts: Facts) -> Progress | None:
    """The progress that the log shows; of a log with several runs, also that of the last one."""
    trajectory, earlier = facts.get(Trajectory), facts.answer(EARLIER)
    own, plans = ((), ()) if isinstance(trajectory, Missing) else (trajectory.progress.events, trajectory.plans.events)
    before = earlier.events if isinstance(earlier, Frame) else ()
    whole = _progress_of(facts.run.framework, (*before, *own), plans)
    if whole is None or not before:
        return whole
    none = Progress(facts.run.framework, 0, (None, None), (None, None))
    return replace(whole, last_run=_progress_of(facts.run.framework, own, plans, before) or none)


def _last_attempt(facts: Facts) -> LastAttempt | None:
    """How far the run came at its last attempt, by the figures that its evidence states."""
    trajectory = facts.get(Trajectory)
    if isinstance(trajectory, Missing) or not trajectory.points:
        return None
    loss = LossCurve(trajectory.curve)
    losses = [printed_loss(row) for row in loss.curve.rows[:1] + loss.curve.rows[-1:]] or [None, None]
    shape = facts.get(LossShape)
    is_wrong = isinstance(shape, LossShape) and shape.shape is not None  # then its sentence has the figures
    medians = maths.ends(loss.curve.finite) if loss.ends_mislead and not is_wrong else None
    place = last_position(trajectory)
    return LastAttempt(place, loss.point_count, losses[0], losses[-1], loss.has_earlier_attempt, medians)


def _progress_of(
    framework: str | None, rows: Sequence[Event], plan_rows: Sequence[Event], before: Sequence[Event] = ()
) -> Progress | None:
    """The progress that these logged steps show; ``before``: those of earlier runs in the same file."""
    points = [event for event in rows if event.get("split") != "eval"]
    if not points:
        return None
    planned = [numeric_field(row, "total_steps") for row in (*plan_rows, *points)]
    plans = [int(steps) for steps in planned if steps is not None]
    with_loss = [row for row in points if printed_loss(row) is not None] or points
    first, last = ((numeric_field(row, "step"), numeric_field(row, "loss")) for row in (with_loss[0], with_loss[-1]))
    plan = plans[-1] if plans and not is_plan_of_part(plans[-1], last[0] or 0) else None
    return Progress(framework, _count(points, before), first, last, plan)


def _count(points: Sequence[Event], before: Sequence[Event]) -> int:
    """The number of points printed: those in the log, or by the ordinal of the last one if the series was thinned."""
    ordinals = {_series_of(point): point.get("ordinal") for point in before}
    counts: dict[tuple[str, str], int] = {}
    for point in points:
        series, ordinal = _series_of(point), point.get("ordinal")
        if isinstance(ordinal, int):
            previous = ordinals.get(series)
            counts[series] = ordinal - (previous if isinstance(previous, int) else -1)
        else:
            counts[series] = counts.get(series, 0) + 1
    return sum(counts.values())


def _series_of(point: Event) -> tuple[str, str]:
    return point.at.path, point.parser
