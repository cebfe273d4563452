"""Whether a verdict is right, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.demo.fault import Fault

HEAD = ("fault", "job", "Slurm says", "verdict", "certainty", "s", "")


@dataclass(frozen=True)
class Outcome:
    """What became of a fault. `wrong`: what is not as it should be; empty: the verdict is right."""

    fault: Fault
    job: str
    state: str
    verdict: Mapping[str, Any] | None
    seconds: float | None
    """From the job's end, as accounting has it, to the verdict."""
    wrong: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        return not self.wrong

    @property
    def primary(self) -> Mapping[str, Any]:
        return (self.verdict or {}).get("primary") or {}

    @property
    def title(self) -> str:
        if not self.primary:
            return "none"
        variant = f" ({self.primary['variant']})" if self.primary["variant"] else ""
        return f"{self.primary['family']}{variant} {self.primary['title']}"


def judged(fault: Fault, state: str, verdict: Mapping[str, Any], nodes: Sequence[str]) -> tuple[str, ...]:
    """What of a verdict, and of how the job ended, is not as it should be."""
    right, primary = fault.right, verdict["primary"]
    wanted_nodes = None if right.nodes is None else [nodes[number - 1] for number in right.nodes]
    checks = (
        ("Slurm's state", fault.state, state),
        ("disposition", fault.state, verdict["run"]["disposition"]),
        ("family", right.family, primary["family"]),
        ("variant", right.variant, primary["variant"]),
        ("culprit", right.culprit, primary["culprit"]),
        ("ranks", None if right.ranks is None else list(right.ranks), primary["ranks"]),
        ("nodes", wanted_nodes, primary["nodes"]),
    )
    wrong = [f"{name} is {got!r}, not {expected!r}" for name, expected, got in checks if expected not in (None, got)]
    shown = [sentence["text"] for sentence in verdict["shows"]]
    if right.shows and not any(right.shows in text for text in shown):
        wrong.append(f"{right.shows!r} is not in what the data shows")
    all_text = "\n".join([*shown, *(sentence["text"] for sentence in verdict["implies"])])
    wrong += [f"{text!r} is said, and isn't so" for text in right.never if text in all_text]
    return tuple(wrong)


def table(outcomes: Sequence[Outcome]) -> str:
    """A row a fault, the widths as wide as they need be; below a row that is wrong, why."""
    rows = [
        (
            outcome.fault.name,
            outcome.job,
            outcome.state,
            outcome.title,
            str(outcome.primary.get("certainty", "")),
            "" if outcome.seconds is None else f"{outcome.seconds:.0f}",
            "right" if outcome.right else "WRONG",
        )
        for outcome in outcomes
    ]
    widths = [max(len(row[at]) for row in (HEAD, *rows)) for at in range(len(HEAD))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            text.rjust(width) if at == 5 else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    shown = [line(HEAD), line(["-" * width for width in widths])]
    for row, outcome in zip(rows, outcomes, strict=True):
        shown += [line(row), *(f"    {why}" for why in outcome.wrong)]
    return "\n".join(shown)


def summary_text(outcome: Outcome) -> str:
    """One verdict in some lines: what it is, what shows it, what it implies."""
    verdict, primary = outcome.verdict or {"shows": [], "implies": []}, outcome.primary
    lines = [f"{outcome.fault.name}: {outcome.title}; culprit: {primary.get('culprit', 'unknown')}"]
    lines += [f"  shows    {sentence['text']}" for sentence in verdict["shows"]]
    lines += [f"  implies  {sentence['text']}" for sentence in verdict["implies"]]
    return "\n".join(lines)
