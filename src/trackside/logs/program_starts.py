"""Where a program starts again in one file: appended attempts, arrays, `nohup` twice into the same log.

Two signs: a launcher's banner, and the file's own first lines printed again. What an earlier program printed about its
end says nothing about the last one's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

MIN_NEEDLE_BYTES = 20
MAX_NEEDLE_BYTES = 120
MAX_APART_BYTES = 4_000
"""Distance within which the file's first two lines are printed again."""
MIN_PROGRAM_BYTES = 300
"""Text behind a launcher's banner that shows that its program ran, even if nothing in it is known."""
_ERROR = re.compile(rb"Traceback|File \"|Error|ERROR|[Ff]ailed|[Kk]ill|[Aa]bort|[Ss]ignal")
"""A file that begins with a failure does not show how a program begins."""
_PLAIN = re.compile(rb"[^0-9\x00-\x1f]+")

PARSER = Parser("program-starts", "starts of programs", "system")


@PARSER.pattern(
    rb"(?:nohup: ignoring input|The following values were not passed to `accelerate launch`|\[runner\.py:[0-9]{1,5}:main\] cmd = )",
    safety="Lines that a launcher prints once, before the program.",
    matches=(
        "nohup: ignoring input",
        "nohup: ignoring input and appending output to 'nohup.out'",
        "[2026-01-01 10:00:00,000] [INFO] [runner.py:555:main] cmd = /usr/bin/python3 -u -m deepspeed.launcher.launch train.py",
    ),
    avoids=("start it with nohup to ignore input",),
)
def _launched(line: Line) -> Event:
    return line.event("program_start")


@dataclass(frozen=True, slots=True)
class FirstLines:
    """What the file's first two lines hold besides figures."""

    first: bytes
    second: bytes

    def starts(self, buffer: bytes, begin: int, end: int) -> Iterator[int]:
        """Offsets in the buffer, in [begin, end), where both lines are printed again, one below the other."""
        position = buffer.find(self.first, begin, end)
        while position >= 0:
            if buffer.find(self.second, position, position + MAX_APART_BYTES) >= 0:
                yield buffer.rfind(b"\n", 0, position) + 1
            position = buffer.find(self.first, position + len(self.first), end)


def first_lines(head: bytes) -> FirstLines | None:
    """The first two lines of a file, by their longest piece without figures; None if they are too short, equal, or
    repeated at once: then several processes print into the file."""
    needles: list[bytes] = []
    last = 0
    for match in re.finditer(rb"[^\n]+", head):
        pieces = _PLAIN.findall(match[0].rpartition(b"\r")[2])
        piece = max(pieces, key=len, default=b"").strip()[:MAX_NEEDLE_BYTES]
        if piece in needles:
            return None
        if len(piece) >= MIN_NEEDLE_BYTES:
            needles.append(piece)
            last = match.end()
        if len(needles) == 2:
            break
    if (
        len(needles) < 2
        or _ERROR.search(head, 0, last)
        or any(needle in head[last : last + MAX_APART_BYTES] for needle in needles)
    ):
        return None
    return FirstLines(*needles)


def last_start(starts: Iterable[int], first: int, last: int) -> int:
    """The last start between the ``first`` and the ``last`` offset at which something is known of a program; 0 if there
    is none."""
    return max((start for start in starts if first < start <= last), default=0)
