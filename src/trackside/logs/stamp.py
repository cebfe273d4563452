"""Timestamps as logs print them. A time without a zone is read as UTC; the run's clock offset is determined later, and
only a time whose zone is known is shown as UTC."""

from __future__ import annotations

import datetime as dt
import re

_ISO = re.compile(
    r"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?[ ]?(Z\b|[+-]\d\d:?\d\d(?!\d))?"
)
_GLOG = re.compile(r"(?:^|\[|\s)[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{3,9})\s")
_SYSLOG = re.compile(r"^([A-Z][a-z]{2})\s{1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?\s")
_CTIME = re.compile(r"\[?[A-Z][a-z]{2} ([A-Z][a-z]{2})\s{1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (20\d\d)")
_MLPERF = re.compile(r"\"time_ms\": ?(\d{13})\b")
_DIGITS = re.compile(r"\d\d:\d\d")
_MONTHS = {
    m: i for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}
_MAX_CHARS = 400
"""Characters at a line's beginning in which a time is looked for."""


def find_time(text: str, year: int | None = None) -> float | None:
    """The first timestamp at the beginning of a line, as POSIX seconds; None if there is none.

    ``year`` completes timestamps without one (glog, syslog); without it those are not read.
    """
    text = text[:_MAX_CHARS]
    if ":::MLL" in text and (match := _MLPERF.search(text)):
        return int(match[1]) / 1000
    if _DIGITS.search(text) is None:
        return None
    if match := _ISO.search(text):
        year_, month, day, hour, minute, second, fraction, zone = match.groups()
        return posix(int(year_), int(month), int(day), int(hour), int(minute), int(second), fraction, zone)
    if match := _CTIME.search(text):
        name, day, hour, minute, second, year_ = match.groups()
        return posix(int(year_), _MONTHS.get(name, 0), int(day), int(hour), int(minute), int(second))
    if year is None:
        return None
    if match := _GLOG.search(text):
        month, day, hour, minute, second, fraction = match.groups()
        return posix(year, int(month), int(day), int(hour), int(minute), int(second), fraction)
    if match := _SYSLOG.search(text):
        name, day, hour, minute, second, fraction = match.groups()
        return posix(year, _MONTHS.get(name, 0), int(day), int(hour), int(minute), int(second), fraction)
    return None


def has_zone(text: str) -> bool:
    """Whether the first timestamp of a line gives its time zone."""
    text = text[:_MAX_CHARS]
    if ":::MLL" in text and _MLPERF.search(text):
        return True
    match = _ISO.search(text)
    return match is not None and match[8] is not None


def find_year(text: str) -> int | None:
    """The year of the first full date in a text: completes timestamps that lack one."""
    match = _ISO.search(text) or _CTIME.search(text)
    return None if match is None else int(match[1] if match.re is _ISO else match[6])


def posix(
    year: int,
    month: int,
    day: int,
    hour: int,
    minute: int,
    second: int,
    fraction: str | None = None,
    zone: str | None = None,
) -> float | None:
    """POSIX seconds of a date; without a zone it is read as UTC. None for a date that does not exist."""
    try:
        time = dt.datetime(year, month, day, hour, minute, min(second, 59), tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None
    if fraction:
        time += float(f"0.{fraction}")
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        time -= offset if zone[0] == "+" else -offset
    return time
