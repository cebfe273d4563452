"""What happened since the start, for the receiver's own metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """``left_out``: reason -> samples or lines. Any thread may read them."""

    left_out: Counter[str] = field(default_factory=Counter)
    flushes: int = 0
    flush_s: float = 0.0
    failures: int = 0
    syncs: int = 0
    replayed: int = 0
    torn_bytes: int = 0
    damaged_bytes: int = 0

    def leave_out(self, more: Mapping[str, int]) -> None:
        """Count them in a new counter: others read the old one meanwhile."""
        counted = Counter(self.left_out)
        counted.update(more)
        self.left_out = counted
