"""Labels added to all samples and lines: the node's name, the job and the labels of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trackside.agent.source import Labels

JOB = "slurm_job_id"


@dataclass(frozen=True, slots=True)
class Identity:
    """The agent's default labels. Labels from a source override them: a controller reports other nodes."""

    node: str
    job: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def of_sample(self, labels: Labels) -> Labels:
        """All labels of a sample, sorted by name. Label ``job`` is renamed as in log lines, because Prometheus uses
        ``job`` for the scrape job."""
        return self.of_line((JOB if name == "job" else name, value) for name, value in labels)

    def of_line(self, labels: Iterable[tuple[str, str]]) -> Labels:
        """All labels of a line, sorted by name."""
        defaults = {**self.labels, "node": self.node, **({JOB: self.job} if self.job else {})}
        return tuple(sorted({**defaults, **dict(labels)}.items()))
