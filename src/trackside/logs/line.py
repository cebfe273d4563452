"""One candidate line of a log: decoded, without its rank label and colors, with access to its neighbors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trackside.catalog.events import EVENTS
from trackside.logs.prefixes import ANSI, COLLECTOR, PeeledLine, Prefix, has_several_writers, peel, prefixes_of
from trackside.logs.stamp import find_time
from trackside.model import Event, EventRole, Plane, Position, Scalar

MAX_LINE_BYTES = 64 * 1024
"""Bytes of one segment that are read; a longer one is clipped around the match."""
MAX_TEXT_CHARS = 4096
"""Characters of an event's text."""

_LABEL = re.compile(
    r"\[rank\s*(?P<rank>\d+)\]:?[ ]?"  # torch.distributed tracebacks and torchtitan
    r"|\[(?P<role>default|trainer|worker)(?P<local>\d+)\]:[ ]?"  # torchrun --tee
    r"|\[(?P<mpi_job>\d+),(?P<mpi>\d+)\]<std(?:out|err)>:[ ]?"  # mpirun --tag-output
    r"|\((?P<ray>[\w.:-]+) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.]+))?\) "  # Ray
)
_SRUN = re.compile(r"[ ]{0,5}(?P<task>\d{1,6}): ?")
SYSLOG_PREFIX = re.compile(
    rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z [\w.:-]{1,255} [\w./@() -]{1,80}?(?:\[\d{1,10}\])?(?::| - - | \d+ - ) ?"
)
"""What the receiver puts before each line of a node's programs: time, host and program, as syslog writes them."""


@dataclass(slots=True)
class FileContext:
    """What all lines of a file share while it is scanned. ``rank``, ``node``: those of its folder or of the agent that
    sent it; ``year``: completes times without one."""

    path: str
    plane: Plane = "log"
    srun_labels: bool = False
    rank: int | None = None
    node: str | None = None
    year: int | None = None
    quoted_until: int = 0
    """Number of the last line of a quotation, such as a job's script in its batch system's report: it is not read."""
    prefixes: tuple[Prefix, ...] = (COLLECTOR,)
    """What a collector or the like put before each line, the outermost first; not part of the lines."""
    several_writers: bool = False
    """Whether the prefixes name more than one writer."""
    has_syslog_prefix: bool = False
    """Whether the receiver put :data:`SYSLOG_PREFIX` before the lines."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Per parser: what it remembers from line to line."""

    def learn(self, head: bytes) -> None:
        """Set what the first bytes of the file say about all its lines."""
        if self.plane == "log":
            self.prefixes = prefixes_of(head) or self.prefixes
            self.several_writers = has_several_writers(head, self.prefixes)
        self.srun_labels = self.srun_labels or has_srun_labels(
            [self.peel_line(line).text for line in head.split(b"\n")]
        )

    def peel_line(self, raw: bytes) -> PeeledLine:
        """Take colors and prefixes off a line."""
        return peel(ANSI.sub(b"", raw) if b"\x1b" in raw else raw, self.prefixes)

    def decode_line(self, raw: bytes) -> str:
        """The text of a line as its program wrote it: without colors and prefixes."""
        return self.peel_line(raw).text.decode("utf-8", "replace")


class Line:
    r"""A segment between line ends (``\n``) or redraws (``\r``).

    ``full`` is the line as its program wrote it, without colors; ``text`` also lacks rank labels. ``label`` identifies
    the writer: interleaved lines of one writer have equal labels. ``rank`` is the global rank if the label or the
    file's folder gives it, ``time`` POSIX seconds (the collector's, else the line's own; a time without zone is read as
    UTC).
    """

    __slots__ = (
        "_prefix_text",
        "_time",
        "buffer",
        "context",
        "end",
        "full",
        "label",
        "number",
        "offset",
        "parser",
        "rank",
        "start",
        "text",
    )

    def __init__(self, buffer: bytes, start: int, end: int, number: int, offset: int, context: FileContext) -> None:
        self.buffer, self.start, self.end = buffer, start, end
        self.number, self.offset, self.context = number, offset, context
        peeled = context.peel_line(buffer[start:end])
        self._prefix_text = peeled.prefix.decode("utf-8", "replace")
        self.full = peeled.text.decode("utf-8", "replace")
        self.text, self.label, rank = split_label(self.full, context.srun_labels)
        if context.several_writers:
            self.label = peeled.writer.decode("utf-8", "replace") + self.label
        rank = peeled.rank if rank is None else rank
        self.rank = context.rank if rank is None else rank
        self.parser = ""
        """Id of the parser that is reading the line."""
        self._time: float | bool | None = False

    @property
    def time(self) -> float | None:
        """The line's timestamp, a collector's before its own; None without one."""
        if self._time is False:
            time = find_time(self._prefix_text, self.context.year) if self._prefix_text else None
            self._time = find_time(self.full, self.context.year) if time is None else time
        return self._time

    @property
    def task(self) -> str | None:
        """The task with which srun labels the line; equal to the rank only if each rank is a task of its own."""
        if not self.context.srun_labels:
            return None
        match = _SRUN.match(self.full)
        return None if match is None else match["task"]

    @property
    def quote(self) -> str:
        """The line as it was sent, without the prefix that the receiver added."""
        return (
            strip_syslog_prefix(self.full.encode("utf-8", "replace")) if self.context.has_syslog_prefix else self.full
        ).strip()

    @property
    def at(self) -> Position:
        """The line's position in its file."""
        return Position(self.context.path, self.number, self.offset, self.end - self.start)

    def following(self, limit: int = 200) -> Iterator[Line]:
        """At most ``limit`` physical lines after this one, of any writer; stops at the end of the buffer."""
        position, number = self.buffer.find(b"\n", self.end), self.number
        while position >= 0 and limit > 0:
            start, number, limit = position + 1, number + 1, limit - 1
            if start >= len(self.buffer):
                return
            position = self.buffer.find(b"\n", start)
            end = len(self.buffer) if position < 0 else position
            yield self._neighbor(start, min(end, start + MAX_LINE_BYTES), number)

    def is_near_end(self, max_bytes: int) -> bool:
        """Whether at most so many bytes of the buffer follow: cheap, so a rule about a log's last lines asks it first."""
        return len(self.buffer) - self.end <= max_bytes

    def containing(self, needles: Collection[bytes], reach: int) -> Iterator[Line]:
        """The physical lines after this one that contain any of the needles, each within ``reach`` bytes of the one
        before.

        Skipping other writers' lines this way is far cheaper than reading them. ``needles`` may change between lines.
        """
        position, number = self.buffer.find(b"\n", self.end), self.number + 1
        while 0 <= position < len(self.buffer) - 1:
            start = position + 1
            stop = min(len(self.buffer), start + reach)
            offsets = [offset for needle in needles if (offset := self.buffer.find(needle, start, stop)) >= 0]
            if not offsets:
                return
            begin = max(self.buffer.rfind(b"\n", start, min(offsets)) + 1, start)
            number += self.buffer.count(b"\n", start, begin)
            position = self.buffer.find(b"\n", begin)
            end = len(self.buffer) if position < 0 else position
            yield self._neighbor(begin, min(end, begin + MAX_LINE_BYTES), number)
            number += 1

    def preceding(self, limit: int = 20) -> Iterator[Line]:
        """At most ``limit`` segments before this one, nearest first: redraws of the same line, then lines above."""
        end, number = self.start - 1, self.number
        while end >= 0 and limit > 0:
            if self.buffer[end : end + 1] == b"\n":
                number -= 1
                end -= self.buffer[end - 1 : end] == b"\r"  # a CRLF line end is not an empty redraw
            floor = max(0, end - MAX_LINE_BYTES)
            start = self.buffer.rfind(b"\n", floor, end) + 1 or floor
            start = max(start, self.buffer.rfind(b"\r", start, end) + 1)
            yield self._neighbor(start, end, number)
            end, limit = start - 1, limit - 1

    def _neighbor(self, start: int, end: int, number: int) -> Line:
        """The line between two offsets of the buffer, for the same parser."""
        if self.buffer[end - 1 : end] == b"\r" and end > start:
            end -= 1
        line = Line(self.buffer, start, end, number, self.offset + start - self.start, self.context)
        line.parser = self.parser
        return line

    def notes(self, parser: str) -> dict[str, Any]:
        """What a parser remembers of this file; it may change it."""
        notes: dict[str, Any] = self.context.notes.setdefault(parser, {})
        return notes

    def event(
        self,
        kind: str,
        role: EventRole = EventRole.OBSERVATION,
        *,
        rank: int | None = None,
        node: str | None = None,
        time: float | None = None,
        text: str | None = None,
        **fields: Scalar,
    ) -> Event:
        """An event at this line. Fields that are None are left out; srun's task is added if the kind has that field."""
        if "task" in EVENTS[kind].fields:
            fields.setdefault("task", self.task)
        return Event(
            kind=kind,
            at=self.at,
            plane=self.context.plane,
            text=(self.quote if text is None else text)[:MAX_TEXT_CHARS],
            time=self.time if time is None else time,
            rank=self.rank if rank is None else rank,
            node=self.context.node if node is None else node,
            role=role,
            parser=self.parser,
            fields={name: value for name, value in fields.items() if value is not None},
        )


def strip_syslog_prefix(raw: bytes) -> str:
    """The text of a line without :data:`SYSLOG_PREFIX`."""
    return SYSLOG_PREFIX.sub(b"", raw, count=1).decode("utf-8", "replace")


def split_label(full: str, srun_labels: bool) -> tuple[str, str, int | None]:
    """(text without labels, label, rank or None) of a decoded line.

    A launcher's local rank (``[default3]:``) and srun's task number identify writers but are not global ranks.
    """
    label, rank, text = "", None, full
    for _ in range(3):
        match = _SRUN.match(text) if srun_labels and not label else None
        if match is None:
            match = _LABEL.match(text)
            if match is None:
                break
            group = match.groupdict()
            number = group["rank"] or group["mpi"]
            rank = int(number) if number else rank
        label += match[0].strip()
        text = text[match.end() :]
    return text, label, rank


def has_srun_labels(lines: Sequence[bytes]) -> bool:
    """Whether ``srun -l`` labeled these lines: most begin with ``N: ``. Numbers that only grow are a program's own steps:
    tasks print more than once."""
    nonblank = [line for line in lines[:400] if line.strip()]
    matches = (re.match(rb" {0,5}(\d{1,6}):( |$)", line) for line in nonblank)
    labels = [int(match[1]) for match in matches if match is not None]
    is_counter = all(a < b for a, b in pairwise(labels))
    return len(nonblank) >= 4 and len(labels) >= 0.6 * len(nonblank) and not is_counter
