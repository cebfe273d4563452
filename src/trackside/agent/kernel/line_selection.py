"""Which kernel lines are sent: all within a rate limit, with priority for those that Trackside can parse."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Literal

from trackside.agent.rate_limit import RateLimit

KernelLinePolicy = Literal["all", "known"]
_CONTEXT = re.compile(r"invoked oom-killer|memory: usage \d|oom-kill:constraint=")
"""Lines that are not events themselves but belong to the event that follows."""


def known_lines(lines: Sequence[str]) -> set[int]:
    """Indices of the lines that a parser of kernel messages reads, and of those before an out-of-memory kill that
    belong to it."""
    from trackside.logs.line import FileContext  # the scan is loaded only if lines must be selected
    from trackside.logs.scan import scan
    from trackside.model import Event

    indices = {index for index, line in enumerate(lines) if _CONTEXT.search(line)}

    def add_index(event: Event) -> None:
        if event.kind not in ("log_activity", "host"):
            indices.add(event.at.line - 1)

    text = "\n".join(lines).encode("utf-8", "replace") + b"\n"
    scan(io.BytesIO(text.replace(b"\r", b" ")), add_index, FileContext("kernel", plane="kernel"))
    return indices & set(range(len(lines)))


def select_lines(
    lines: Sequence[str], policy: KernelLinePolicy, limit: RateLimit, now_s: float
) -> tuple[list[int], int]:
    """(indices of the lines to send, number of lines left out by the rate limit)."""
    if policy == "known":
        indices = sorted(known_lines(lines))
        allowed = limit.take(len(indices), now_s)
        return indices[:allowed], len(indices) - allowed
    allowed = limit.take(len(lines), now_s)
    if allowed == len(lines):
        return list(range(allowed)), 0
    priority = known_lines(lines)
    in_order = sorted(range(len(lines)), key=lambda index: (index not in priority, index))
    return sorted(in_order[:allowed]), len(lines) - allowed
