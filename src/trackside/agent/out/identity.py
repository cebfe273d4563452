"""What is added to all samples and lines: the node's name, and what the settings say besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trackside.agent.source import Labels


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose all of this is. What a source says itself counts for more: a controller tells of other nodes."""

    node: str
    job: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def of_sample(self, labels: Labels) -> Labels:
        """All labels of a sample, sorted by name."""
        return self._with(labels, "job")

    def of_line(self, labels: Labels) -> Labels:
        """All labels of a line, sorted by name."""
        return self._with(labels, "slurm_job_id")

    def _with(self, labels: Labels, job: str) -> Labels:
        return tuple(
            sorted({**self.labels, "node": self.node, **({job: self.job} if self.job else {}), **dict(labels)}.items())
        )
