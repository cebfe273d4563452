"""Ranks findings: which one is the first cause, and which are its consequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trackside.catalog.command_line import COMMAND_LINE_ERRORS
from trackside.family import Family
from trackside.finding import Certainty, Finding, Outcome, Sentence, action
from trackside.remedies import NOTHING_TO_DO

LOG_SLACK_S = 1.0
"""Log lines about the same moment may differ in time by this much."""
MIN_LINES_APART = 100
"""Processes that fail together print within fewer lines than this, in any order."""
METRIC_SLACK_S = 60.0
"""Times of one moment may differ by this much if a metric gives one of them: its time is known only to a window."""
KERNEL_SLACK_S = 240.0
"""Such a difference for a cause that the kernel reports: it reports a blocked task after 120 to 240 s
(hung_task_timeout_secs), and a file server that does not answer after its requests timed out."""
SAME_GPU_SLACK_S = 600.0
"""Such a difference for two metrics of one GPU: ten windows of a minute. Both are smoothed, to
separate a phase from a blip, and a slow GPU stands out among its peers before its own clock settles."""


GIVEN_TO_THE_JOB = ("asset", "config")
"""Classes of errors about what the job was given: a path, a setting. No fault of a GPU or a process causes them."""
CAUSES_OF_BAD_INPUT = ("E1", "H4")
"""Families whose faults do cause such errors: values that are not finite, files that cannot be read."""

CHECK_WARNINGS = Sentence("also look at the warnings")
WARNINGS_ONLY = Sentence(
    "look at the warnings; they did not end this run", running="look at the warnings; they have not ended this run"
)
CHECK_WARNINGS_AFTER_END = Sentence(
    "also look at the warnings; they did not end this run",
    running="also look at the warnings; they have not ended this run",
)


@dataclass(frozen=True, slots=True)
class RankedFindings:
    """The findings that a verdict shows, ranked. A cause or an exception that the primary one cites itself, and health
    next to a fault, are left out."""

    primary: Finding
    consequences: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    ruled_out: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    rival_open: bool
    """Whether a family that looks like the primary one was left undecided."""


def arbitrate(findings: Sequence[Finding], families: Sequence[Family]) -> RankedFindings:
    """Choose the primary: a FOUND family that no other FOUND one explains; earliest, then most certain."""
    explains = {family.code: frozenset(family.explains) for family in families}
    rivals = {family.code: frozenset(family.rivals) for family in families}
    present_findings = [finding for finding in findings if finding.outcome is Outcome.FOUND and not finding.latent]
    latent = [finding for finding in findings if finding.outcome is Outcome.FOUND and finding.latent]
    faults = [finding for finding in present_findings if _is_fault(finding)]
    slowdowns = frozenset(family.code for family in families if family.cost_kind in ("slow", "paused"))
    candidates = _unexplained(faults, explains, slowdowns) or [
        finding for finding in present_findings if finding.role == "health"
    ]
    candidates = candidates or [finding for finding in findings if finding.role == "last_resort"]
    primary = min(candidates, key=_rank)
    chain = _closure(primary.family, explains)
    others = [finding for finding in present_findings if finding is not primary and _is_fault(finding)]
    causes = [
        finding for finding in others if primary.family in explains[finding.family] and _may_cause(finding, primary)
    ]  # a cause that ranked second (a cycle of explanations, or its time is unknown) is not a consequence
    others = [finding for finding in others if not (finding in causes and _named_by(primary, finding))]
    related = [
        finding
        for finding in others
        if finding.family in chain
        and finding not in causes
        and not _is_of_next_program(finding, primary)
        and not _is_independent(finding, primary)
    ]
    earlier = [finding for finding in related if _is_earlier(finding, primary)]
    consequences = tuple(finding for finding in related if finding not in earlier)
    unrelated = [finding for finding in others if finding not in related]
    warnings = (*unrelated, *earlier, *(finding for finding in latent if finding is not primary))
    independent = [finding for finding in unrelated if finding.family in chain and _is_independent(finding, primary)]
    steps = [step for finding in independent for step in finding.actions if step not in primary.actions]
    advised = replace(primary, actions=(*primary.actions, *steps))  # the next run fails without them, too
    others_and_health = [finding for finding in findings if finding.role != "last_resort" and finding is not primary]
    open_codes = {finding.family for finding in others_and_health if finding.outcome is Outcome.UNKNOWN} | {
        finding.family for finding in unrelated
    }
    return RankedFindings(
        primary=_with_warnings(advised) if warnings else primary,
        consequences=tuple(
            _with_secondary_headline(finding) for finding in consequences if not _is_same_exception(finding, primary)
        ),
        warnings=tuple(
            _with_secondary_headline(finding) for finding in warnings if not _is_same_exception(finding, primary)
        ),
        ruled_out=tuple(finding for finding in others_and_health if finding.outcome is Outcome.ABSENT),
        unknown=tuple(finding for finding in others_and_health if finding.outcome is Outcome.UNKNOWN),
        rival_open=bool(rivals.get(primary.family, frozenset()) & open_codes),
    )


def _with_warnings(primary: Finding) -> Finding:
    """The primary finding; if it is health, its advice names the warnings. A slow run's does so itself. If health is
    only possible, it is not known that the warnings did not end the run."""
    if primary.role != "health" or primary.variant == "slow":
        return primary
    advice = CHECK_WARNINGS if primary.certainty is Certainty.POSSIBLE else CHECK_WARNINGS_AFTER_END
    needed = [step for step in primary.actions if step.sentence is not NOTHING_TO_DO]
    return replace(primary, actions=(*needed, action(advice if needed else WARNINGS_ONLY)))


def _with_secondary_headline(finding: Finding) -> Finding:
    """The finding with the headline that it has if another finding is primary."""
    return finding if finding.secondary_headline is None else replace(finding, headline=finding.secondary_headline)


def _is_fault(finding: Finding) -> bool:
    """Whether the finding is about a fault, or about how the run ended."""
    return finding.role in ("fault", "disposition")


def _unexplained(
    faults: Sequence[Finding], explains: dict[str, frozenset[str]], slowdowns: frozenset[str]
) -> list[Finding]:
    """Faults that no other fault explains. A merely possible cause does not explain an established fault, and a cause
    known to be later does not explain an earlier fault, and does not outweigh a known end. That a run was slow does not
    say why it ended."""
    open_ = [
        fault
        for fault in faults
        if not any(
            fault.family in explains.get(other.family, frozenset()) and _may_cause(other, fault)
            for other in faults
            if other is not fault
        )
    ]
    others = [fault for fault in open_ if fault.family not in slowdowns]
    strongest = max((_strength(fault) for fault in others), default=-1)
    open_ = [fault for fault in open_ if fault in others or _strength(fault) > strongest]
    ends = [fault for fault in open_ if fault.role == "disposition"]
    causes = [fault for fault in open_ if fault.role != "disposition" and (_strength(fault) > 0 or not ends)]
    return causes or ends or list(faults)


def _is_earlier(finding: Finding, primary: Finding) -> bool:
    """Whether it stands so far above the primary in the same log that it can be no consequence of it."""
    here, there = finding.at, primary.at
    if here is None or there is None or here.path != there.path or there.line - here.line < MIN_LINES_APART:
        return False
    return finding.since is None or primary.since is None or finding.since < primary.since - LOG_SLACK_S


def _is_of_next_program(finding: Finding, primary: Finding) -> bool:
    """Whether somebody interrupted another program, further down in the log: one that rejects its command line exits at
    once."""
    rejected = primary.exception is not None and primary.exception[0] in COMMAND_LINE_ERRORS
    return rejected and finding.variant == "interrupt" and finding.at is not None and finding.at != primary.at


def _is_independent(finding: Finding, cause: Finding) -> bool:
    """Whether a process failed because of what the job was given, which the other fault has not changed: the next run
    fails there, too."""
    is_about_input = finding.exception is not None and finding.fault_class in GIVEN_TO_THE_JOB
    return is_about_input and cause.fault_class is None and cause.family not in CAUSES_OF_BAD_INPUT


def _may_cause(cause: Finding, effect: Finding) -> bool:
    if _is_independent(effect, cause):
        return False
    if _strength(cause) == 0 and _strength(effect) == 2:
        return False
    return cause.since is None or effect.since is None or cause.since <= effect.since + _slack(cause, effect)


def _named_by(primary: Finding, cause: Finding) -> bool:
    """Whether the primary finding cites the same line of a log: then it names the cause itself."""
    lines, other_lines = (
        {(cite.plane, cite.where) for claim in finding.shows for cite in claim.cites if cite.plane in ("log", "kernel")}
        for finding in (primary, cause)
    )
    return bool(lines & other_lines)


def _is_same_exception(finding: Finding, primary: Finding) -> bool:
    """Whether it is about one exception, and the primary finding cites the line of that exception."""
    if finding.exception is None or finding.at is None:
        return False
    return any(cite.where == str(finding.at) for claim in primary.shows for cite in claim.cites if cite.plane == "log")


def _slack(cause: Finding, effect: Finding) -> float:
    """How much later than its effect a cause may appear: metrics date both only to a window."""
    if cause.at is None and effect.at is None and set(cause.gpus) & set(effect.gpus):
        return SAME_GPU_SLACK_S
    if "kernel" in cause.planes:
        return KERNEL_SLACK_S
    return METRIC_SLACK_S if "metric" in (*cause.planes, *effect.planes) else LOG_SLACK_S


def _strength(finding: Finding) -> int:
    return finding.certainty.strength if isinstance(finding.certainty, Certainty) else -1


def _rank(finding: Finding) -> tuple[bool, float, int, tuple[str, int]]:
    """Sort key: more than possible first, then earliest, then most certain, then position in the file."""
    at = (finding.at.path, finding.at.line) if finding.at is not None else ("~", 0)
    since = finding.since if finding.since is not None else math.inf
    return (_strength(finding) <= 0, since, -_strength(finding), at)


def _closure(code: str, explains: dict[str, frozenset[str]]) -> frozenset[str]:
    """All families that ``code`` explains, directly or indirectly."""
    codes: set[str] = set()
    pending: Iterable[str] = explains.get(code, ())
    while pending:
        new_codes = set(pending) - codes
        codes |= new_codes
        pending = {effect for new_code in new_codes for effect in explains.get(new_code, ())}
    return frozenset(codes - {code})
