"""How often a verdict like this one was right on runs that were unseen when judged: see docs/accuracy.md."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import Any

from trackside.evidence import Missing
from trackside.facts.fact import Facts
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.unread_errors import UnreadErrors
from trackside.finding import Finding

WEIGHT = 8.0
"""Number of cases that the coarser record counts for when a finer one is shrunk toward it, so that no pattern is
certain after a handful of cases."""
MAX_CONFIDENCE = 0.99
"""No verdict is certain, however good the record."""

EvidencePattern = tuple[str, ...]
"""What a verdict rests on, from coarse to fine: kinds of data, group of the family, certainty, and so on. A pattern
that ends earlier is the same, known less precisely."""


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """Unseen runs: how many there are, and in how many the family was right. Simulated ones count in part."""

    right: float = 0
    all: float = 0

    def __add__(self, other: TrackRecord) -> TrackRecord:
        return TrackRecord(self.right + other.right, self.all + other.all)


@dataclass(frozen=True, slots=True)
class Reliability:
    """``prior``: the record of unseen runs of which only the total is known. ``records``: the records by pattern; each
    includes those of all finer patterns."""

    prior: TrackRecord
    records: Mapping[EvidencePattern, TrackRecord]

    @classmethod
    def of(cls, prior: TrackRecord, rows: Iterable[tuple[EvidencePattern, TrackRecord]]) -> Reliability:
        """Add up the rows under each coarser pattern."""
        records: dict[EvidencePattern, TrackRecord] = defaultdict(TrackRecord)
        for pattern, record in rows:
            for coarser in accumulate((level,) for level in pattern):
                records[coarser] += record
        return cls(prior, records)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Reliability:
        """Parse the table of ``reliability.json``."""
        rows = ((tuple(row["pattern"]), TrackRecord(row["right"], row["all"])) for row in data["records"])
        return cls.of(TrackRecord(data["prior"]["right"], data["prior"]["all"]), rows)

    def confidence(self, pattern: EvidencePattern) -> float:
        """The share right of this pattern, shrunk toward that of each coarser one, and these toward the prior by
        Laplace's rule. 0 to 0.99, two decimals."""
        share = (self.prior.right + 1) / (self.prior.all + 2)
        for coarser in accumulate((level,) for level in pattern):
            record = self.records.get(coarser, TrackRecord())
            share = (record.right + WEIGHT * share) / (record.all + WEIGHT)
        return min(round(share, 2), MAX_CONFIDENCE)


def evidence_pattern(
    primary: Finding, consequences: Sequence[Finding], rival_open: bool, facts: Facts
) -> EvidencePattern:
    """What a verdict rests on. Empty if no cause was found: such a verdict claims nothing that could be right."""
    if primary.role == "last_resort":
        return ()
    planes = set(primary.planes).union(*(finding.planes for finding in consequences))
    ending, unread = facts.get(Ending), facts.get(UnreadErrors)
    ended = not isinstance(ending, Missing) and (ending.completed or ending.abnormal or ending.ends)
    return (
        kinds_of_data(planes),
        primary.family[:1],
        "none" if primary.certainty is None else primary.certainty.value,
        "end seen" if ended else "end not seen",
        "errors unread" if not isinstance(unread, Missing) and unread.rows else "no error unread",
        "rival open" if rival_open else "no rival open",
        "framework known" if facts.run.framework else "framework unknown",
    )


def kinds_of_data(planes: Collection[str]) -> str:
    """The coarsest level of a pattern: the planes that a verdict cites."""
    return "several kinds of data" if len(planes) > 1 else f"{next(iter(planes), 'log')} alone"


@cache
def table() -> Reliability:
    """The table in the package."""
    text = resources.files("trackside.verdict").joinpath("reliability.json").read_text("utf-8")
    return Reliability.read(json.loads(text))


def confidence_of(pattern: EvidencePattern) -> float | None:
    """Confidence of a verdict with this pattern; None if it names no cause."""
    return table().confidence(pattern) if pattern else None
