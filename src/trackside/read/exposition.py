"""The grammar of Prometheus' text exposition and of OpenMetrics: one series, one line, one time between scrapes.

What differs between the two formats matters to nobody here: OpenMetrics' times are seconds, its exemplars follow a
``#``, its last line is ``# EOF``.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache

from trackside.logs.stamp import posix

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


# -- times that stand between scrapes

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_EPOCH = re.compile(r"[#\s=*-]*(\d{10}(?:\.\d{1,9})?|\d{13})[\s=*-]*")
_ISO = re.compile(
    r"(?<!\d)(20\d\d)-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z\b|[+-]\d\d:?\d\d(?!\d))?"
)
_DATE = re.compile(
    r"\b(?:[A-Z][a-z]{2},? )(?:([A-Z][a-z]{2}) {1,2}(\d{1,2})|(\d{1,2}) ([A-Z][a-z]{2})(?: (20\d\d))?),? "
    r"(\d\d):(\d\d):(\d\d)(?: ([AP]M))?(?: ([A-Z]{1,5}|[+-]\d{2,4}))?(?: (20\d\d))?"
)
"""As ``date`` and HTTP write it: Fri Nov 21 14:05:09 UTC 2025; Fri 21 Nov 2025 02:05:09 PM UTC."""
_LONGEST_STAMP = 200


def stamp(text: str) -> float | None:
    """The time that a comment or a bare line between two scrapes holds, as POSIX seconds; None without one.

    Read are seconds or milliseconds since 1970 standing alone, ISO 8601, and what ``date`` and ``curl -i`` print. A
    time without a zone, or with the letters of any, is taken for UTC.
    """
    if len(text) > _LONGEST_STAMP or "{" in text:
        return None
    if found := _EPOCH.fullmatch(text):
        number = float(found[1])
        return number / 1000 if number > 1e11 else number
    if found := _ISO.search(text):
        year, month, day, hour, minute, second, fraction, zone = found.groups()
        return posix(int(year), int(month), int(day), int(hour), int(minute), int(second), fraction, zone)
    found = _DATE.search(text)
    if found is None or not (year := found[5] or found[11]):
        return None
    name, day = found[1] or found[4], found[2] or found[3]
    month = _MONTHS.index(name.lower()) + 1 if name.lower() in _MONTHS else 0
    hour = int(found[6]) % 12 + 12 * (found[9] == "PM") if found[9] else int(found[6])
    zone = found[10] if found[10] and found[10][0] in "+-" and len(found[10]) == 5 else None
    return posix(int(year), month, int(day), hour, int(found[7]), int(found[8]), None, zone)


def shown(seconds: float) -> str:
    """A time for a note."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
