"""Parses times between two scrapes in one file: comments, and the output of ``date`` or ``curl -i``."""

from __future__ import annotations

import datetime as dt
import re

from trackside.logs.stamp import posix

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_EPOCH = re.compile(r"[#\s=*-]*(\d{10}(?:\.\d{1,9})?|\d{13})[\s=*-]*")
_ISO = re.compile(
    r"(?<!\d)(20\d\d)-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z\b|[+-]\d\d:?\d\d(?!\d))?"
)
_DATE = re.compile(
    r"\b(?:[A-Z][a-z]{2},? )(?:([A-Z][a-z]{2}) {1,2}(\d{1,2})|(\d{1,2}) ([A-Z][a-z]{2})(?: (20\d\d))?),? "
    r"(\d\d):(\d\d):(\d\d)(?: ([AP]M))?(?: ([A-Z]{1,5}|[+-]\d{2,4}))?(?: (20\d\d))?"
)
"""Dates as printed by ``date`` and HTTP: Fri Nov 21 14:05:09 UTC 2025; Fri 21 Nov 2025 02:05:09 PM UTC."""
_MAX_STAMP_CHARS = 200


def stamp(text: str) -> float | None:
    """The time in a comment or a bare line between two scrapes, POSIX seconds; None without one.

    Supported: a number of seconds or milliseconds since 1970 alone on the line, ISO 8601, and the output of ``date``
    and ``curl -i``. A time without a zone, or with a zone in letters, is read as UTC.
    """
    if len(text) > _MAX_STAMP_CHARS or "{" in text:
        return None
    if match := _EPOCH.fullmatch(text):
        number = float(match[1])
        return number / 1000 if number > 1e11 else number
    if match := _ISO.search(text):
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        return posix(int(year), int(month), int(day), int(hour), int(minute), int(second), fraction, zone)
    match = _DATE.search(text)
    if match is None or not (year := match[5] or match[11]):
        return None
    name, day = match[1] or match[4], match[2] or match[3]
    month = _MONTHS.index(name.lower()) + 1 if name.lower() in _MONTHS else 0
    hour = int(match[6]) % 12 + 12 * (match[9] == "PM") if match[9] else int(match[6])
    zone = match[10] if match[10] and match[10][0] in "+-" and len(match[10]) == 5 else None
    return posix(int(year), month, int(day), hour, int(match[7]), int(match[8]), None, zone)


def iso_time(seconds: float) -> str:
    """A POSIX time in ISO 8601, for a note."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
