"""How much output one job may send: a job that prints without end must not fill the receiver's disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from trackside.agent.output.line_policy import TimedLine
from trackside.agent.rate_limit import RateLimit

KEPT_LINES = 200
"""Last lines of a file that are kept: they show how the job ended."""
MAX_KEPT_BYTES = 64 << 10
"""Maximum bytes of these lines."""
LAST_LINES_SHARE = 0.25
"""Share of a job's rate that its files' last lines may have besides, once a file does not grow."""
LAST_LINES_BURST = 64 * MAX_KEPT_BYTES
"""Bytes of last lines of a job that are sent at once."""


@dataclass(slots=True)
class _WithheldLines:
    """What was not sent of a file: its last lines, and the size of those before."""

    lines: deque[TimedLine] = field(default_factory=deque)
    kept_bytes: int = 0
    left_out_bytes: int = 0


class JobRates:
    """Selects the lines of each job that are within its rate. ``left_out_bytes``: what no call will send any more."""

    def __init__(self, bytes_per_s: int, burst_bytes: int) -> None:
        self._bytes_per_s, self._burst_bytes = bytes_per_s, burst_bytes
        self._limits: dict[str, tuple[RateLimit, RateLimit]] = {}
        """Job -> the limits of its lines, and of the last lines of its files."""
        self._withheld: dict[Hashable, _WithheldLines] = {}
        self.left_out_bytes = 0

    def select(
        self, job: str, file: Hashable, lines: Sequence[TimedLine], now: float, is_quiet: bool
    ) -> list[TimedLine]:
        """The lines of a job's file to send now, those withheld before included. ``now``: monotonic seconds;
        ``is_quiet``: whether the file does not grow, so that its last lines are sent."""
        withheld = self._withheld.get(file)
        if not lines and not (is_quiet and withheld is not None):
            return []
        if job not in self._limits:
            last_limit = RateLimit(self._bytes_per_s * LAST_LINES_SHARE, LAST_LINES_BURST)
            self._limits[job] = RateLimit(self._bytes_per_s, self._burst_bytes), last_limit
        limit, last_limit = self._limits[job]
        if withheld is None:
            if limit.take_all(sum(len(text) + 1 for _, text in lines), now):
                return list(lines)
            withheld = self._withheld[file] = _WithheldLines()
        for line in lines:
            self._withhold(withheld, line)
        size = withheld.kept_bytes
        if not limit.take_all(size, now) and not (is_quiet and last_limit.take_all(size, now)):
            return []
        del self._withheld[file]
        return [*self._note(withheld, job), *withheld.lines]

    def _withhold(self, withheld: _WithheldLines, line: TimedLine) -> None:
        withheld.lines.append(line)
        withheld.kept_bytes += len(line[1]) + 1
        while len(withheld.lines) > KEPT_LINES or withheld.kept_bytes > MAX_KEPT_BYTES:
            size = len(withheld.lines.popleft()[1]) + 1
            withheld.kept_bytes -= size
            withheld.left_out_bytes += size
            self.left_out_bytes += size

    def _note(self, withheld: _WithheldLines, job: str) -> list[TimedLine]:
        """A line that says what is missing here."""
        if not withheld.left_out_bytes or not withheld.lines:
            return []
        text = (
            f"[trackside agent: {withheld.left_out_bytes:,} bytes of output are left out here: job {job} printed more "
            f"than {self._bytes_per_s:,} bytes per second]"
        )
        return [(withheld.lines[0][0], text)]

    def forget(self, jobs: frozenset[str]) -> None:
        """Drop the state of all other jobs."""
        self._limits = {job: limit for job, limit in self._limits.items() if job in jobs}
