"""Things that their surroundings tell once, and that are replaced wherever they stand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence

from trackside.bundle.redact.kind import AFTER, BEFORE, Kind, Trace, word
from trackside.bundle.redact.sieve import Look, Sign, literal, look
from trackside.errors import TracksideError

MOST = 20_000
"""Things of one kind that are told apart; a pattern that finds more finds no names."""


class Literal(Kind):
    """``pattern`` has one group, the thing; ``word`` begins the names."""

    word = ""
    pattern: re.Pattern[str]

    def __init__(self) -> None:
        super().__init__()
        self._any: re.Pattern[str] | None = None

    def key(self, text: str) -> str | None:
        """The thing as it is looked for; None for none."""
        return text

    @property
    def looks(self) -> Sequence[Look]:
        return (look(self.pattern, self.add),)

    def add(self, text: str) -> None:
        """One that is known from elsewhere. Raises TooMany."""
        if text and (key := self.key(text)) is not None:
            self._found.add(key)
            if len(self._found) > MOST:
                raise TooMany(f"more than {MOST:,} {self.name}")

    def settle(self) -> None:
        self.names = numbered(sorted(self._found), self.word)
        self._any = any_of(self._found)

    def signs(self) -> Iterable[Sign]:
        return map(literal, self.names)

    def replaced(self, text: str) -> str:
        return text if self._any is None else self._any.sub(lambda match: self.names[match[0]], text)

    def traces(self) -> Iterable[Trace]:
        """Wherever they stand."""
        return (Trace(key, name, "", "", exact=True) for key, name in self.names.items())


class Told(Literal):
    """Things that what stands before them tells: the patterns have two groups, what stands before and the thing.

    One that is like no word of a log is replaced wherever it stands, any other (``--password horse``) only where the
    same stands before it.
    """

    whole = True
    """Whether they are words of their own, rather than parts of others too."""

    def __init__(self) -> None:
        super().__init__()
        self._placed: dict[str, tuple[str, str]] = {}
        """What stands before and the thing, as one text -> the two."""
        self._any_placed: tuple[re.Pattern[str], ...] = ()

    def is_rare(self, key: str) -> bool:
        """Whether it means the same wherever it stands."""
        raise NotImplementedError

    def tell(self, found: tuple[str, str]) -> None:
        """One with what stands before it. Raises TooMany."""
        before, text = found
        if (key := self.key(text)) is None:
            return
        self._placed[before + key] = before, key
        if self.is_rare(key):
            self._found.add(key)
        if len(self._placed) > MOST:
            raise TooMany(f"more than {MOST:,} {self.name}")

    def settle(self) -> None:
        things = self._found | {key for _, key in self._placed.values()}
        self.names = numbered(sorted(things), self.word, things)
        # What has blanks goes first: of ``'correct horse'`` another pattern may have seen the first word alone.
        blank = {both for both, (_, key) in self._placed.items() if " " in key}
        patterns = any_of(blank, after=AFTER), any_of(self._placed.keys() - blank, after=AFTER)
        self._any_placed = tuple(each for each in patterns if each is not None)
        self._any = any_of(self._found, BEFORE, AFTER) if self.whole else any_of(self._found)

    def signs(self) -> Iterable[Sign]:
        yield from (literal(both) for both, (_, key) in self._placed.items() if key not in self._found)
        yield from (word(key) if self.whole else literal(key) for key in self._found)

    def replaced(self, text: str) -> str:
        """Where they were told."""
        for pattern in self._any_placed:
            text = pattern.sub(self._in_place, text)
        return text

    def _in_place(self, match: re.Match[str]) -> str:
        before, key = self._placed[match[0]]
        return before + self.names[key]

    def replaced_elsewhere(self, text: str) -> str:
        """Those that are rare, wherever else they stand."""
        return super().replaced(text)

    def traces(self) -> Iterable[Trace]:
        for both, (_, key) in self._placed.items():
            yield Trace(both, self.names[key], "", exact=True)
        for key in self._found:
            yield Trace(key, self.names[key], exact=True) if self.whole else Trace(key, self.names[key], "", "", True)


class TooMany(TracksideError, ValueError):
    """More things of one kind than can be told apart."""


def numbered(things: Iterable[str], word: str, taken: Collection[str] = ()) -> dict[str, str]:
    """A name for each thing, ``word-1`` and so on, without those that are taken."""
    free = (name for number in itertools.count(1) if (name := f"{word}-{number}") not in taken)
    return dict(zip(things, free, strict=False))


def any_of(words: Iterable[str], before: str = "", after: str = "", flags: int = 0) -> re.Pattern[str] | None:
    """Any of some words, the longest first; None without words."""
    listed = sorted(words, key=lambda each: (-len(each), each))
    if not listed:
        return None
    # What a word begins with is looked at first: looking back is slow.
    first = re.escape("".join(sorted({word[0] for word in listed})))
    return re.compile(f"(?=[{first}]){before}(?:{'|'.join(map(re.escape, listed))}){after}", flags)
