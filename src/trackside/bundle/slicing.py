"""Slices large logs: keeps the first and last lines, every line with an event, and the lines around those that the
verdict cites. A marker line gives the number of lines left out in between."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trackside.model import Event
from trackside.query import Query, QueryError

MAX_WHOLE_BYTES = 1 << 20
"""Largest file that is kept whole, bytes."""
END_LINES = 200
"""Lines kept at each end."""
CITED_CONTEXT_LINES, EVENT_CONTEXT_LINES = 20, 10
"""Lines kept on each side of a cited line, and of a line with an event."""
MAX_GAP_LINES = 20
"""Gaps of fewer lines are kept as well, so that reports of several lines stay whole."""
FORMATS = frozenset({"job-log", "kernel-log", "nccl-debug", "slurm-daemon-log"})
"""Logs with independent lines; other formats are kept whole."""
MAX_LINE_BYTES = 16 << 20


@dataclass(slots=True)
class FileParts:
    """The parts of one file to keep: ranges of 1-based lines, and ranges of bytes."""

    lines: list[tuple[int, int]] = field(default_factory=list)
    """First and last line."""
    bytes: list[tuple[int, int]] = field(default_factory=list)
    """First byte, and one past the last."""


def parts_to_keep(events: Iterable[Event], queries: Iterable[str]) -> Mapping[str, FileParts]:
    """File -> the parts to keep: those of events, and those of citations, given as query texts."""
    spots_by_path: dict[str, FileParts] = defaultdict(FileParts)
    for event in events:
        if event.kind == "log_activity":  # about the whole log: the lines at its ends are kept anyway
            continue
        position, kept_parts = event.at, spots_by_path[event.at.path]
        kept_parts.lines.append((position.line - EVENT_CONTEXT_LINES, position.line + EVENT_CONTEXT_LINES))
        if position.length:
            kept_parts.bytes.append((position.offset, position.offset + position.length))
    for text in queries:
        try:
            filters = dict(Query.parse(text).filters)
        except QueryError:
            continue
        path, line = filters.get("file"), filters.get("line")
        if isinstance(path, str) and isinstance(line, int):
            spots_by_path[path].lines.append((line - CITED_CONTEXT_LINES, line + CITED_CONTEXT_LINES))
    return {
        path: FileParts(_merge_close(spots_.lines, MAX_GAP_LINES), _merge_close(spots_.bytes, 1))
        for path, spots_ in spots_by_path.items()
    }


def _merge_close(spans: list[tuple[int, int]], max_gap: int) -> list[tuple[int, int]]:
    """The ranges sorted, with ranges joined that are at most ``max_gap`` apart."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1] + max_gap:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


@dataclass(slots=True)
class Slice:
    """Iterates over the kept lines of a log. ``line_count``, ``kept_lines``: counts, valid after the iteration."""

    stream: io.BufferedIOBase
    kept_parts: FileParts
    line_count: int = 0
    kept_lines: int = 0

    def __iter__(self) -> Iterator[bytes]:
        tail_lines: deque[bytes] = deque()  # candidates for the last lines of the file
        skipped = 0
        for line, offset, raw, is_complete in _lines(self.stream):
            self.line_count = line
            if line <= END_LINES or not is_complete or self._is_kept(line, offset, len(raw)):
                yield from self._gap(skipped + len(tail_lines))
                tail_lines.clear()
                skipped = 0
                self.kept_lines += 1
                yield raw
                continue
            tail_lines.append(raw)
            if len(tail_lines) > END_LINES:
                tail_lines.popleft()
                skipped += 1
        yield from self._gap(skipped)
        self.kept_lines += len(tail_lines)
        yield from tail_lines

    def _gap(self, skipped: int) -> Iterator[bytes]:
        if skipped:
            yield b"[... %d lines left out ...]\n" % skipped

    def _is_kept(self, line: int, offset: int, length: int) -> bool:
        return _within(self.kept_parts.lines, line, line) or _within(self.kept_parts.bytes, offset, offset + length - 1)


def _within(spans: list[tuple[int, int]], first: int, last: int) -> bool:
    """Whether any of the sorted ranges overlaps ``first`` to ``last``."""
    index = bisect_right(spans, (last, 1 << 62))
    return index > 0 and spans[index - 1][1] >= first


def _lines(stream: io.BufferedIOBase) -> Iterator[tuple[int, int, bytes, bool]]:
    """Yield (number, offset, line with its end, whether it is complete). A very long line is yielded in parts."""
    number, offset, at_line_start = 1, 0, True
    while raw := stream.readline(MAX_LINE_BYTES):
        is_complete = at_line_start and raw.endswith(b"\n")
        yield number, offset, raw, is_complete
        offset += len(raw)
        at_line_start = raw.endswith(b"\n")
        number += at_line_start
