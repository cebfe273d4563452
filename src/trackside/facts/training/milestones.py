"""Work that shows without a training point: checkpoints that were saved, and evaluations."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence
from trackside.facts.fact import fact
from trackside.model import Event
from trackside.query import events


@dataclass(frozen=True, eq=False)
class Milestones:
    """Checkpoints saved, then evaluations, as the log names them."""

    rows: tuple[Event, ...]

    @property
    def steps_done(self) -> bool:
        """Whether one of them names a step, so that steps were done."""
        return any(row.get("step") for row in self.rows)


@fact({"saves": events("checkpoint_saved"), "evaluations": events("evaluation")})
def milestones(evidence: Evidence) -> Milestones:
    """Of the log's lines; nothing is needed."""
    return Milestones((*evidence["saves"].events, *evidence["evaluations"].events))
