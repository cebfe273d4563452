"""Records of jobs of batch systems other than Slurm, and the dates that these print without a year."""

from __future__ import annotations

import datetime as dt
import re

from trackside.catalog.slurm.fields import SlurmValue, without_forecasts
from trackside.model import Position, Record

_STAMP = re.compile(
    r"(?P<weekday>[A-Z][a-z]{2}) (?P<month>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) "
    r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?: (?P<year>20\d\d))?"
)
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MAX_YEARS_BACK = 11
"""A date falls on the same weekday again after at most this many years."""


def job_record(position: Position, text: str, source: str, id_: str, **fields: SlurmValue | None) -> Record:
    """The record of a job; unknown fields are left out."""
    nodes = fields.get("nodes")
    if isinstance(nodes, tuple) and nodes:
        fields["n_nodes"] = len(nodes)
    ids: dict[str, SlurmValue | None] = {"id": id_, "raw_id": id_ if id_.isdecimal() else None, "source": source}
    if match := re.fullmatch(r"(\d+)_\d+", id_):
        ids["array_id"] = match[1]
    return Record("job", position, "scheduler", without_forecasts({**fields, **ids}), text.strip()[:4096])


def time_of(text: str, latest: float | None) -> float | None:
    """``Wed Nov 29 11:02:54`` with or without a year as POSIX seconds.

    Without a year it is the last such weekday up to ``latest``, when the file was written; None without that.
    """
    match = _STAMP.match(text)
    if match is None or match["month"] not in _MONTHS or match["weekday"] not in _WEEKDAYS:
        return None
    rest = (
        _MONTHS.index(match["month"]) + 1,
        *(int(match[name] or 0) for name in ("day", "hour", "minute", "second")),
    )
    if match["year"]:
        return _posix(int(match["year"]), *rest)
    if latest is None:
        return None
    last_year = dt.datetime.fromtimestamp(min(max(latest, 0.0), 4e9), dt.UTC).year
    for year in range(last_year, last_year - MAX_YEARS_BACK - 1, -1):
        time = _posix(year, *rest)
        if time is not None and time <= latest + 86_400:
            weekday = dt.datetime.fromtimestamp(time, dt.UTC).weekday()
            if weekday == _WEEKDAYS.index(match["weekday"]):
                return time
    return None


def _posix(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    try:
        return dt.datetime(year, month, day, hour, minute, min(second, 59), tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None
