"""Times that stand between two scrapes in one file: comments, and the output of ``date`` or ``curl -i``."""

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
