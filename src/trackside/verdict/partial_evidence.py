"""Findings that rest on a part of the evidence as if it were all: what they say is not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trackside.evidence import UNABLE, Missing
from trackside.facts.fact import Facts
from trackside.facts.trust.telemetry import TelemetryTrust
from trackside.facts.trust.unanswered import UnansweredSources
from trackside.finding import Certainty, Finding, Outcome, unknown
from trackside.model import Plane

MAX_NAMES = 8
"""Nodes or GPUs that are named; more are counted."""


def limited(finding: Finding, facts: Facts, absence_based: bool = False) -> Finding:
    """The finding, or that it can't be told. ``absence_based``: see :class:`trackside.family.Family`."""
    silent, telemetry = facts.get(UnansweredSources), facts.get(TelemetryTrust)
    if not isinstance(silent, Missing):
        finding = _of_part(finding, silent, absence_based)
    cites = [cite for claim in finding.because for cite in claim.cites]
    by_metrics = finding.outcome is Outcome.ABSENT and all(cite.plane == "metric" for cite in cites)
    if not by_metrics or isinstance(telemetry, Missing):
        return finding
    missing = [f"GPU metrics of {_listed(telemetry.unmeasured)}"] if telemetry.unmeasured else []
    missing += [f"GPU metrics of {_listed(telemetry.stopped)} up to the run's end"] if telemetry.stopped else []
    if not missing:
        return finding
    return _instead(finding, missing, ("GPU metrics of all of the run's nodes, from its start to its end",))


def _of_part(finding: Finding, silent: UnansweredSources, absence_based: bool) -> Finding:
    """Of rows that did not all come: how many there are rules nothing out, their end is no silence, and what looks
    healthy so far is no full proof of health."""
    cites = [cite for claim in finding.because for cite in claim.cites]
    doubted: set[Plane] = {cite.plane for cite in cites if cite.query and cite.query.reducer == "count"}
    if absence_based and "metric" not in finding.planes:
        doubted |= {plane for plane in finding.planes if plane == "log"}
    if missing := [UNABLE + silent.in_part[plane] for plane in sorted(doubted & silent.in_part.keys())]:
        return _instead(finding, missing)
    if finding.role == "health" and finding.certainty is Certainty.ESTABLISHED and "log" in silent.in_part:
        return replace(finding, certainty=Certainty.SUPPORTED)
    return finding


def _instead(finding: Finding, missing: Iterable[str], collect: Iterable[str] = ()) -> Finding:
    """That it can't be told."""
    return replace(
        unknown(missing, collect), family=finding.family, id=finding.id, role=finding.role, title=finding.title
    )


def _listed(names: tuple[str, ...]) -> str:
    """Names as text, the first few of many."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
