"""One file of output that is followed: what it holds, whose it is, and what is sent of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from trackside.agent.output.choosing import BEFORE, POLICIES, QUIET_S, All, Before, Policy, Sent
from trackside.agent.output.framing import Framer, Redraws, texts
from trackside.agent.output.holders import Held
from trackside.agent.output.marks import Mark
from trackside.agent.output.options import JobOutputOptions
from trackside.agent.output.scanning import HEAD
from trackside.agent.output.tail import Tail
from trackside.agent.source import Labels, pairs
from trackside.logs.line import FileContext

BEGUN_S = 30.0
"""A line without an end is sent so long after it was begun; whole once more when it goes on."""
ENDED_S = 3.0
"""The same where the process that wrote it is gone."""
_LEAF = re.compile(r"attempt_(\d{1,6})/(\d{1,6})/(std(?:out|err))\.log\Z")


@dataclass(slots=True)
class Told:
    """What one look at a file gave."""

    sent: list[Sent]
    bytes: int = 0
    lost: int = 0
    """Of a file that was cut or written over meanwhile."""


class Followed:
    """Raises OSError where the file can't be opened. ``now``: of a steady clock."""

    def __init__(self, held: Held, options: JobOutputOptions, mark: Mark | None, now: float, is_old: bool) -> None:
        self.held, self._options = held, options
        self._tail = Tail(held.link, held.user)
        self.labels: Labels = _labels(held, options)
        self.skipped = 0
        """Bytes of its begin that were never read."""
        before = None
        if mark is not None and self._tail.is_as(mark.head, mark.done):
            before = self._again(mark)
        elif is_old and self._tail.size > options.backlog_bytes:
            before = self._late(self._tail.size - options.backlog_bytes)
        self._framer = Framer()
        self._policy = self._fresh(before)
        self.grew = self.seen = self.held_at = now
        self.at = 0.0
        """When it last grew, POSIX seconds."""
        self._shown = b""
        self._is_calm = False
        """Whether all there is to say of it was said, until it grows."""
        self.moved = False
        """Whether its mark is another one than before."""

    def _again(self, mark: Mark) -> Before:
        self.labels = mark.labels
        self._tail.go_to(mark.done)
        return Before(mark.done, mark.sent, self._tail.before(mark.done, BEFORE), self._tail.before(HEAD, HEAD))

    def _late(self, place: int) -> Before:
        near = self._tail.before(place + (64 << 10), 64 << 10)
        place += near.find(b"\n") + 1
        self._tail.go_to(place)
        self.skipped = place
        return Before(place, place, b"", self._tail.before(HEAD, HEAD))

    def _fresh(self, before: Before | None) -> Policy:
        rank = dict(self.labels).get("rank")
        number = int(rank) if rank is not None and rank.isdecimal() else None
        return POLICIES[self._options.text](FileContext(self.held.path, "log", rank=number), self._options, before)

    @property
    def key(self) -> tuple[int, int]:
        """Device and inode."""
        return self._tail.key

    @property
    def has_more(self) -> bool:
        """Whether it held more than was read of it last."""
        return self._tail.has_more

    @property
    def mark(self) -> Mark:
        """How far it was sent. Raises OSError."""
        return Mark(*self.key, self._policy.done, self._policy.sent, self._tail.fingerprint, self.labels, self.at)

    def read(self, most: int, now: float, time_ns: int) -> Told:
        """Take what is new of it, at most so many bytes. Raises OSError."""
        anew = self._tail.begun_anew
        data = self._tail.read(most)
        told = Told([], len(data))
        if not data and self._is_calm and self._tail.begun_anew == anew:
            return told
        if self._tail.begun_anew > anew:
            told.sent += self._ended(now, time_ns)
            told.lost, self._tail.lost = self._tail.lost, 0
            self._framer, self._policy = Framer(), self._fresh(None)
        self._is_calm = False
        if data:
            self.grew, self.at, self.moved = now, time_ns / 1e9, True
            begin = self._tail.offset - len(data) - len(self._framer.rest)
            if whole := self._framer.feed(data):
                self._policy.take(whole, begin, time_ns, now)
            if not data.strip(b"\0") and self._tail.pass_hole():
                told.sent += self._ended(now, time_ns)
                place = self._tail.offset
                self._policy = self._fresh(Before(place, place, b"", self._tail.before(HEAD, HEAD)))
        quiet_s = now - self.grew
        if self._framer.rest and quiet_s >= ENDED_S and not self._is_written():
            told.sent += self._ended(now, time_ns)
        elif self._framer.rest and quiet_s >= BEGUN_S and isinstance(self._policy, All):
            told.sent += self._begun(now, time_ns)
        was = self._policy.done, self._policy.sent
        told.sent += self._policy.give(now, quiet_s, False)
        self.moved = self.moved or (self._policy.done, self._policy.sent) != was
        self._is_calm = quiet_s > (BEGUN_S + ENDED_S if self._framer.rest else QUIET_S)
        return told

    def measured(self) -> dict[str, float]:
        """Progress since this was last asked, by metric."""
        return self._policy.measured()

    def end(self, now: float, time_ns: int) -> list[Sent]:
        """What is left to be sent: nobody writes it any more."""
        self.moved = True
        return self._ended(now, time_ns)

    def close(self) -> None:
        """Let go of the file."""
        self._tail.close()

    def _ended(self, now: float, time_ns: int) -> list[Sent]:
        rest = self._framer.flush()
        if rest and rest != self._shown:
            self._policy.take(rest, self._policy.end, time_ns, now)
        return self._policy.give(now, now - self.grew, True)

    def _begun(self, now: float, time_ns: int) -> list[Sent]:
        """The line that is begun, where that was not sent yet."""
        if self._framer.rest == self._shown:
            return []
        self._shown = self._framer.rest
        return [(time_ns, text) for text in texts(self._shown + b"\n", Redraws(self._options.redraw_s), now)]

    def _is_written(self) -> bool:
        try:
            status = os.stat(self.held.link)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.key


def _labels(held: Held, options: JobOutputOptions) -> Labels:
    name = held.path
    if options.text == "none":  # a torchrun's worker has its number in the folder: here it is all in the name
        name = _LEAF.sub(r"attempt_\1.\2.\3", name).removesuffix(".log") + ".events"
    return pairs({"slurm_job_id": held.job, "rank": held.rank, "filename": name, "stream": held.stream})
