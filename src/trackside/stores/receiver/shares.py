"""How many distinct series, or streams of lines, each sender and each job has: none may leave the others no room."""

from __future__ import annotations

from collections import Counter
from typing import Literal

MAX_SHARE = 0.75
"""Share of a limit that one sender, or one job, may use."""
ACTIVE_S = 3600.0
"""A series or stream counts until so many seconds after its last sample or line."""
Excess = Literal["", "of all", "of the sender", "of the job"]
"""Which limit a new series or stream would exceed; empty: none."""


class Shares:
    """Counts what each sender and each job has of a limited number."""

    def __init__(self, limit: int) -> None:
        self._limit, self._max_share = limit, max(1, round(limit * MAX_SHARE))
        self._by_sender: Counter[str] = Counter()
        self._by_job: Counter[str] = Counter()
        self.total = 0

    def excess(self, sender: str, job: str, size: int = 1) -> Excess:
        """The limit that ``size`` more of this sender and job would exceed. An empty name has no share of its own."""
        if self.total + size > self._limit:
            return "of all"
        if sender and self._by_sender[sender] + size > self._max_share:
            return "of the sender"
        if job and self._by_job[job] + size > self._max_share:
            return "of the job"
        return ""

    def add(self, sender: str, job: str, size: int = 1) -> None:
        """Count ``size`` more."""
        self.total += size
        self._by_sender[sender] += size
        self._by_job[job] += size
