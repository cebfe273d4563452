"""The final check of a bundle: no redacted original may remain in what was written.

It knows only the originals as texts and searches raw bytes for all of them at once. It shares no patterns with the code
that found and replaced them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from trackside.bundle.redact.kind import LeakPattern, NameKind
from trackside.bundle.redact.prefilter import LinePattern, Prefilter

_NUMBERED = re.compile(rb"(.*?[^0-9])([0-9]+)\Z", re.DOTALL)
_NUMBER = re.compile(rb"[0-9]*")
_Numbers = Mapping[bytes, list[tuple[LeakPattern, str]]]
"""Number -> leak patterns that end in it, with the names of their kinds."""


class LeakSearch:
    """The originals of all kinds. Originals that differ only in a trailing number are searched for with one pattern."""

    def __init__(self, kinds: Iterable[NameKind]) -> None:
        patterns_by_stem: dict[tuple[bytes, bool], dict[bytes, list[tuple[LeakPattern, str]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for kind in kinds:
            for pattern in kind.leak_patterns():
                stem, number = pattern.text.encode("utf-8", "surrogateescape"), b""
                if pattern.after and (match := _NUMBERED.match(stem)) is not None:
                    stem, number = match.groups()
                patterns_by_stem[stem.lower(), bool(number)][number].append((pattern, kind.plural))
        self._stems: list[tuple[bytes, bool, _Numbers]] = [
            (*stem, numbers) for stem, numbers in patterns_by_stem.items()
        ]
        self._prefilter = Prefilter(
            LinePattern(re.escape(stem) + (b"[0-9]" if has_number else b""), caseless=True)
            for stem, has_number in patterns_by_stem
        )

    def leaks(self, data: bytes) -> set[str]:
        """The originals in ``data``, as "pseudonym (kind)"."""
        leaks_ = set()
        for stop, index in self._prefilter.hits(data):
            stem, has_number, numbers = self._stems[index]
            stop -= has_number
            number = _NUMBER.match(data, stop)[0] if has_number else b""  # type: ignore[index]
            for pattern, kind in numbers.get(number, ()):
                if _is_match(pattern, data, stop - len(stem), stop + len(number)):
                    leaks_.add(f"{pattern.pseudonym} ({kind})")
        return leaks_


def _is_match(pattern: LeakPattern, data: bytes, begin: int, end: int) -> bool:
    """Whether the match is the original itself and not part of another word."""
    if pattern.exact and data[begin:end] != pattern.text.encode("utf-8", "surrogateescape"):
        return False
    return bool(_compile(pattern.before).match(data, begin) and _compile(pattern.after).match(data, end))


@cache
def _compile(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())
