"""How often a verdict with this evidence pattern is right: fitted on scenarios, see docs/accuracy.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trackside.finding import Finding

PRIOR_RIGHT, PRIOR_ALL = 1.0, 2.0
"""Laplace's rule: a pattern never seen is even odds, not certainty."""


@dataclass(frozen=True, slots=True)
class Record:
    """Labelled cases: how many, and in how many of them the family was right."""

    right: int
    all: int


def pattern(primary: Finding, consequences: Sequence[Finding], rival_open: bool) -> str:
    """The evidence pattern of a verdict: certainty, agreement of planes, open rivals."""
    planes = set(primary.planes)
    for finding in consequences:
        planes.update(finding.planes)
    agree = "two or more planes" if len(planes) > 1 else "one plane"
    certainty = primary.certainty.value if primary.certainty is not None else "none"
    return f"{certainty}, {agree}, {'rival open' if rival_open else 'no rival open'}"


@cache
def table() -> tuple[dict[str, Record], Record]:
    """(record of each pattern on the cases that were used in building, record of all on cases not seen before)"""
    try:
        text = resources.files("trackside.verdict").joinpath("reliability.json").read_text("utf-8")
    except FileNotFoundError:
        return {}, Record(0, 0)
    return read(json.loads(text))


def read(data: Mapping[str, Any]) -> tuple[dict[str, Record], Record]:
    """The same from the table as it is written."""
    blind = Record(data["blind"]["right"], data["blind"]["all"])
    return {row["pattern"]: Record(row["right"], row["all"]) for row in data["patterns"]}, blind


def of(evidence_pattern: str) -> float:
    """Confidence of a verdict with this pattern, 0 to 1, to two decimals."""
    patterns, blind = table()
    return fitted(patterns.get(evidence_pattern, Record(0, 0)), patterns, blind)


def fitted(row: Record, patterns: Mapping[str, Record], blind: Record) -> float:
    """The pattern's share right, the blind cases added in proportion: the cases a tool was built on flatter it."""
    seen = sum(each.all for each in patterns.values())
    share = row.all / seen if seen else 0.0
    right = row.right + share * blind.right + PRIOR_RIGHT
    return round(right / (row.all + share * blind.all + PRIOR_ALL), 2)
