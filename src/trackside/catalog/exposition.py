"""The grammar of Prometheus' text exposition and of OpenMetrics: one series, one line.

What differs between the two formats matters to nobody here: OpenMetrics' times are seconds, its exemplars follow a
``#``, its last line is ``# EOF``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# No group is possessive: until Python 3.11.4 such a group could refuse what it should match (cpython gh-106052).
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
_LABEL_SETS = 1 << 14
"""Sets of labels that are remembered: all metrics of a GPU have the same."""
HELP = (b"HE", b"TY", b"UN", b"EO")
"""How a comment goes on after ``# `` where it is HELP, TYPE, UNIT or EOF."""


@dataclass(frozen=True, slots=True)
class Line:
    """One measurement: its series as it stands there, its value, its time as written."""

    series: bytes
    value: float
    time: float | None


def series_of(text: str) -> tuple[str, dict[str, str]] | None:
    """Name and labels of ``name{label="value", ...}``, maybe as ``__name__``; None for other text."""
    before, brace, inside = text.strip().partition("{")
    before = before.rstrip()
    if (before and not _ONLY_NAME.fullmatch(before)) or (brace and not inside.endswith("}")):
        return None
    found = _labels_of(inside[:-1])
    if found is None:
        return None
    quoted, labels = found[0], dict(found[1])
    if before and quoted is not None:
        return None
    name = before or quoted or labels.pop("__name__", None)
    return None if name is None else (name, labels)


@lru_cache(maxsize=_LABEL_SETS)
def _labels_of(inside: str) -> tuple[str | None, tuple[tuple[str, str], ...]] | None:
    """The quoted name among labels, and the labels; None for what is neither."""
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
    """A name, or a quoted text without its quotes and escapes; an escape of anything else stands for itself."""
    if not text.startswith('"'):
        return text
    if "\\" not in text:
        return text[1:-1]
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), text[1:-1])


def number_of(text: bytes) -> float | None:
    """A number as both formats write it: exponents, nan and inf, no hex and no underscores; None for other text."""
    return float(text) if _NUMBER.fullmatch(text) else None


def line_of(text: bytes) -> Line | None:
    """One line of measurements, however it is spaced, its exemplar left aside; None where it is none."""
    found = _SERIES.match(text)
    if found is None or (found[1] is None and found[2] is None):
        return None
    series, rest = text[: found.end()].strip(), text[found.end() :]
    words = rest.split(b"#", 1)[0].split()
    if not 1 <= len(words) <= 2:
        return None
    numbers = [number_of(word) for word in words]
    if None in numbers:
        return None
    value, time = numbers[0], numbers[1] if len(numbers) > 1 else None
    assert value is not None
    return Line(series, value, time)
