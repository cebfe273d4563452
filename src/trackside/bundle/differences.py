"""Compares two verdicts on a run: finding, owner, certainty and location."""

from __future__ import annotations

from collections.abc import Callable

from trackside.finding import Finding, Verdict


def differences(before: Verdict, after: Verdict, renamed: Callable[[str], str] = str) -> list[str]:
    """The differences of a second verdict. ``renamed``: maps names in the first verdict to those in the second."""
    old, new = _compared_fields(before, renamed), _compared_fields(after, str)
    return [
        f"{name}: {new[name] or 'none'}, was {value or 'none'}" for name, value in old.items() if new[name] != value
    ]


def _compared_fields(verdict: Verdict, renamed: Callable[[str], str]) -> dict[str, str]:
    return {
        **_finding(verdict.primary, renamed),
        "consequences": _codes(verdict.consequences),
        "warnings": _codes(verdict.warnings),
        "disposition": str(verdict.run.disposition or ""),
    }


def _finding(finding: Finding, renamed: Callable[[str], str]) -> dict[str, str]:
    gpus = (_gpu(gpu, renamed) for gpu in finding.gpus)
    return {
        "family": finding.family,
        "owner": finding.culprit,
        "outcome": finding.outcome.value,
        "certainty": finding.certainty.value if finding.certainty is not None else "",
        "variant": finding.variant or "",
        "class of fault": finding.fault_class or "",
        "ranks": ", ".join(map(str, sorted(finding.ranks))),
        "nodes": ", ".join(sorted(renamed(node) for node in finding.nodes)),
        "GPUs": ", ".join(sorted(gpus)),
    }


def _gpu(name: str, renamed: Callable[[str], str]) -> str:
    """Rename ``node:index``; a PCI address contains no name."""
    node, colon, index = name.rpartition(":")
    return f"{renamed(node)}:{index}" if colon and index.isdecimal() else name


def _codes(findings: tuple[Finding, ...]) -> str:
    return ", ".join(sorted(finding.family for finding in findings))
