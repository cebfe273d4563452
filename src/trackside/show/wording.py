"""From a claim's template and cited values to a sentence. Figures are worded here, never in a family."""

from __future__ import annotations

import datetime as dt
import math
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from trackside.model import Claim, Scalar, Value

LONGEST = 160
"""Characters of a text value inside a sentence; the citation holds all of it."""


def sentence(template: str, values: Mapping[str, Value]) -> str:
    """Fill a template: ``{name}`` is a value with its unit, ``{name:plain}`` without it.

    A value named ``ranks`` brings its noun along: rank 3, ranks 0-3.
    """
    return _Wording().vformat(template, (), values)


def said(claim: Claim, says: Mapping[str, str]) -> str:
    """The sentence of a claim, by its family's templates; begins with a capital where it begins with a word."""
    text = sentence(says[claim.key], claim.values)
    return text[:1].upper() + text[1:] if text[:1].islower() else text


class _Wording(string.Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = super().get_value(key, args, kwargs)
        if key == "ranks" and isinstance(value, Value):
            told = word(value.value)
            return Value(f"rank{'s' if re.search('[-,]', told) else ''} {told}", value.cites)
        return value

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Value):
            return word(value.value, "" if format_spec == "plain" else value.unit)
        return str(super().format_field(value, format_spec))


def word(value: Scalar | tuple[Scalar, ...], unit: str = "") -> str:
    """One value in words: sizes in GiB, durations in min and h, times in UTC, number lists as ranges."""
    if isinstance(value, tuple):
        return _several(value, unit)
    if value is None:
        return "not recorded"
    if isinstance(value, str):
        text = " ".join(value.split())
        return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _number(float(value), unit)


def _number(number: float, unit: str) -> str:
    if not math.isfinite(number):
        return str(number)
    match unit:
        case "bytes":
            return size(number)
        case "s":
            return duration(number)
        case "time":
            return moment(number)
        case "share":
            return f"{number:.0%}"
        case "step" | "epoch" | "line":  # where, not how many
            return f"{unit} {_number(number, '')}"
    plain = f"{int(number):,}" if number == int(number) and abs(number) < 1e15 else f"{number:.4g}"
    return f"{plain} {unit}" if unit else plain


def _several(values: tuple[Scalar, ...], unit: str) -> str:
    if values and all(isinstance(v, int) for v in values):
        return ranges([int(v) for v in values if isinstance(v, int)])
    words = [word(v, unit) for v in values]
    if len(words) > 8:
        words = [*words[:7], f"{len(words) - 7} more"]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1] if words else "none"


def ranges(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2, 5``."""
    parts: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1] = parts[-1][0], number
        else:
            parts.append((number, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"


def size(number: float) -> str:
    """Bytes as people say them: 91.6 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.4g} {unit}" if unit != "bytes" else f"{int(number)} bytes"
        number /= 1024
    return f"{number:.4g} TiB"


def duration(seconds: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3 h 20 min."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def moment(time: float) -> str:
    """A POSIX time in UTC."""
    try:
        return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"{time:.0f}"
