"""Kinds whose originals are recognized in one context and then replaced everywhere."""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence

from trackside.bundle.redact.kind import WORD_END, WORD_START, LeakPattern, NameKind, word
from trackside.bundle.redact.prefilter import Detector, LinePattern, detector, literal
from trackside.errors import TracksideError

MAX_ORIGINALS = 20_000
"""Maximum number of originals of one kind; a pattern that finds more does not find names."""


class LiteralKind(NameKind):
    """``pattern`` has one group, the original; ``word`` is the prefix of pseudonyms."""

    word = ""
    pattern: re.Pattern[str]

    def __init__(self) -> None:
        super().__init__()
        self._pattern: re.Pattern[str] | None = None

    def key(self, text: str) -> str | None:
        """The original to search for; None if the text is not one."""
        return text

    @property
    def detectors(self) -> Sequence[Detector]:
        return (detector(self.pattern, self.add),)

    def add(self, text: str) -> None:
        """Learn an original. Raises TooManyLiterals."""
        if text and (key := self.key(text)) is not None:
            self._originals.add(key)
            if len(self._originals) > MAX_ORIGINALS:
                raise TooManyLiterals(f"more than {MAX_ORIGINALS:,} {self.plural}")

    def assign_pseudonyms(self) -> None:
        self.pseudonyms = numbered_pseudonyms(sorted(self._originals), self.word)
        self._pattern = any_of(self._originals)

    def line_patterns(self) -> Iterable[LinePattern]:
        return map(literal, self.pseudonyms)

    def redact(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda match: self.pseudonyms[match[0]], text)

    def leak_patterns(self) -> Iterable[LeakPattern]:
        """Leak patterns of all originals, in any context."""
        return (LeakPattern(key, pseudonym, "", "", exact=True) for key, pseudonym in self.pseudonyms.items())


class PrefixedKind(LiteralKind):
    """Originals recognized by the text before them: the patterns have two groups, this prefix and the original.

    An original that is not a common word is replaced everywhere, any other (``--password horse``) only after the same
    prefix.
    """

    whole_words = True
    """Whether originals are replaced only as whole words, not within words."""

    def __init__(self) -> None:
        super().__init__()
        self._by_prefixed_text: dict[str, tuple[str, str]] = {}
        """prefix + original -> (prefix, original)"""
        self._prefixed_patterns: tuple[re.Pattern[str], ...] = ()

    @abstractmethod
    def is_rare(self, key: str) -> bool:
        """Whether the original is rare enough to be replaced everywhere."""

    def add_prefixed(self, match: tuple[str, str]) -> None:
        """Learn a (prefix, original) pair. Raises TooManyLiterals."""
        before, text = match
        if (key := self.key(text)) is None:
            return
        self._by_prefixed_text[before + key] = before, key
        if self.is_rare(key):
            self._originals.add(key)
        if len(self._by_prefixed_text) > MAX_ORIGINALS:
            raise TooManyLiterals(f"more than {MAX_ORIGINALS:,} {self.plural}")

    def assign_pseudonyms(self) -> None:
        originals = self._originals | {key for _, key in self._by_prefixed_text.values()}
        self.pseudonyms = numbered_pseudonyms(sorted(originals), self.word, originals)
        # Originals with blanks first: another pattern may have found only the first word of ``'correct horse'``.
        with_blanks = {prefixed_text for prefixed_text, (_, key) in self._by_prefixed_text.items() if " " in key}
        patterns = (
            any_of(with_blanks, after=WORD_END),
            any_of(self._by_prefixed_text.keys() - with_blanks, after=WORD_END),
        )
        self._prefixed_patterns = tuple(pattern for pattern in patterns if pattern is not None)
        self._pattern = any_of(self._originals, WORD_START, WORD_END) if self.whole_words else any_of(self._originals)

    def line_patterns(self) -> Iterable[LinePattern]:
        yield from (
            literal(prefixed_text)
            for prefixed_text, (_, key) in self._by_prefixed_text.items()
            if key not in self._originals
        )
        yield from (word(key) if self.whole_words else literal(key) for key in self._originals)

    def redact(self, text: str) -> str:
        """Replace originals after their prefixes."""
        for pattern in self._prefixed_patterns:
            text = pattern.sub(self._replace_after_prefix, text)
        return text

    def _replace_after_prefix(self, match: re.Match[str]) -> str:
        before, key = self._by_prefixed_text[match[0]]
        return before + self.pseudonyms[key]

    def redact_elsewhere(self, text: str) -> str:
        """Replace rare originals everywhere else."""
        return super().redact(text)

    def leak_patterns(self) -> Iterable[LeakPattern]:
        for prefixed_text, (_, key) in self._by_prefixed_text.items():
            yield LeakPattern(prefixed_text, self.pseudonyms[key], "", exact=True)
        for key in self._originals:
            yield (
                LeakPattern(key, self.pseudonyms[key], exact=True)
                if self.whole_words
                else LeakPattern(key, self.pseudonyms[key], "", "", True)
            )


class TooManyLiterals(TracksideError, ValueError):
    """More originals of one kind than supported."""


def numbered_pseudonyms(originals: Iterable[str], word: str, used: Collection[str] = ()) -> dict[str, str]:
    """A pseudonym for each original, ``word-1`` and so on, without those in ``used``."""
    free = (name for number in itertools.count(1) if (name := f"{word}-{number}") not in used)
    return dict(zip(originals, free, strict=False))


def any_of(words: Iterable[str], before: str = "", after: str = "", flags: int = 0) -> re.Pattern[str] | None:
    """A pattern for any of the words, longest first; None without words."""
    ordered = sorted(words, key=lambda word: (-len(word), word))
    if not ordered:
        return None
    # Check the first character before looking behind, which is slow.
    first = re.escape("".join(sorted({word[0] for word in ordered})))
    return re.compile(f"(?=[{first}]){before}(?:{'|'.join(map(re.escape, ordered))}){after}", flags)
