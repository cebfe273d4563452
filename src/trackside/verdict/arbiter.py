"""Root before cascade: which finding is the first cause, and which are its consequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trackside.family import Family
from trackside.finding import Certainty, Finding, Outcome
from trackside.verdict import confidence

PRINTED_S = 1.0
"""By which the times of lines may differ that speak of one moment."""
SCRAPED_S = 60.0
"""The same where a curve tells one of the two: it is known to a window only."""
SMOOTHED_S = 300.0
"""The same of two curves: a few windows of a minute, as many as are smoothed to tell a spell from a blip."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Every finding in its place."""

    primary: Finding
    consequences: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    ruled_out: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    pattern: str


def arbitrate(findings: Sequence[Finding], families: Sequence[Family]) -> Ranked:
    """Choose the primary: a FOUND family that no other FOUND one explains; earliest, then most certain."""
    explains = {family.code: frozenset(family.explains) for family in families}
    rivals = {family.code: frozenset(family.rivals) for family in families}
    found = [f for f in findings if f.outcome is Outcome.FOUND and not f.latent]
    latent = [f for f in findings if f.outcome is Outcome.FOUND and f.latent]
    faults = [f for f in found if _is_fault(f)]
    candidates = _unexplained(faults, explains) or [f for f in found if f.role == "health"]
    candidates = candidates or [f for f in findings if f.role == "last_resort"]
    primary = min(candidates, key=_rank)
    chain = _closure(primary.family, explains)
    others = [f for f in found if f is not primary and _is_fault(f)]
    consequences = tuple(f for f in others if f.family in chain)
    warnings = tuple(f for f in others if f.family not in chain) + tuple(f for f in latent if f is not primary)
    rest = [f for f in findings if f.role != "last_resort" and f is not primary]
    still_open = {f.family for f in rest if f.outcome is Outcome.UNKNOWN} | {f.family for f in warnings if not f.latent}
    rival = bool(rivals.get(primary.family, frozenset()) & still_open)
    pattern = confidence.pattern(primary, consequences, rival)
    return Ranked(
        primary=replace(primary, confidence=confidence.of(primary.family, pattern)),
        consequences=consequences,
        warnings=warnings,
        ruled_out=tuple(f for f in rest if f.outcome is Outcome.ABSENT),
        unknown=tuple(f for f in rest if f.outcome is Outcome.UNKNOWN),
        pattern=pattern,
    )


def _is_fault(finding: Finding) -> bool:
    """Whether it speaks of a fault, or of how the run ended."""
    return finding.role in ("fault", "disposition")


def _unexplained(faults: Sequence[Finding], explains: dict[str, frozenset[str]]) -> list[Finding]:
    """Faults that no other fault explains. A merely possible cause does not explain an established one,
    and one that is known to have come later does not explain an earlier one."""
    open_ = [
        fault
        for fault in faults
        if not any(
            fault.family in explains.get(other.family, frozenset()) and _may_cause(other, fault)
            for other in faults
            if other is not fault
        )
    ]
    causes = [fault for fault in open_ if fault.role != "disposition"]
    return causes or open_ or list(faults)


def _may_cause(cause: Finding, effect: Finding) -> bool:
    if _strength(cause) == 0 and _strength(effect) == 2:
        return False
    return cause.since is None or effect.since is None or cause.since <= effect.since + _slack(cause, effect)


def _slack(cause: Finding, effect: Finding) -> float:
    """By how much a cause may be seen later than its effect: curves show it windows apart."""
    if cause.at is None and effect.at is None and set(cause.gpus) & set(effect.gpus):
        return SMOOTHED_S
    return SCRAPED_S if "metric" in (*cause.planes, *effect.planes) else PRINTED_S


def _strength(finding: Finding) -> int:
    return finding.certainty.strength if isinstance(finding.certainty, Certainty) else -1


def _rank(finding: Finding) -> tuple[bool, float, int, tuple[str, int]]:
    """Sort key: more than possible first, then earliest, then most certain, then place in the file."""
    at = (finding.at.path, finding.at.line) if finding.at is not None else ("~", 0)
    since = finding.since if finding.since is not None else math.inf
    return (_strength(finding) <= 0, since, -_strength(finding), at)


def _closure(code: str, explains: dict[str, frozenset[str]]) -> frozenset[str]:
    """All families that ``code`` explains, directly or through another."""
    seen: set[str] = set()
    todo: Iterable[str] = explains.get(code, ())
    while todo:
        fresh = set(todo) - seen
        seen |= fresh
        todo = {effect for each in fresh for effect in explains.get(each, ())}
    return frozenset(seen - {code})
