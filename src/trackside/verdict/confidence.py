"""How often a verdict like this one is right: fitted on labeled cases, see docs/accuracy.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trackside.finding import Finding

WEIGHT = 8.0
"""Number of cases that the coarser record counts for when a finer one is shrunk toward it. Among 2, 4, 8 and 16, whose
calibration errors differ by less than 0.01, this one does not make a family certain after a handful of cases."""


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """Labeled cases: how many there are, and in how many the family was right."""

    right: int = 0
    all: int = 0

    def __add__(self, other: TrackRecord) -> TrackRecord:
        return TrackRecord(self.right + other.right, self.all + other.all)


@dataclass(frozen=True, slots=True)
class Reliability:
    """``cells``: the record of each family with each evidence pattern, on cases used in development. ``blind``: the
    record of all families on unseen cases."""

    cells: Mapping[tuple[str, str], TrackRecord]
    blind: TrackRecord

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Reliability:
        """Parse the table of ``reliability.json``."""
        cells = {(row["family"], row["pattern"]): TrackRecord(row["right"], row["all"]) for row in data["records"]}
        return cls(cells, TrackRecord(data["blind"]["right"], data["blind"]["all"]))

    def total(self, family: str | None = None, pattern: str | None = None) -> TrackRecord:
        """The record of all cells of a family or a pattern."""
        cells = (record for key, record in self.cells.items() if family in (None, key[0]) and pattern in (None, key[1]))
        return sum(cells, TrackRecord())

    def prior(self) -> float:
        """The share right of all unseen cases, by Laplace's rule: the expectation for a family without a record."""
        return (self.blind.right + 1) / (self.blind.all + 2)

    def confidence(self, family: str, pattern: str) -> float:
        """The record of this family with this pattern, shrunk toward the lower one of the family's record and the
        pattern's; these are shrunk toward the prior. 0 to 1, two decimals."""
        coarser = min(self._shrunk(record, self.prior()) for record in (self.total(family), self.total(None, pattern)))
        return round(self._shrunk(self.cells.get((family, pattern), TrackRecord()), coarser), 2)

    def _shrunk(self, record: TrackRecord, toward: float) -> float:
        """The share right. Unseen cases are added in proportion, because the cases a tool was built on flatter it."""
        built = self.total().all
        part = record.all / built if built else 0.0
        right = record.right + part * self.blind.right + WEIGHT * toward
        return right / (record.all + part * self.blind.all + WEIGHT)


def pattern(primary: Finding, consequences: Sequence[Finding], rival_open: bool) -> str:
    """The evidence pattern of a verdict: certainty, number of agreeing planes, open rivals."""
    planes = set(primary.planes)
    for finding in consequences:
        planes.update(finding.planes)
    agree = "two or more planes" if len(planes) > 1 else "one plane"
    certainty = primary.certainty.value if primary.certainty is not None else "none"
    return f"{certainty}, {agree}, {'rival open' if rival_open else 'no rival open'}"


@cache
def table() -> Reliability:
    """The table in the package."""
    text = resources.files("trackside.verdict").joinpath("reliability.json").read_text("utf-8")
    return Reliability.read(json.loads(text))


@cache
def of(family: str, evidence_pattern: str) -> float:
    """Confidence of a verdict of this family with this pattern."""
    return table().confidence(family, evidence_pattern)
