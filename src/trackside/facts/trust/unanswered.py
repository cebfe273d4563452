"""Sources that were queried and gave no answer, or not all of it: what they would have shown is unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import SOURCE_UNANSWERED, Evidence, Frame, derived
from trackside.facts.fact import fact
from trackside.finding import Claim, Sentence
from trackside.model import Event, Plane
from trackside.query import events

DID_NOT_ANSWER = Sentence("{source} did not answer, so the verdict lacks its data: {reason}")
ANSWERED_IN_PART = Sentence("{source} gave no complete answer, so the verdict lacks some of its data: {reason}")
OUTPUT_NOT_READ = Sentence("the job's output {source} was not read: {reason}")
OUTPUT_FILE = re.compile(r"^output of job [^\s:]{1,80}: [^:\n]{0,80}names it, but ")
"""Before the reason for which a file of the job's output was not read."""
NO_ANSWER = re.compile(r"cannot be reached|\bexit \d|command not found", re.IGNORECASE)
"""Reasons for which nothing came; after others, such as a limit or a connection that broke, part of the data did."""


@dataclass(frozen=True, eq=False)
class UnansweredSources:
    """The sources that did not answer; each metric query has its own answer in addition."""

    rows: Frame

    @cached_property
    def planes(self) -> frozenset[Plane]:
        """The planes that they would have shown."""
        return frozenset(row.plane for row in self.rows.events)

    @cached_property
    def in_part(self) -> Mapping[Plane, str]:
        """Planes of rows of which not all came, and why."""
        return {row.plane: row.text for row in reversed(self.rows.events) if row.plane != "metric"}

    @property
    def claims(self) -> list[Claim]:
        """One sentence each."""
        return [self._claim(row) for row in self.rows.events]

    def _claim(self, row: Event) -> Claim:
        source, reason = (self.rows.value(row, name) for name in ("source", "reason"))
        if (prefix := OUTPUT_FILE.match(str(reason.value))) is not None:
            return OUTPUT_NOT_READ(source=source, reason=derived(str(reason.value)[prefix.end() :], reason))
        return (DID_NOT_ANSWER if NO_ANSWER.search(row.text) else ANSWERED_IN_PART)(source=source, reason=reason)


@fact({"silent": events(SOURCE_UNANSWERED)})
def unanswered_sources(evidence: Evidence) -> UnansweredSources:
    """Needs no particular input; empty if every source answered."""
    return UnansweredSources(evidence["silent"])
