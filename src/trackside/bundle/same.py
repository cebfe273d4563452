"""Whether two verdicts say the same of a run: what was found, who is to blame, how sure, and where."""

from __future__ import annotations

from collections.abc import Callable

from trackside.finding import Finding, Verdict


def differences(before: Verdict, now: Verdict, renamed: Callable[[str], str] = str) -> list[str]:
    """What a second verdict says otherwise. ``renamed``: what the first one's names are called in the second."""
    then, there = _told(before, renamed), _told(now, str)
    return [f"{name}: {there[name] or 'none'}, was {was or 'none'}" for name, was in then.items() if there[name] != was]


def _told(verdict: Verdict, renamed: Callable[[str], str]) -> dict[str, str]:
    return {
        **_finding(verdict.primary, renamed),
        "consequences": _codes(verdict.consequences),
        "warnings": _codes(verdict.warnings),
        "disposition": str(verdict.run.disposition or ""),
    }


def _finding(finding: Finding, renamed: Callable[[str], str]) -> dict[str, str]:
    gpus = (_gpu(each, renamed) for each in finding.gpus)
    return {
        "family": finding.family,
        "culprit": finding.culprit,
        "outcome": finding.outcome.value,
        "certainty": finding.certainty.value if finding.certainty is not None else "",
        "variant": finding.variant or "",
        "class of fault": finding.fault_class or "",
        "ranks": ", ".join(map(str, sorted(finding.ranks))),
        "nodes": ", ".join(sorted(renamed(node) for node in finding.nodes)),
        "GPUs": ", ".join(sorted(gpus)),
    }


def _gpu(name: str, renamed: Callable[[str], str]) -> str:
    """``node:index`` is renamed, a PCI address is nobody's name."""
    node, colon, index = name.rpartition(":")
    return f"{renamed(node)}:{index}" if colon and index.isdecimal() else name


def _codes(findings: tuple[Finding, ...]) -> str:
    return ", ".join(sorted(finding.family for finding in findings))
