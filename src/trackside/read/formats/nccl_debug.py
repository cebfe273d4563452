"""``NCCL_DEBUG=INFO`` output in a file of its own (``NCCL_DEBUG_FILE``), read by the log scan."""

from __future__ import annotations

import re

from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.job_log import looks_like_text, read_log

_LINE = re.compile(
    r"(?:\[?20\d\d-\d\d-\d\d[T ][\d:.,]{8,20}\]? )?(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,10}):\d{1,10} "
    r"\[(?:\d{1,3}|)\] (?:[\d.]{1,20} |\w+:\d+ )?(?:\(\w+\) )?NCCL (?:INFO|WARN|TRACE|VERSION|CALL|ABORT)"
)
_VERSION = re.compile(r"NCCL version \d")
_RANK = re.compile(r"comm 0x[0-9a-f]+ rank (\d{1,7}) n[rR]anks \d")
MIN_SHARE = 0.9
"""Minimum share of NCCL lines: a job's output with NCCL_DEBUG set has many of these too, but mixed with others."""


def _lines(source: InputSource) -> list[re.Match[str]]:
    """The NCCL lines of the head, if nearly all lines are NCCL lines; else empty."""
    lines = [line for line in source.text.splitlines()[:400] if line.strip()]
    matches = [match for line in lines if (match := _LINE.match(line)) is not None]
    version_lines = sum(1 for line in lines if _VERSION.match(line))
    return matches if lines and len(matches) >= 1 and len(matches) + version_lines >= MIN_SHARE * len(lines) else []


def _sniff(source: InputSource) -> Match | None:
    if b"NCCL" not in source.head or not looks_like_text(source.head):
        return None
    return Match(0.6, "NCCL debug log") if _lines(source) else None


def _read(source: InputSource, sink: Sink) -> Result:
    """Scan as a job log. A file of one process has a host and rank; a file of several processes has neither."""
    lines = _lines(source)
    hosts = {match["host"] for match in lines}
    ranks = {match[1] for match in _RANK.finditer(source.text)}
    is_one_process = len({match["pid"] for match in lines}) == 1 and len(ranks) == 1
    return read_log(
        source, sink, node=hosts.pop() if len(hosts) == 1 else None, rank=int(ranks.pop()) if is_one_process else None
    )


FORMAT = Format("nccl-debug", "NCCL_DEBUG=INFO log", "log", _sniff, _read)
