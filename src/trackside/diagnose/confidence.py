"""How often a verdict with this evidence pattern is right: fitted on scenarios, see docs/reliability.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

from trackside.model import Finding

PRIOR_RIGHT, PRIOR_ALL = 1.0, 2.0
"""Laplace's rule: a pattern never seen is even odds, not certainty."""


def pattern(primary: Finding, consequences: Sequence[Finding], rival_open: bool) -> str:
    """The evidence pattern of a verdict: certainty, agreement of planes, open rivals."""
    planes = set(primary.planes)
    for finding in consequences:
        planes.update(finding.planes)
    agree = "two or more planes" if len(planes) > 1 else "one plane"
    certainty = primary.certainty.value if primary.certainty is not None else "none"
    return f"{certainty}, {agree}, {'rival open' if rival_open else 'no rival open'}"


@cache
def table() -> dict[str, tuple[int, int]]:
    """Evidence pattern -> (verdicts that were right, all); empty before it was first fitted."""
    try:
        text = resources.files("trackside.diagnose").joinpath("reliability.json").read_text("utf-8")
    except FileNotFoundError:
        return {}
    return {row["pattern"]: (row["right"], row["all"]) for row in json.loads(text)["patterns"]}


def of(evidence_pattern: str) -> float:
    """Confidence of a verdict with this pattern, 0 to 1, to two decimals."""
    right, total = table().get(evidence_pattern, (0, 0))
    return round((right + PRIOR_RIGHT) / (total + PRIOR_ALL), 2)
