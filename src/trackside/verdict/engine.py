"""Judge all families on the facts of one run, arbitrate, and say what the fault cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackside.evidence import BatchStore, Missing, Store
from trackside.facts.cost.earlier_attempts import EarlierAttempts
from trackside.facts.fact import Facts, closure, derivation, guarded
from trackside.facts.gpus import located
from trackside.facts.training.learning import Trajectory, number
from trackside.facts.trust.preflight import Preflight
from trackside.facts.trust.telemetry import trusted_facts
from trackside.families import families
from trackside.family import Family
from trackside.finding import Finding, Outcome, Progress, Verdict, unknown
from trackside.model import Event, Input, Run
from trackside.verdict import arbiter, plots
from trackside.verdict.cost import cost
from trackside.verdict.partial_evidence import limited


def facts_of(store: Store, run: Run) -> Facts:
    """The facts of a run; its store is first told of all that a verdict asks, to answer it in few passes."""
    if isinstance(store, BatchStore):
        kinds = (*(kind for family in families() for kind in family.facts), Preflight, EarlierAttempts)
        derivations = (derivation(kind) for kind in closure(kinds))
        store.expect(dict.fromkeys(query for one in derivations if not one.lazy for query in one.asks.values()))
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
        findings.append(limited(finding, facts, family.by_silence))
    return findings


def _judge(family: Family, facts: Facts) -> Finding:
    """UNKNOWN if a need is not met: the engine's word, not the author's."""
    if missing := facts.missing(family.parameters):
        return unknown(missing, family.collect)
    values = facts.arguments(family.parameters)
    if family.limits is not None:
        values["limits"] = family.limits
    judged = guarded(family.code, lambda: family.judge(**values))
    finding = unknown([judged.reason], family.collect) if isinstance(judged, Missing) else located(judged, facts.run)
    if finding.outcome is Outcome.UNKNOWN:  # first of all for want of what was asked and not answered
        reasons = (*facts.silent_sources(family.facts), *finding.missing)
        finding = replace(finding, missing=tuple(dict.fromkeys(reasons)))
    return finding


def verdict_of(facts: Facts, inputs: Sequence[Input] = (), version: str = "") -> Verdict:
    """The verdict on one run. ``inputs`` and ``version`` are what it names as its sources and its maker."""
    ranked = arbiter.arbitrate(judge_by(facts, families()), families())
    preflight = facts.get(Preflight)
    return Verdict(
        run=facts.run,
        primary=ranked.primary,
        consequences=ranked.consequences,
        warnings=ranked.warnings,
        ruled_out=ranked.ruled_out,
        unknown=ranked.unknown,
        preflight=() if isinstance(preflight, Missing) else preflight.claims,
        progress=_progress(facts),
        cost=cost(facts, ranked, {family.code: family.loses for family in families()}),
        curves=plots.curves(facts.store, ranked.primary),
        inputs=tuple(inputs),
        version=version,
        pattern=ranked.pattern,
    )


def _progress(facts: Facts) -> Progress | None:
    trajectory = facts.get(Trajectory)
    if isinstance(trajectory, Missing):
        return None
    points = [event for event in trajectory.progress.events if event.get("split") != "eval"]
    if not points:
        return None
    planned = [number(row, "total_steps") for row in (*trajectory.plans.events, *points)]
    known = [int(steps) for steps in planned if steps is not None]
    first, last = ((number(row, "step"), number(row, "loss")) for row in (points[0], points[-1]))
    return Progress(facts.run.framework, _counted(points), first, last, known[-1] if known else None)


def _counted(points: Sequence[Event]) -> int:
    """Points printed: those held, or, of a thinned series, as many as its last one says came before it."""
    counts: dict[tuple[str, str], int] = {}
    for point in points:
        series = point.at.path, point.parser
        ordinal = point.get("ordinal")
        counts[series] = ordinal + 1 if isinstance(ordinal, int) else counts.get(series, 0) + 1
    return sum(counts.values())
