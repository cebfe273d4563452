"""What every kind of thing that is replaced does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.bundle.redact.sieve import Look, Sign, literal, look, sign_of

BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=[0-9]m)|(?<=%[0-9A-F]{2}))"
"""Where a word may begin: also after ``\\n`` written out, a terminal's colour and an escape of a URL."""
AFTER = r"(?![A-Za-z0-9])"
_BEGINS = rb"(?:\b|_|\\[nrt]|[0-9]m|%[0-9A-F]{2})"
"""The same as BEFORE, for a sign: it never takes the end of the line before."""
_RARE = 4
"""Letters from which a word is rare enough within others to be looked for as it is, which costs far less."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A text that shows that something was not replaced. ``before``, ``after``: patterns of what must stand around it.
    ``exact``: only in this spelling."""

    text: str
    name: str
    before: str = r"(?<![A-Za-z0-9])"
    after: str = AFTER
    exact: bool = False


def word(text: str, after: bytes = b"", caseless: bool = False) -> Sign:
    """The sign of a word, and of what must follow it."""
    begins = _BEGINS if len(text) < _RARE else b""
    return Sign(begins + literal(text).regex + after, caseless)


class Kind:
    """One kind of thing. Texts are learned in any order, then ``settle`` is called once, then texts are replaced."""

    name = ""
    """In the plural, for people."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self.names: dict[str, str] = {}
        """Thing -> its name."""

    @property
    def looks(self) -> Sequence[Look]:
        """How such things are told in a text."""
        return ()

    def settle(self) -> None:
        """Give each a name; the same ones for the same things, in whatever order they were learned."""

    def signs(self) -> Iterable[Sign]:
        """What a line has at least in which something is replaced."""
        raise NotImplementedError

    def replaced(self, text: str) -> str:
        """The text with their names in place of them; it keeps its lines."""
        raise NotImplementedError

    def traces(self) -> Iterable[Trace]:
        """All that were replaced, each as it would stand in a text."""
        return (Trace(key, name) for key, name in self.names.items())


class Patterned(Kind):
    """A kind whose things are known by their looks alone."""

    pattern: re.Pattern[str]
    sign = b""
    """What a line with such a thing has, where that is less than the pattern says."""
    step = 1 << 24
    """How many names further another one is tried where a thing is called so already."""

    @property
    def looks(self) -> Sequence[Look]:
        return (look(self.pattern, self._met, self.sign),)

    def _met(self, text: str) -> None:
        if (key := self.key(text)) is not None:
            self._found.add(key)

    def key(self, text: str) -> str | None:
        """The thing that a match is, in one spelling; None for none."""
        return text.lower()

    def named(self, number: int) -> str:
        """The name of the n-th thing, from 1, if no thing is called so."""
        raise NotImplementedError

    def _free(self, key: str, number: int) -> str:
        """The name of a thing, the n-th."""
        while (name := self.named(number)) in self._found:
            number += self.step
        return name

    def settle(self) -> None:
        for number, key in enumerate(sorted(self._found), 1):
            self.names[key] = self._free(key, number)

    def signs(self) -> Iterable[Sign]:
        return (Sign(self.sign) if self.sign else sign_of(self.pattern),) if self.names else ()

    def replaced(self, text: str) -> str:
        return self.pattern.sub(self._named, text) if self.names else text

    def _named(self, match: re.Match[str]) -> str:
        key = self.key(match[0])
        if key is None:
            return match[0]
        if key not in self.names:
            self.names[key] = self._free(key, len(self.names) + 1)
        return self.names[key]
