"""The final check of a bundle: no redacted original may remain in what was written.

It knows only the originals as texts and searches raw bytes for all of them at once. It shares no patterns with the code
that found and replaced them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from trackside.bundle.redact.kind import NameKind, Trace
from trackside.bundle.redact.prefilter import LinePattern, Prefilter

_NUMBERED = re.compile(rb"(.*?[^0-9])([0-9]+)\Z", re.DOTALL)
_NUMBER = re.compile(rb"[0-9]*")
_Numbers = Mapping[bytes, list[tuple[Trace, str]]]
"""Number -> traces that end in it, with the names of their kinds."""


class Traces:
    """The originals of all kinds. Originals that differ only in a trailing number are searched for with one pattern."""

    def __init__(self, kinds: Iterable[NameKind]) -> None:
        traces_by_stem: dict[tuple[bytes, bool], dict[bytes, list[tuple[Trace, str]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for kind in kinds:
            for trace in kind.traces():
                stem, number = trace.text.encode("utf-8", "surrogateescape"), b""
                if trace.after and (match := _NUMBERED.match(stem)) is not None:
                    stem, number = match.groups()
                traces_by_stem[stem.lower(), bool(number)][number].append((trace, kind.name))
        self._stems: list[tuple[bytes, bool, _Numbers]] = [(*stem, numbers) for stem, numbers in traces_by_stem.items()]
        self._prefilter = Prefilter(
            LinePattern(re.escape(stem) + (b"[0-9]" if has_number else b""), caseless=True)
            for stem, has_number in traces_by_stem
        )

    def leaks(self, data: bytes) -> set[str]:
        """The originals in ``data``, as "pseudonym (kind)"."""
        leaks_ = set()
        for stop, index in self._prefilter.hits(data):
            stem, has_number, numbers = self._stems[index]
            stop -= has_number
            number = _NUMBER.match(data, stop)[0] if has_number else b""  # type: ignore[index]
            for trace, kind in numbers.get(number, ()):
                if _is_match(trace, data, stop - len(stem), stop + len(number)):
                    leaks_.add(f"{trace.name} ({kind})")
        return leaks_


def _is_match(trace: Trace, data: bytes, begin: int, end: int) -> bool:
    """Whether the match is the original itself and not part of another word."""
    if trace.exact and data[begin:end] != trace.text.encode("utf-8", "surrogateescape"):
        return False
    return bool(_compile(trace.before).match(data, begin) and _compile(trace.after).match(data, end))


@cache
def _compile(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())
