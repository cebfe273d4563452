"""One output file of a job that is followed: its contents, its labels, and the lines to send."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from trackside.agent.output.framing import Framer, Redraws, texts
from trackside.agent.output.holders import OpenOutput
from trackside.agent.output.line_policy import BYTES_BEFORE, POLICIES, QUIET_S, AllLines, Policy, ResumePoint, TimedLine
from trackside.agent.output.options import JobOutputOptions
from trackside.agent.output.positions import FilePosition
from trackside.agent.output.tail import Tail
from trackside.agent.source import Labels, pairs
from trackside.logs.buffers import HEAD_BYTES
from trackside.logs.line import FileContext

UNFINISHED_S = 30.0
"""An unfinished line is sent after this time, and again in full when it is continued."""
ENDED_S = 3.0
"""Time after which an unfinished line is sent if the process that wrote it is gone."""
_TORCHRUN_LOG = re.compile(r"attempt_(\d{1,6})/(\d{1,6})/(std(?:out|err))\.log\Z")
"""The end of the path of a torchrun worker's log."""


@dataclass(slots=True)
class NewLines:
    """Result of one read of a file."""

    lines: list[TimedLine]
    bytes: int = 0
    lost: int = 0
    """Bytes lost because the file was truncated or overwritten."""


class FollowedFile:
    """Follows one file. ``now``: monotonic seconds. ``is_old``: it was written before the agent started, so of a large
    one only the end is read. Raises OSError if the file cannot be opened."""

    def __init__(
        self, output: OpenOutput, options: JobOutputOptions, position: FilePosition | None, now: float, is_old: bool
    ) -> None:
        self.output, self._options = output, options
        self._tail = Tail(output.link, output.user)
        self.labels: Labels = _labels(output, options)
        self.skipped = 0
        """Number of bytes at the beginning that are skipped."""
        resume = None
        if position is not None and self._tail.matches(position.head, position.read_to):
            resume = self._resume(position)
        elif is_old and self._tail.size > options.backlog_bytes:
            resume = self._resume_near_end(self._tail.size - options.backlog_bytes)
        self._framer = Framer()
        self._policy = self._new_policy(resume)
        self.grew_at = self.read_at = self.open_at = now
        """When it last grew, was last read and was last in use by a process, monotonic seconds."""
        self.grew_time = 0.0
        """When it last grew, POSIX seconds: this is saved."""
        self._sent_unfinished = b""
        self._is_idle = False
        """Whether nothing is left to send until the file grows."""
        self.position_changed = False
        """Whether its position changed since it was saved."""

    def _resume(self, position: FilePosition) -> ResumePoint:
        """Continue where an earlier agent process stopped reading."""
        self.labels = position.labels
        self._tail.seek(position.read_to)
        return ResumePoint(
            position.read_to,
            position.sent_to,
            self._tail.bytes_before(position.read_to, BYTES_BEFORE),
            self._tail.bytes_before(HEAD_BYTES, HEAD_BYTES),
        )

    def _resume_near_end(self, offset: int) -> ResumePoint:
        """Begin at the first line after an offset."""
        chunk = self._tail.bytes_before(offset + (64 << 10), 64 << 10)
        offset += chunk.find(b"\n") + 1
        self._tail.seek(offset)
        self.skipped = offset
        return ResumePoint(offset, offset, b"", self._tail.bytes_before(HEAD_BYTES, HEAD_BYTES))

    def _new_policy(self, resume: ResumePoint | None) -> Policy:
        rank = dict(self.labels).get("rank")
        number = int(rank) if rank is not None and rank.isdecimal() else None
        return POLICIES[self._options.text](FileContext(self.output.path, "log", rank=number), self._options, resume)

    @property
    def key(self) -> tuple[int, int]:
        """Device and inode."""
        return self._tail.key

    @property
    def has_more(self) -> bool:
        """Whether the file held more than was read last."""
        return self._tail.has_more

    @property
    def position(self) -> FilePosition:
        """How far it was sent. Raises OSError."""
        return FilePosition(
            *self.key, self._policy.read_to, self._policy.sent_to, self._tail.fingerprint, self.labels, self.grew_time
        )

    def read(self, max_bytes: int, now: float, time_ns: int) -> NewLines:
        """Read new data, up to ``max_bytes``. Raises OSError."""
        restarts = self._tail.restarts
        data = self._tail.read(max_bytes)
        result = NewLines([], len(data))
        if not data and self._is_idle and self._tail.restarts == restarts:
            return result
        if self._tail.restarts > restarts:
            result.lines += self._flush(now, time_ns)
            result.lost, self._tail.lost = self._tail.lost, 0
            self._framer, self._policy = Framer(), self._new_policy(None)
        self._is_idle = False
        if data:
            self.grew_at, self.grew_time, self.position_changed = now, time_ns / 1e9, True
            start = self._tail.offset - len(data) - len(self._framer.remaining)
            if lines := self._framer.feed(data):
                self._policy.add(lines, start, time_ns, now)
            if not data.strip(b"\0") and self._tail.skip_hole():
                result.lines += self._flush(now, time_ns)
                offset = self._tail.offset
                self._policy = self._new_policy(
                    ResumePoint(offset, offset, b"", self._tail.bytes_before(HEAD_BYTES, HEAD_BYTES))
                )
        quiet_s = now - self.grew_at
        if self._framer.remaining and quiet_s >= ENDED_S and not self._has_writer():
            result.lines += self._flush(now, time_ns)
        elif self._framer.remaining and quiet_s >= UNFINISHED_S and isinstance(self._policy, AllLines):
            result.lines += self._unfinished_line(now, time_ns)
        offsets = self._policy.read_to, self._policy.sent_to
        result.lines += self._policy.take_lines(now, quiet_s, False)
        self.position_changed = self.position_changed or (self._policy.read_to, self._policy.sent_to) != offsets
        self._is_idle = quiet_s > (UNFINISHED_S + ENDED_S if self._framer.remaining else QUIET_S)
        return result

    def take_measurements(self) -> dict[str, float]:
        """Progress since the last call, by metric."""
        return self._policy.take_measurements()

    def end(self, now: float, time_ns: int) -> list[TimedLine]:
        """The remaining lines, once no process writes to the file."""
        self.position_changed = True
        return self._flush(now, time_ns)

    def close(self) -> None:
        """Close the file."""
        self._tail.close()

    def _flush(self, now: float, time_ns: int) -> list[TimedLine]:
        remaining = self._framer.flush()
        if remaining and remaining != self._sent_unfinished:
            self._policy.add(remaining, self._policy.end, time_ns, now)
        return self._policy.take_lines(now, now - self.grew_at, True)

    def _unfinished_line(self, now: float, time_ns: int) -> list[TimedLine]:
        """The unfinished line, if it was not sent yet."""
        if self._framer.remaining == self._sent_unfinished:
            return []
        self._sent_unfinished = self._framer.remaining
        return [(time_ns, text) for text in texts(self._sent_unfinished + b"\n", Redraws(self._options.redraw_s), now)]

    def _has_writer(self) -> bool:
        try:
            status = os.stat(self.output.link)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.key


def _labels(output: OpenOutput, options: JobOutputOptions) -> Labels:
    name = output.path
    if options.text == "none":  # a torchrun worker's number is in the folder name; here it all goes into the file name
        name = _TORCHRUN_LOG.sub(r"attempt_\1.\2.\3", name).removesuffix(".log") + ".events"
    return pairs({"slurm_job_id": output.job, "rank": output.rank, "filename": name, "stream": output.stream})
