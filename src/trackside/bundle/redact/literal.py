"""Things that their surroundings tell once, and that are replaced wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from trackside.bundle.redact.kind import Trace
from trackside.bundle.redact.sieve import Look, Sign, literal, look

MOST = 20_000
"""Things of one kind that are told apart; a pattern that finds more finds no names."""


class Literal:
    """``pattern`` has one group, the thing; ``word`` begins the names."""

    name = word = ""
    pattern: re.Pattern[str]

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._names: dict[str, str] = {}
        self._any: re.Pattern[str] | None = None

    @property
    def names(self) -> Mapping[str, str]:
        """Thing -> its name."""
        return self._names

    def key(self, text: str) -> str | None:
        """The thing as it is looked for; None for none."""
        return text

    @property
    def looks(self) -> Sequence[Look]:
        """See :class:`trackside.bundle.redact.kind.Kind`."""
        return (look(self.pattern, self.add),)

    def add(self, text: str) -> None:
        """One that is known from elsewhere. Raises TooMany."""
        if text and (key := self.key(text)) is not None:
            self._found.add(key)
            if len(self._found) > MOST:
                raise TooMany(f"more than {MOST:,} {self.name}")

    def settle(self) -> None:
        """See :class:`trackside.bundle.redact.kind.Kind`."""
        self._names = {key: f"{self.word}-{number}" for number, key in enumerate(sorted(self._found), 1)}
        self._any = any_of(self._found)

    def signs(self) -> Iterable[Sign]:
        """See :class:`trackside.bundle.redact.kind.Kind`."""
        return map(literal, self._names)

    def replaced(self, text: str) -> str:
        """See :class:`trackside.bundle.redact.kind.Kind`."""
        return text if self._any is None else self._any.sub(lambda match: self._names[match[0]], text)

    def traces(self) -> Iterable[Trace]:
        """See :class:`trackside.bundle.redact.kind.Kind`: wherever they stand."""
        return (Trace(key, name, "", "", exact=True) for key, name in self._names.items())


class TooMany(ValueError):
    """More things of one kind than can be told apart."""


def any_of(words: Iterable[str], before: str = "", after: str = "", flags: int = 0) -> re.Pattern[str] | None:
    """Any of some words, the longest first; None without words."""
    listed = sorted(words, key=lambda each: (-len(each), each))
    if not listed:
        return None
    # What a word begins with is looked at first: looking back is slow.
    first = re.escape("".join(sorted({word[0] for word in listed})))
    return re.compile(f"(?=[{first}]){before}(?:{'|'.join(map(re.escape, listed))}){after}", flags)
