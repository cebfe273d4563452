"""Base classes of the kinds of names that are redacted."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.bundle.redact.prefilter import Detector, LinePattern, detector, line_pattern_of, literal

WORD_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=[0-9]m)|(?<=%[0-9A-F]{2}))"
"""Where a word may begin: also after an escaped ``\\n``, a terminal color code and a URL escape."""
WORD_END = r"(?![A-Za-z0-9])"
_WORD_START_BYTES = rb"(?:\b|_|\\[nrt]|[0-9]m|%[0-9A-F]{2})"
"""The same as WORD_START for a line pattern, which must not match the end of the previous line."""
_MIN_RARE_LENGTH = 4
"""Words of this length or more rarely occur within others, so they are searched for without WORD_START, which is much
faster."""


@dataclass(frozen=True, slots=True)
class LeakPattern:
    """An original that must not remain after redaction, and its pseudonym. ``before``, ``after``: patterns of its
    context. ``exact``: case-sensitive."""

    text: str
    pseudonym: str
    before: str = r"(?<![A-Za-z0-9])"
    after: str = WORD_END
    exact: bool = False


def word(text: str, after: bytes = b"", caseless: bool = False) -> LinePattern:
    """The line pattern of a word followed by ``after``."""
    word_start = _WORD_START_BYTES if len(text) < _MIN_RARE_LENGTH else b""
    return LinePattern(word_start + literal(text).regex + after, caseless)


class NameKind(ABC):
    """One kind of name. First texts are learned in any order, then ``assign_pseudonyms`` is called once, then texts are
    redacted."""

    plural = ""
    """What the names are called, in the plural; shown to users."""

    def __init__(self) -> None:
        self._originals: set[str] = set()
        self.pseudonyms: dict[str, str] = {}
        """Original -> pseudonym."""

    @property
    def detectors(self) -> Sequence[Detector]:
        """The detectors that find originals in a text."""
        return ()

    def assign_pseudonyms(self) -> None:
        """Assign pseudonyms, independently of the order of learning."""

    @abstractmethod
    def line_patterns(self) -> Iterable[LinePattern]:
        """Line patterns, one of which matches every line with something to replace."""

    @abstractmethod
    def redact(self, text: str) -> str:
        """The text with originals replaced by pseudonyms; line breaks are kept."""

    def leak_patterns(self) -> Iterable[LeakPattern]:
        """The originals as they would occur in a text."""
        return (LeakPattern(key, pseudonym) for key, pseudonym in self.pseudonyms.items())


class PatternKind(NameKind):
    """A kind whose originals are recognized by their form alone."""

    pattern: re.Pattern[str]
    line_pattern = b""
    """Line pattern, if it is simpler than the one derived from ``pattern``."""

    @property
    def detectors(self) -> Sequence[Detector]:
        return (detector(self.pattern, self._add, self.line_pattern),)

    def _add(self, text: str) -> None:
        if (key := self.key(text)) is not None:
            self._originals.add(key)

    def key(self, text: str) -> str | None:
        """The normalized original of a match; None if it is not one."""
        return text.lower()

    def line_patterns(self) -> Iterable[LinePattern]:
        return (
            (LinePattern(self.line_pattern) if self.line_pattern else line_pattern_of(self.pattern),)
            if self.pseudonyms
            else ()
        )

    def redact(self, text: str) -> str:
        return self.pattern.sub(self._replacement, text) if self.pseudonyms else text

    @abstractmethod
    def _free_pseudonym(self, key: str, number: int) -> str:
        """The pseudonym of the n-th original, which is not an original itself."""

    def _replacement(self, match: re.Match[str]) -> str:
        key = self.key(match[0])
        if key is None:
            return match[0]
        if key not in self.pseudonyms:
            self.pseudonyms[key] = self._free_pseudonym(key, len(self.pseudonyms) + 1)
        return self.pseudonyms[key]


class NumberedKind(PatternKind):
    """A kind whose pseudonyms are numbered in the order of the originals."""

    step = 1 << 24
    """Increment to the next pseudonym if one is also an original."""

    @abstractmethod
    def pseudonym(self, number: int) -> str:
        """The n-th pseudonym, from 1."""

    def _free_pseudonym(self, key: str, number: int) -> str:
        while (pseudonym := self.pseudonym(number)) in self._originals:
            number += self.step
        return pseudonym

    def assign_pseudonyms(self) -> None:
        for number, key in enumerate(sorted(self._originals), 1):
            self.pseudonyms[key] = self._free_pseudonym(key, number)
