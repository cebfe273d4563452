"""Plan the asks of all families, fetch each once, check what can be trusted, judge, arbitrate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from trackside.evidence import UNANSWERED, Evidence, Frame, Grid, MissingAnswer, Store
from trackside.facts.cost.cost import cost
from trackside.facts.gpus import located
from trackside.facts.trust import preflight, telemetry
from trackside.facts.trust.trust import Trust
from trackside.families import families
from trackside.family import Family
from trackside.finding import Finding, Outcome, Progress, Verdict, unknown
from trackside.model import Event, Input, Plane, Run
from trackside.query import Query, events
from trackside.verdict import arbiter, plots

Answer = Frame | Grid | MissingAnswer


@runtime_checkable
class Batching(Protocol):
    """A store that answers several questions in fewer passes than one each."""

    def ask_many(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """The answers, in the order of asking."""
        ...

    def expect(self, queries: Iterable[Query]) -> None:
        """These will be asked, each at its time."""
        ...


def judge_all(
    store: Store, run: Run, chosen: Sequence[Family] | None = None, trust: Trust | None = None
) -> list[Finding]:
    """Every family's finding on one run, by code. ``trust``: what preflight makes of the metrics, where it was asked.

    Each distinct question is asked once, a family's together, and its answer let go after the last that needs it: those
    on thousands of GPUs are large.
    """
    chosen = chosen if chosen is not None else families()
    trust = trust if trust is not None else telemetry.examine(store, run).trust
    trust = replace(trust, in_part=_in_part(store))
    wanted = Counter(query for family in chosen for query in set(family.asks.values()))
    held: dict[Query, Answer] = {}
    findings = []
    for family in chosen:
        fresh = [query for query in dict.fromkeys(family.asks.values()) if query not in held]
        held.update(
            (query, trust.checked(query, answer)) for query, answer in zip(fresh, ask(store, fresh), strict=True)
        )
        answers = {name: held[query] for name, query in family.asks.items()}
        finding = _judge(family, Evidence(answers), run)
        finding = replace(finding, family=family.code, id=family.id, title=finding.title or family.title)
        findings.append(trust.limited(finding, family.by_silence))
        wanted.subtract(set(family.asks.values()))
        held = {query: answer for query, answer in held.items() if wanted[query]}
    return findings


def _in_part(store: Store) -> dict[Plane, str]:
    """Planes of rows of which not all came, and why. Of metrics each question has its own answer."""
    silent = store.ask(events(UNANSWERED))
    rows = silent.events if isinstance(silent, Frame) else ()
    return {row.plane: row.text for row in reversed(rows) if row.plane != "metric"}


def ask(store: Store, queries: Sequence[Query]) -> Sequence[Answer]:
    """Several answers, together where the store can."""
    return store.ask_many(queries) if isinstance(store, Batching) else [store.ask(query) for query in queries]


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
    finding = located(family.judge(evidence, run, family.limits), run)
    if finding.outcome is Outcome.UNKNOWN:  # first of all for want of what was asked and not answered
        missing = [
            answer.reason for answer in evidence.answers.values() if isinstance(answer, MissingAnswer) and answer.source
        ]
        finding = replace(finding, missing=tuple(dict.fromkeys((*missing, *finding.missing))))
    return finding


def diagnose(store: Store, run: Run, inputs: Sequence[Input] = (), version: str = "") -> Verdict:
    """The verdict on one run from one store."""
    if isinstance(store, Batching):
        store.expect(dict.fromkeys(query for family in families() for query in family.asks.values()))
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
