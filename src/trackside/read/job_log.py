"""Any text: a job's output. The format of last resort, read by the log scan."""

from __future__ import annotations

import re

from trackside.logs.line import Scratch
from trackside.logs.scan import scan
from trackside.read.format import Format, Match, Result, Sink, Source

_RANK_DIR = re.compile(r"(?:^|/)attempt_(\d+)/(\d+)/(?:stdout|stderr)\.log")
_RANK_FILE = re.compile(r"(?:^|[/_.-])rank[_-]?(\d{1,6})(?=[/_.-]|$)", re.IGNORECASE)
_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 11, 12, 13, 27}) + b"\x7f"


def looks_like_text(head: bytes) -> bool:
    """Whether a head is text of any encoding that keeps ASCII: few control bytes, no NUL."""
    if b"\0" in head:
        return False
    return len(head.translate(None, _CONTROL)) >= 0.98 * len(head)


def _sniff(source: Source) -> Match | None:
    return Match(0.1, "text") if looks_like_text(source.head) else None


def rank_of(path: str) -> int | None:
    """The rank that a path names: torchrun's ``attempt_0/3/stdout.log`` (local to a node) or ``rank3.log``."""
    if found := _RANK_DIR.search(path):
        return int(found[2])
    found = _RANK_FILE.search(path)
    return int(found[1]) if found else None


def _read(source: Source, sink: Sink) -> Result:
    scratch = Scratch(source.path, "log", rank=rank_of(source.path))
    done = scan(source.stream, sink.event, scratch, tick=source.tick)
    note = f"{done.dropped:,} repeated events not kept" if done.dropped else ""
    return Result(done.lines, note=note)


FORMAT = Format("job-log", "job output, any text", "log", _sniff, _read)
