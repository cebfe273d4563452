"""How many lines or bytes may be sent now: the limit of kernel messages and of job output."""

from __future__ import annotations


class RateLimit:
    """A token bucket: ``burst`` lines (or bytes) at once, and ``per_s`` more per second."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s, self._burst, self._available = per_s, burst, float(burst)
        self._updated_s: float | None = None

    def take(self, requested: int, now_s: float, refill: float = 0.0) -> int:
        """How many of ``requested`` lines may be sent now. ``now_s``: seconds of any clock; ``refill``: lines that may
        be sent in addition to those of the time since the last call."""
        self._refill(now_s, refill)
        granted = min(requested, int(self._available))
        self._available -= granted
        return granted

    def take_all(self, requested: int, now_s: float) -> bool:
        """Whether all may be sent now; if not, nothing is taken."""
        self._refill(now_s)
        if requested > self._available:
            return False
        self._available -= requested
        return True

    def _refill(self, now_s: float, refill: float = 0.0) -> None:
        elapsed_s = 0.0 if self._updated_s is None else max(0.0, now_s - self._updated_s)
        self._updated_s = now_s
        self._available = min(float(self._burst), self._available + elapsed_s * self._per_s + refill)
