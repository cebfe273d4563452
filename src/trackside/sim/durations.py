"""Durations as scenarios write them: seconds, or text such as "1h30m"."""

from __future__ import annotations

import re

_LENGTH = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


def seconds(value: object) -> float | None:
    """Seconds from a number or from text such as "1h30m"; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if (
        isinstance(value, str)
        and value
        and (match := _LENGTH.fullmatch(value.replace(" ", "")))
        and any(match.groups())
    ):
        return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)
    return None
