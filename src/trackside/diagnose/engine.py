"""Plan the asks of all families, fetch each once, check what can be trusted, judge, arbitrate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackside.diagnose import arbiter, preflight
from trackside.diagnose.family import Evidence, Family, families, unknown
from trackside.model import Event, Finding, Input, Progress, Run, Value, Verdict
from trackside.query import Frame, Grid, Missing, Query, Store, derived, events, record


def judge_all(store: Store, run: Run, chosen: Sequence[Family] | None = None) -> list[Finding]:
    """Every family's finding on one run, by code."""
    cache: dict[Query, Frame | Grid | Missing] = {}
    findings = []
    for family in chosen if chosen is not None else families():
        answers = {}
        for name, query in family.asks.items():
            if query not in cache:
                cache[query] = store.ask(query)
            answers[name] = cache[query]
        finding = _judge(family, Evidence(answers), run)
        findings.append(replace(finding, family=family.code, id=family.id, title=family.title))
    return findings


def _judge(family: Family, evidence: Evidence, run: Run) -> Finding:
    """UNKNOWN where a need is not met: the engine's word, not the author's."""
    missing = []
    for need in family.needs:
        names = (need,) if isinstance(need, str) else need
        if not any(evidence.has(name) for name in names):
            reasons = (evidence.missing(name) for name in names)
            missing.append(" or ".join(dict.fromkeys(reason.reason for reason in reasons if reason is not None)))
    if missing:
        return unknown(dict.fromkeys(missing), family.collect)
    return family.judge(evidence, run, family.limits)


def diagnose(store: Store, run: Run, inputs: Sequence[Input] = (), version: str = "") -> Verdict:
    """The verdict on one run from one store."""
    findings = judge_all(store, run)
    ranked = arbiter.arbitrate(findings, families())
    return Verdict(
        run=run,
        primary=ranked.primary,
        consequences=ranked.consequences,
        warnings=ranked.warnings,
        ruled_out=ranked.ruled_out,
        unknown=ranked.unknown,
        preflight=preflight.check(store, run),
        progress=_progress(store, run),
        gpu_hours=_gpu_hours(store),
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


def _gpu_hours(store: Store) -> Value | None:
    """GPU-hours that the run held, from its accounting record."""
    answer = store.ask(record("job"))
    if not isinstance(answer, Frame):
        return None
    for row in reversed(answer.records):
        gpus, seconds = row.get("n_gpus"), row.get("elapsed_s")
        if isinstance(gpus, (int, float)) and isinstance(seconds, (int, float)) and gpus:
            sources = answer.value(row, "n_gpus"), answer.value(row, "elapsed_s", "s")
            return derived(round(gpus * seconds / 3600, 3), *sources, unit="GPU h")
    return None
