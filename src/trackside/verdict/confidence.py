"""How often a verdict like this one is right: fitted on labelled cases, see docs/accuracy.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trackside.finding import Finding

WEIGHT = 8.0
"""Cases that the coarser record counts for where a finer one is shrunk toward it. Of 2, 4, 8 and 16, all within 0.01 of
each other in calibration error, the one with which a handful of cases does not yet make a family sure."""


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """Labelled cases: how many, and in how many of them the family was right."""

    right: int = 0
    all: int = 0

    def __add__(self, other: TrackRecord) -> TrackRecord:
        return TrackRecord(self.right + other.right, self.all + other.all)


@dataclass(frozen=True, slots=True)
class Reliability:
    """``cells``: the record of each family with each evidence pattern, on cases that were used in building. ``blind``:
    of all families on cases not seen before."""

    cells: Mapping[tuple[str, str], TrackRecord]
    blind: TrackRecord

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Reliability:
        """The table as ``reliability.json`` has it."""
        cells = {(row["family"], row["pattern"]): TrackRecord(row["right"], row["all"]) for row in data["records"]}
        return cls(cells, TrackRecord(data["blind"]["right"], data["blind"]["all"]))

    def total(self, family: str | None = None, pattern: str | None = None) -> TrackRecord:
        """The record of all cells of a family or a pattern."""
        cells = (record for key, record in self.cells.items() if family in (None, key[0]) and pattern in (None, key[1]))
        return sum(cells, TrackRecord())

    def prior(self) -> float:
        """The share right of all unseen cases, by Laplace's rule: what is expected of a family without a record."""
        return (self.blind.right + 1) / (self.blind.all + 2)

    def confidence(self, family: str, pattern: str) -> float:
        """The record of this family with this pattern, shrunk toward the family's record or the pattern's, whichever
        is lower; these are shrunk toward the prior. 0 to 1, to two decimals."""
        coarser = min(self._shrunk(record, self.prior()) for record in (self.total(family), self.total(None, pattern)))
        return round(self._shrunk(self.cells.get((family, pattern), TrackRecord()), coarser), 2)

    def _shrunk(self, record: TrackRecord, toward: float) -> float:
        """The share right. The unseen cases are added in proportion: the cases a tool was built on flatter it."""
        built = self.total().all
        part = record.all / built if built else 0.0
        right = record.right + part * self.blind.right + WEIGHT * toward
        return right / (record.all + part * self.blind.all + WEIGHT)


def pattern(primary: Finding, consequences: Sequence[Finding], rival_open: bool) -> str:
    """The evidence pattern of a verdict: certainty, agreement of planes, open rivals."""
    planes = set(primary.planes)
    for finding in consequences:
        planes.update(finding.planes)
    agree = "two or more planes" if len(planes) > 1 else "one plane"
    certainty = primary.certainty.value if primary.certainty is not None else "none"
    return f"{certainty}, {agree}, {'rival open' if rival_open else 'no rival open'}"


@cache
def table() -> Reliability:
    """The table that comes with the package."""
    text = resources.files("trackside.verdict").joinpath("reliability.json").read_text("utf-8")
    return Reliability.read(json.loads(text))


@cache
def of(family: str, evidence_pattern: str) -> float:
    """Confidence of a verdict of this family with this pattern."""
    return table().confidence(family, evidence_pattern)
