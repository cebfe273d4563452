"""What is added to all samples and lines: the node's name, and what the settings say besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trackside.agent.source import Labels

JOB = "slurm_job_id"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose all of this is. What a source says itself counts for more: a controller tells of other nodes."""

    node: str
    job: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def of_sample(self, labels: Labels) -> Labels:
        """All labels of a sample, sorted by name. Its job is called as that of lines: ``job`` is what Prometheus calls
        the scrape."""
        return self.of_line((JOB if name == "job" else name, value) for name, value in labels)

    def of_line(self, labels: Iterable[tuple[str, str]]) -> Labels:
        """All labels of a line, sorted by name."""
        own = {**self.labels, "node": self.node, **({JOB: self.job} if self.job else {})}
        return tuple(sorted({**own, **dict(labels)}.items()))
