"""Which of the kernel's lines are sent on: all as far as a rate allows, those first that Trackside can read."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Literal

Policy = Literal["all", "known"]
_BESIDE = re.compile(r"invoked oom-killer|memory: usage \d|oom-kill:constraint=")
"""Lines that tell of no event themselves, but what is to be known of the one that follows."""


def known(lines: Sequence[str]) -> set[int]:
    """Places of the lines that a parser of kernel messages reads, or that it looks up."""
    from trackside.logs.line import FileContext  # the scan is loaded only where lines must be chosen
    from trackside.logs.scan import scan
    from trackside.model import Event

    found = {place for place, line in enumerate(lines) if _BESIDE.search(line)}

    def take(event: Event) -> None:
        if event.kind not in ("log_activity", "host"):
            found.add(event.at.line - 1)

    text = "\n".join(lines).encode("utf-8", "replace") + b"\n"
    scan(io.BytesIO(text.replace(b"\r", b" ")), take, FileContext("kernel", plane="kernel"))
    return found & set(range(len(lines)))


class Allowance:
    """Lines that may be sent: ``per_s`` of them, ``burst`` at once after a quiet time."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s, self._burst, self._left = per_s, burst, float(burst)
        self._at_s: float | None = None

    def take(self, wanted: int, now_s: float) -> int:
        """How many of ``wanted`` lines may be sent now. ``now_s``: of a clock that nobody sets."""
        if self._at_s is not None:
            self._left = min(float(self._burst), self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        given = min(wanted, int(self._left))
        self._left -= given
        return given


def chosen(lines: Sequence[str], policy: Policy, allowance: Allowance, now_s: float) -> tuple[list[int], int]:
    """(places of the lines to send, how many more should have been)."""
    if policy == "known":
        wanted = sorted(known(lines))
        allowed = allowance.take(len(wanted), now_s)
        return wanted[:allowed], len(wanted) - allowed
    allowed = allowance.take(len(lines), now_s)
    if allowed == len(lines):
        return list(range(allowed)), 0
    first = known(lines)
    in_order = sorted(range(len(lines)), key=lambda place: (place not in first, place))
    return sorted(in_order[:allowed]), len(lines) - allowed
