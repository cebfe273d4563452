"""Plan the asks of all families, fetch each once, check what can be trusted, judge, arbitrate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackside.evidence import UNANSWERED, BatchStore, Frame, Grid, Missing, MissingAnswer, Store
from trackside.facts.cost.cost import cost
from trackside.facts.fact import Facts, closure, guarded, questions, unmet
from trackside.facts.gpus import located
from trackside.facts.trust import preflight, telemetry
from trackside.facts.trust.trust import Trust
from trackside.families import families
from trackside.family import Family
from trackside.finding import Finding, Outcome, Progress, Verdict, unknown
from trackside.model import Event, Input, Plane, Run
from trackside.query import events
from trackside.verdict import arbiter, plots

Answer = Frame | Grid | MissingAnswer


def judge_all(
    store: Store, run: Run, chosen: Sequence[Family] | None = None, trust: Trust | None = None
) -> list[Finding]:
    """Every family's finding on one run, by code. ``trust``: what preflight makes of the metrics."""
    trust = trust if trust is not None else telemetry.examine(store, run).trust
    trust = replace(trust, in_part=_in_part(store))
    return judge_by(Facts(store, run, trust.checked), trust, families() if chosen is None else chosen)


def judge_by(facts: Facts, trust: Trust, chosen: Sequence[Family]) -> list[Finding]:
    """The findings of these families on the facts of one run."""
    findings = []
    for family in chosen:
        finding = _judge(family, facts)
        finding = replace(finding, family=family.code, id=family.id, title=finding.title or family.title)
        findings.append(trust.limited(finding, family.by_silence))
    return findings


def _in_part(store: Store) -> dict[Plane, str]:
    """Planes of rows of which not all came, and why. Of metrics each question has its own answer."""
    silent = store.ask(events(UNANSWERED))
    rows = silent.events if isinstance(silent, Frame) else ()
    return {row.plane: row.text for row in reversed(rows) if row.plane != "metric"}


def _judge(family: Family, facts: Facts) -> Finding:
    """UNKNOWN if a need is not met: the engine's word, not the author's."""
    if family.asks:
        return _judge_evidence(family, facts)
    values = facts.arguments(family.parameters)
    if missing := facts.missing(family.parameters):
        return unknown(missing, family.collect)
    if family.limits is not None:
        values["limits"] = family.limits
    judged = guarded(family.code, lambda: family.judge(**values))
    finding = unknown([judged.reason], family.collect) if isinstance(judged, Missing) else located(judged, facts.run)
    if finding.outcome is Outcome.UNKNOWN:  # first of all for want of what was asked and not answered
        reasons = (*facts.silent_sources(family.facts), *finding.missing)
        finding = replace(finding, missing=tuple(dict.fromkeys(reasons)))
    return finding


def _judge_evidence(family: Family, facts: Facts) -> Finding:
    """Transitional: a family that asks by itself."""
    evidence = facts.evidence(family.asks)
    missing = [reason.reason for need in family.needs if (reason := unmet(evidence, [need])) is not None]
    if missing:
        return unknown(dict.fromkeys(missing), family.collect)
    judged = family.judge(evidence, facts.run, family.limits)
    assert isinstance(judged, Finding)
    finding = located(judged, facts.run)
    if finding.outcome is Outcome.UNKNOWN:
        missing = [a.reason for a in evidence.answers.values() if isinstance(a, Missing) and a.source]
        finding = replace(finding, missing=tuple(dict.fromkeys((*missing, *finding.missing))))
    return finding


def diagnose(store: Store, run: Run, inputs: Sequence[Input] = (), version: str = "") -> Verdict:
    """The verdict on one run from one store."""
    if isinstance(store, BatchStore):
        asked = (query for family in families() for query in family.asks.values())
        derived_from = (query for kind in closure(k for f in families() for k in f.facts) for query in questions(kind))
        store.expect(dict.fromkeys((*asked, *derived_from)))
    examined = telemetry.examine(store, run)
    findings = judge_all(store, run, trust=examined.trust)
    ranked = arbiter.arbitrate(findings, families())
    return Verdict(
        run=run,
        primary=ranked.primary,
        consequences=ranked.consequences,
        warnings=ranked.warnings,
        ruled_out=ranked.ruled_out,
        unknown=ranked.unknown,
        preflight=preflight.check(store, run, examined),
        progress=_progress(store, run),
        cost=cost(store, run, ranked.primary, ranked.warnings, examined.trust, ranked.consequences),
        curves=plots.curves(store, ranked.primary),
        inputs=tuple(inputs),
        version=version,
        pattern=ranked.pattern,
    )


def _progress(store: Store, run: Run) -> Progress | None:
    answer = store.ask(events("progress"))
    points = [event for event in answer.events if event.get("split") != "eval"] if isinstance(answer, Frame) else []
    if not points:
        return None
    plan = store.ask(events("training_plan"))
    planned = [e.get("total_steps") for e in plan.events] if isinstance(plan, Frame) else []
    planned += [point.get("total_steps") for point in points]
    known = [int(value) for value in planned if isinstance(value, (int, float))]

    def pair(index: int) -> tuple[float | None, float | None]:
        step, loss = points[index].get("step"), points[index].get("loss")
        return (
            float(step) if isinstance(step, (int, float)) else None,
            float(loss) if isinstance(loss, (int, float)) else None,
        )

    return Progress(run.framework, _counted(points), pair(0), pair(-1), known[-1] if known else None)


def _counted(points: Sequence[Event]) -> int:
    """Points printed: those held, or, of a thinned series, as many as its last one says came before it."""
    counts: dict[tuple[str, str], int] = {}
    for point in points:
        series = point.at.path, point.parser
        ordinal = point.get("ordinal")
        counts[series] = ordinal + 1 if isinstance(ordinal, int) else counts.get(series, 0) + 1
    return sum(counts.values())
