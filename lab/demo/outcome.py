"""Compares verdicts with what was injected, and formats the results as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.demo.fault import DemoFault

HEAD = ("fault", "job", "Slurm state", "verdict", "certainty", "s", "")


@dataclass(frozen=True)
class FaultResult:
    """The verdict on an injected fault. `mismatches`: how it differs from the expected verdict; empty: it is expected_verdict."""

    fault: DemoFault
    job: str
    state: str
    verdict: Mapping[str, Any] | None
    seconds: float | None
    """From the job's end in accounting to the verdict."""
    mismatches: tuple[str, ...] = ()
    output_tail: str = ""
    """The last lines of the job's output, if the verdict is wrong."""

    @property
    def is_right(self) -> bool:
        return not self.mismatches

    @property
    def primary(self) -> Mapping[str, Any]:
        return (self.verdict or {}).get("primary") or {}

    @property
    def title(self) -> str:
        if not self.primary:
            return "none"
        variant = f" ({self.primary['variant']})" if self.primary["variant"] else ""
        return f"{self.primary['family']}{variant} {self.primary['title']}"


def mismatches(fault: DemoFault, state: str, verdict: Mapping[str, Any], nodes: Sequence[str]) -> tuple[str, ...]:
    """How a verdict, and the end of the job, differ from what is expected."""
    expected_verdict, primary = fault.expected, verdict["primary"]
    expected_nodes = (
        None if expected_verdict.nodes is None else [nodes[number - 1] for number in expected_verdict.nodes]
    )
    checks = (
        ("Slurm's state", fault.state, state),
        ("disposition", fault.state, verdict["run"]["disposition"]),
        ("family", expected_verdict.family, primary["family"]),
        ("variant", expected_verdict.variant, primary["variant"]),
        ("owner", expected_verdict.culprit, primary["culprit"]),
        ("ranks", None if expected_verdict.ranks is None else list(expected_verdict.ranks), primary["ranks"]),
        ("nodes", expected_nodes, primary["nodes"]),
    )
    texts = [f"{name} is {got!r}, not {expected!r}" for name, expected, got in checks if expected not in (None, got)]
    evidence = [sentence["text"] for sentence in verdict["shows"]]
    if expected_verdict.shows and not any(expected_verdict.shows in text for text in evidence):
        texts.append(f"{expected_verdict.shows!r} is not in the evidence")
    all_text = "\n".join([*evidence, *(sentence["text"] for sentence in verdict["implies"])])
    texts += [f"{text!r} is stated, but is wrong" for text in expected_verdict.never if text in all_text]
    return tuple(texts)


def table(outcomes: Sequence[FaultResult]) -> str:
    """One row per fault; below the row of a wrong verdict, its mismatches."""
    rows = [
        (
            outcome.fault.name,
            outcome.job,
            outcome.state,
            outcome.title,
            str(outcome.primary.get("certainty", "")),
            "" if outcome.seconds is None else f"{outcome.seconds:.0f}",
            "right" if outcome.is_right else "WRONG",
        )
        for outcome in outcomes
    ]
    widths = [max(len(row[index]) for row in (HEAD, *rows)) for index in range(len(HEAD))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            text.rjust(width) if index == 5 else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    lines = [line(HEAD), line(["-" * width for width in widths])]
    for row, outcome in zip(rows, outcomes, strict=True):
        lines += [line(row), *(f"    {text}" for text in outcome.mismatches)]
    return "\n".join(lines)


def summary_text(outcome: FaultResult) -> str:
    """One verdict in a few lines: cause, owner, evidence and consequences."""
    verdict, primary = outcome.verdict or {"shows": [], "implies": []}, outcome.primary
    lines = [f"{outcome.fault.name}: {outcome.title}; owner: {primary.get('culprit', 'unknown')}"]
    lines += [f"  shows    {sentence['text']}" for sentence in verdict["shows"]]
    lines += [f"  implies  {sentence['text']}" for sentence in verdict["implies"]]
    return "\n".join(lines)
