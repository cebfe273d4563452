"""Turns findings that need complete evidence into UNKNOWN if the evidence is incomplete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trackside.evidence import UNABLE_TO_CHECK, Missing
from trackside.facts.fact import Facts
from trackside.facts.logs.unread_errors import UnreadErrors
from trackside.facts.trust.telemetry import TelemetryTrust
from trackside.facts.trust.unanswered import UnansweredSources
from trackside.finding import Certainty, Finding, Outcome, unknown
from trackside.model import Plane

MAX_NAMES = 8
"""Nodes or GPUs listed by name; further ones are only counted."""


def unknown_if_incomplete(finding: Finding, facts: Facts, absence_based: bool = False) -> Finding:
    """The finding, or UNKNOWN if the evidence is incomplete.

    ``absence_based``: see :class:`trackside.family.Family`.
    """
    unanswered, telemetry, unread = facts.get(UnansweredSources), facts.get(TelemetryTrust), facts.get(UnreadErrors)
    if not isinstance(unanswered, Missing):
        finding = _with_partial_rows(finding, unanswered, absence_based)
    if not isinstance(unread, Missing) and unread.rows and _rests_on_no_row(finding):
        return _as_unknown(finding, [unread.reason])
    cites = [cite for claim in finding.because for cite in claim.cites]
    rests_on_metrics = finding.outcome is Outcome.ABSENT and all(cite.plane == "metric" for cite in cites)
    if not rests_on_metrics or isinstance(telemetry, Missing):
        return finding
    missing = [f"no GPU metrics of {_join_names(telemetry.unmeasured)} were given"] if telemetry.unmeasured else []
    missing += (
        [f"the GPU metrics of {_join_names(telemetry.silent_nodes)} end before the run"]
        if telemetry.silent_nodes
        else []
    )
    if not missing:
        return finding
    return _as_unknown(finding, missing, ("GPU metrics of all of the run's nodes, from its start to its end",))


def _with_partial_rows(finding: Finding, unanswered: UnansweredSources, absence_based: bool) -> Finding:
    """The finding if some rows are missing: a row count rules nothing out, the last row does not show silence, and
    apparent health is not established."""
    cites = [cite for claim in finding.because for cite in claim.cites]
    doubtful_planes: set[Plane] = {cite.plane for cite in cites if cite.query and cite.query.reducer == "count"}
    if absence_based and "metric" not in finding.planes:
        doubtful_planes |= {plane for plane in finding.planes if plane == "log"}
    if missing := [
        UNABLE_TO_CHECK + unanswered.in_part[plane] for plane in sorted(doubtful_planes & unanswered.in_part.keys())
    ]:
        return _as_unknown(finding, missing)
    if finding.role == "health" and finding.certainty is Certainty.ESTABLISHED and "log" in unanswered.in_part:
        return replace(finding, certainty=Certainty.SUPPORTED)
    return finding


def _rests_on_no_row(finding: Finding) -> bool:
    """Whether a family is ruled out only because the log has no row of some kind."""
    values = [value for claim in finding.because for value in claim.values.values()]
    cites = [cite for value in values for cite in value.cites]
    counted = all(cite.plane == "log" and cite.query and cite.query.reducer == "count" for cite in cites)
    return finding.outcome is Outcome.ABSENT and bool(values) and counted and all(value.value == 0 for value in values)


def _as_unknown(finding: Finding, missing: Iterable[str], collect: Iterable[str] = ()) -> Finding:
    """UNKNOWN instead of the finding."""
    return replace(
        unknown(missing, collect), family=finding.family, id=finding.id, role=finding.role, title=finding.title
    )


def _join_names(names: tuple[str, ...]) -> str:
    """Names as text, at most MAX_NAMES of them."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
