"""Judges all families on the facts of one run, ranks the findings, and computes what the fault cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackside.evidence import BatchStore, Missing, Store
from trackside.facts.cost.earlier_attempts import EarlierAttempts
from trackside.facts.fact import Facts, closure, derivation, guard
from trackside.facts.gpus import with_location
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.facts.training.loss_curve import GaugeFrame, LossCurve
from trackside.facts.trust.preflight import Preflight
from trackside.facts.trust.telemetry import trusted_facts
from trackside.families import families
from trackside.family import Family
from trackside.finding import Finding, Outcome, Progress, Verdict, unknown
from trackside.model import Event, Input, Run
from trackside.verdict import arbiter, plots
from trackside.verdict.commands import fill_commands
from trackside.verdict.confidence import confidence_of, evidence_pattern
from trackside.verdict.cost import cost
from trackside.verdict.partial_evidence import unknown_if_incomplete


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
        unknown([result.reason], family.collect) if isinstance(result, Missing) else with_location(result, facts.run)
    )
    if finding.outcome is Outcome.UNKNOWN:  # sources that did not answer come first
        reasons = (*facts.unanswered_reasons(family.facts), *finding.missing)
        finding = replace(finding, missing=tuple(dict.fromkeys(reasons)))
    return finding


def verdict_of(facts: Facts, inputs: Sequence[Input] = (), version: str = "") -> Verdict:
    """The verdict on one run. ``inputs`` and ``version``: listed as its sources and its maker."""
    ranked = arbiter.arbitrate(judge_by(facts, families()), families())
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
        cost=cost(facts, ranked, {family.code: family.cost_kind for family in families()}),
        curves=plots.curves(facts.store, ranked.primary),
        inputs=tuple(inputs),
        version=version,
        pattern=pattern,
    )


def _progress(facts: Facts) -> Progress | None:
    trajectory = facts.get(Trajectory)
    if isinstance(trajectory, Missing):
        return None
    points = [event for event in trajectory.progress.events if event.get("split") != "eval"]
    if not points:
        return None
    planned = [numeric_field(row, "total_steps") for row in (*trajectory.plans.events, *points)]
    plans = [int(steps) for steps in planned if steps is not None]
    n_points, first_row, last_row = _count(points), points[0], points[-1]
    loss = facts.get(LossCurve)
    if not isinstance(loss, Missing) and loss.curve.rows and not isinstance(loss.curve.frame, GaugeFrame):
        n_points, first_row, last_row = int(loss.points.number), loss.curve.rows[0], loss.curve.rows[-1]
    first = numeric_field(first_row, "step"), numeric_field(first_row, "loss")
    last = numeric_field(points[-1], "step"), numeric_field(last_row, "loss")
    return Progress(facts.run.framework, n_points, first, last, plans[-1] if plans else None)


def _count(points: Sequence[Event]) -> int:
    """The number of points printed: those in the log, or the ordinal of the last one if the series was thinned."""
    counts: dict[tuple[str, str], int] = {}
    for point in points:
        series = point.at.path, point.parser
        ordinal = point.get("ordinal")
        counts[series] = ordinal + 1 if isinstance(ordinal, int) else counts.get(series, 0) + 1
    return sum(counts.values())
