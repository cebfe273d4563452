"""What every kind of thing that is replaced does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=[0-9]m)|(?<=%[0-9A-F]{2}))"
"""Where a word may begin: also after ``\\n`` written out, a terminal's colour and an escape of a URL."""
AFTER = r"(?![A-Za-z0-9])"


class Kind(Protocol):
    """One kind of thing. Texts are learned in any order, then ``settle`` is called once, then texts are replaced."""

    name: str
    """In the plural, for people."""

    def learn(self, text: str) -> None:
        """Look for such things in a text of whole lines."""
        ...

    def settle(self) -> None:
        """Give each a name; the same ones for the same things, in whatever order they were learned."""
        ...

    def replaced(self, text: str) -> str:
        """The text with their names in place of them; it keeps its lines."""
        ...

    def leaks(self, text: str) -> Iterable[str]:
        """The names of those things that a text holds nonetheless."""
        ...

    @property
    def names(self) -> Mapping[str, str]:
        """Thing -> its name."""
        ...


class Patterned:
    """A kind whose things are known by their looks alone."""

    name = ""
    pattern: re.Pattern[str]

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._names: dict[str, str] = {}

    @property
    def names(self) -> Mapping[str, str]:
        """Thing -> its name."""
        return self._names

    def key(self, text: str) -> str | None:
        """The thing that a match is, in one spelling; None for none."""
        return text.lower()

    def named(self, key: str, number: int) -> str:
        """The name of the n-th thing, from 1."""
        raise NotImplementedError

    def skipped(self, text: str) -> bool:
        """Whether a text can't hold any: a quick look."""
        return False

    def learn(self, text: str) -> None:
        """See :class:`Kind`."""
        if not self.skipped(text):
            self._found.update(key for match in self.pattern.findall(text) if (key := self.key(match)) is not None)

    def settle(self) -> None:
        """See :class:`Kind`."""
        for number, key in enumerate(sorted(self._found), 1):
            self._names[key] = self.named(key, number)

    def replaced(self, text: str) -> str:
        """See :class:`Kind`."""
        return text if not self._names or self.skipped(text) else self.pattern.sub(self._named, text)

    def _named(self, match: re.Match[str]) -> str:
        key = self.key(match[0])
        if key is None:
            return match[0]
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self.named(key, len(self._names) + 1)
        return name

    def leaks(self, text: str) -> Iterable[str]:
        """See :class:`Kind`."""
        if self._names and not self.skipped(text):
            for match in self.pattern.findall(text):
                if (key := self.key(match)) is not None and key in self._names:
                    yield self._names[key]
