"""The last look at what was written: nothing that was replaced may stand there, whatever was to replace it.

It knows the originals alone, as texts, and searches raw bytes for all of them at once. It shares none of the patterns
by which they were found and replaced.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from trackside.bundle.redact.kind import Kind, Trace
from trackside.bundle.redact.sieve import Sieve, Sign

_NUMBERED = re.compile(rb"(.*?[^0-9])([0-9]+)\Z", re.DOTALL)
_NUMBER = re.compile(rb"[0-9]*")
_Numbers = Mapping[bytes, list[tuple[Trace, str]]]
"""Number -> what ends in it, and of which kind that is."""


class Traces:
    """The originals of all kinds. Those that differ in a number at their end alone are searched for as one."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        found: dict[tuple[bytes, bool], dict[bytes, list[tuple[Trace, str]]]] = defaultdict(lambda: defaultdict(list))
        for kind in kinds:
            for trace in kind.traces():
                stem, number = trace.text.encode("utf-8", "surrogateescape"), b""
                if trace.after and (match := _NUMBERED.match(stem)) is not None:
                    stem, number = match.groups()
                found[stem.lower(), bool(number)][number].append((trace, kind.name))
        self._stems: list[tuple[bytes, bool, _Numbers]] = [(*stem, numbers) for stem, numbers in found.items()]
        self._sieve = Sieve(
            Sign(re.escape(stem) + (b"[0-9]" if numbered else b""), caseless=True) for stem, numbered in found
        )

    def leaks(self, data: bytes) -> set[str]:
        """What of it is in some bytes: the new name of each, and the kind of it."""
        found = set()
        for stop, index in self._sieve.hits(data):
            stem, numbered, numbers = self._stems[index]
            stop -= numbered
            number = _NUMBER.match(data, stop)[0] if numbered else b""  # type: ignore[index]
            for trace, kind in numbers.get(number, ()):
                if _is(trace, data, stop - len(stem), stop + len(number)):
                    found.add(f"{trace.name} ({kind})")
        return found


def _is(trace: Trace, data: bytes, begin: int, end: int) -> bool:
    """Whether it is the thing that stands there, and not a part of something else."""
    if trace.exact and data[begin:end] != trace.text.encode("utf-8", "surrogateescape"):
        return False
    return bool(_compiled(trace.before).match(data, begin) and _compiled(trace.after).match(data, end))


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())
