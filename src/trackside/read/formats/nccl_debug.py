"""``NCCL_DEBUG=INFO`` output kept in a file of its own (``NCCL_DEBUG_FILE``): a log, read by the scan."""

from __future__ import annotations

import re

from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.formats.job_log import looks_like_text, read_log

_LINE = re.compile(
    r"(?:\[?20\d\d-\d\d-\d\d[T ][\d:.,]{8,20}\]? )?(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,10}):\d{1,10} "
    r"\[(?:\d{1,3}|)\] (?:[\d.]{1,20} |\w+:\d+ )?(?:\(\w+\) )?NCCL (?:INFO|WARN|TRACE|VERSION|CALL|ABORT)"
)
_VERSION = re.compile(r"NCCL version \d")
_RANK = re.compile(r"comm 0x[0-9a-f]+ rank (\d{1,7}) n[rR]anks \d")
MAJORITY = 0.9
"""Share of lines: a job's whole output with NCCL_DEBUG set has many of these too, but others among them."""


def _lines(source: Source) -> list[re.Match[str]]:
    """The NCCL lines of the head, if they are nearly all of it."""
    lines = [line for line in source.text.splitlines()[:400] if line.strip()]
    found = [match for line in lines if (match := _LINE.match(line)) is not None]
    others = sum(1 for line in lines if _VERSION.match(line))
    return found if lines and len(found) >= 1 and len(found) + others >= MAJORITY * len(lines) else []


def _sniff(source: Source) -> Match | None:
    if b"NCCL" not in source.head or not looks_like_text(source.head):
        return None
    return Match(0.6, "lines of NCCL's debug log") if _lines(source) else None


def _read(source: Source, sink: Sink) -> Result:
    """One process's file tells its host and rank; those of several processes tell neither."""
    lines = _lines(source)
    hosts = {match["host"] for match in lines}
    ranks = {found[1] for found in _RANK.finditer(source.text)}
    one = len({match["pid"] for match in lines}) == 1 and len(ranks) == 1
    return read_log(source, sink, node=hosts.pop() if len(hosts) == 1 else None, rank=int(ranks.pop()) if one else None)


FORMAT = Format("nccl-debug", "NCCL_DEBUG=INFO log", "log", _sniff, _read)
