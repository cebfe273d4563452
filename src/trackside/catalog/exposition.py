"""The grammar of Prometheus text exposition and OpenMetrics: one series, one line.

The two formats are read alike; they differ only in that OpenMetrics has times in seconds, exemplars after ``#``, and a
last line ``# EOF``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# No possessive groups: before Python 3.11.5 such a group could fail to match (cpython gh-106052).
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*"'
_LABEL = rf"(?:{_NAME}|{_QUOTED})(?:\s*+=\s*+{_QUOTED})?"
_LABELS = rf"\s*+(?:{_LABEL}\s*+,\s*+)*(?:{_LABEL}\s*+)?"
_INSIDE = re.compile(_LABELS, re.DOTALL | re.ASCII)
_SERIES = re.compile(rf"\s*+(?:({_NAME})(?=[\s{{]|$))?(?:\s*\{{({_LABELS})\}})?".encode(), re.DOTALL)
_PART = re.compile(rf"\s*+({_NAME}|{_QUOTED})(?:\s*+=\s*+({_QUOTED}))?\s*+,?", re.DOTALL | re.ASCII)
_ONLY_NAME = re.compile(_NAME)
_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?))")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}
_MAX_CACHED_LABEL_SETS = 1 << 14
"""Cached label sets: all metrics of a GPU have the same labels."""
HELP = (b"HE", b"TY", b"UN", b"EO")
"""The two letters after ``# `` in HELP, TYPE, UNIT and EOF comments."""


@dataclass(frozen=True, slots=True)
class ExpositionLine:
    """One measurement: its series as raw bytes, its value, and its time as written."""

    series: bytes
    value: float
    time: float | None


def series_of(text: str) -> tuple[str, dict[str, str]] | None:
    """Name and labels of ``name{label="value", ...}``; the name may be in ``__name__``. None for other text."""
    before, brace, label_text = text.strip().partition("{")
    before = before.rstrip()
    if (before and not _ONLY_NAME.fullmatch(before)) or (brace and not label_text.endswith("}")):
        return None
    parsed = _labels_of(label_text[:-1])
    if parsed is None:
        return None
    quoted, labels = parsed[0], dict(parsed[1])
    if before and quoted is not None:
        return None
    name = before or quoted or labels.pop("__name__", None)
    return None if name is None else (name, labels)


@lru_cache(maxsize=_MAX_CACHED_LABEL_SETS)
def _labels_of(inside: str) -> tuple[str | None, tuple[tuple[str, str], ...]] | None:
    """The quoted name among the labels, if any, and the labels; None for invalid text."""
    if not _INSIDE.fullmatch(inside):
        return None
    name: str | None = None
    labels: dict[str, str] = {}
    for key, value in _PART.findall(inside):
        if value:
            if _plain(key) in labels:
                return None
            labels[_plain(key)] = _plain(value)
        elif name is not None or not key.startswith('"'):
            return None
        else:
            name = _plain(key)
    return name, tuple(labels.items())


def _plain(text: str) -> str:
    """A name, or quoted text without quotes and escapes; unknown escapes stay as they are."""
    if not text.startswith('"'):
        return text
    if "\\" not in text:
        return text[1:-1]
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), text[1:-1])


def number_of(text: bytes) -> float | None:
    """A number in either format: exponents, nan and inf, but no hex or underscores; None for other text."""
    return float(text) if _NUMBER.fullmatch(text) else None


def line_of(text: bytes) -> ExpositionLine | None:
    """Parse a line with any spacing, ignoring its exemplar; None if it is not a measurement."""
    match = _SERIES.match(text)
    if match is None or (match[1] is None and match[2] is None):
        return None
    series, remainder = text[: match.end()].strip(), text[match.end() :]
    words = remainder.split(b"#", 1)[0].split()
    if not 1 <= len(words) <= 2:
        return None
    numbers = [number_of(word) for word in words]
    if None in numbers:
        return None
    value, time = numbers[0], numbers[1] if len(numbers) > 1 else None
    assert value is not None
    return ExpositionLine(series, value, time)
