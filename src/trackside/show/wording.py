"""From a claim's template and cited values to a sentence. Figures are worded here, never in a family."""

from __future__ import annotations

import datetime as dt
import math
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from trackside.catalog.metrics import METRICS
from trackside.evidence import Value
from trackside.finding import Claim
from trackside.model import Scalar
from trackside.query import Query, QueryError

LONGEST = 160
"""Characters of a text value inside a sentence; the citation holds all of it."""

SCALED = frozenset({"bytes", "s", "time", "share", "ratio", "B/s", "bytes/s", "Hz", "J", "bool"})
"""Units that a figure is not simply followed by."""


def sentence(template: str, values: Mapping[str, Value]) -> str:
    """Fill a template: ``{name}`` is a value with its unit, ``{name:plain}`` without it; ``{name:training points}`` so
    many of these, and one training point.

    A value named ``ranks`` brings its noun along: rank 3, ranks 0-3.
    """
    return _Wording().vformat(template, (), values)


def clause(claim: Claim, running: bool = False) -> str:
    """What a claim says, of a run that goes on or has ended, as part of a longer sentence."""
    return sentence(claim.sentence.template(running), claim.values)


def worded(claim: Claim, running: bool = False) -> str:
    """The sentence of a claim, of a run that goes on or has ended: with a capital if it begins with a word."""
    template, text = claim.sentence.template(running), clause(claim, running)
    own_word = not template.startswith("{") or template.startswith("{ranks}")  # a value may be a file's name
    return text[:1].upper() + text[1:] if own_word and text[:1].islower() else text


def with_stop(text: str) -> str:
    """A sentence with its full stop; a line that was cut short ends as it is."""
    return text if text.endswith((".", "!", "?", ":", "\N{HORIZONTAL ELLIPSIS}")) else text + "."


class _Wording(string.Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = super().get_value(key, args, kwargs)
        if key == "ranks" and isinstance(value, Value):
            told = word(value.value)
            return Value(f"rank{'s' if re.search('[-,]', told) else ''} {told}", value.cites)
        return value

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Value):
            return word(value.value, "" if format_spec == "plain" else format_spec or value.unit)
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
        case "ratio":
            return ratio(number)
        case "B/s" | "bytes/s":
            return f"{size(number)}/s"
        case "Hz":
            return scaled(number, "Hz")
        case "J":
            return scaled(number, "J")
        case "W":
            return f"{number:,.0f} W" if abs(number) >= 10 else f"{number:.2g} W"
        case "C":
            return f"{number:.0f} \N{DEGREE SIGN}C"
        case "bool":
            return "yes" if number else "no"
        case "code" | "state" | "flags":
            return f"{number:.0f}"
        case "step" | "epoch" | "line":  # where, not how many
            return f"{unit} {_number(number, '')}"
    if number == int(number) and abs(number) < 1e15:
        plain = f"{int(number):,}"
    else:
        plain = f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.4g}"
    return f"{plain} {_one(unit) if plain == '1' else unit}" if unit else plain


def _one(unit: str) -> str:
    """A unit that counts things, of a single one: error, GPU, launch, training point."""
    if not unit[:-1].replace(" ", "").replace("-", "").isalpha() or not unit.endswith("s") or len(unit) < 4:
        return unit
    return unit[:-2] if unit.endswith("ches") else unit[:-1]


def _several(values: tuple[Scalar, ...], unit: str) -> str:
    if values and all(isinstance(v, int) for v in values):
        return ranges([int(v) for v in values if isinstance(v, int)])
    words = [word(v, unit) for v in values]
    if len(words) > 2 and all(_GPU.fullmatch(each) for each in words):
        words = grouped(words)
    if len(words) > 8:
        words = [*words[:7], f"{len(words) - 7} more"]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1] if words else "none"


_GPU = re.compile(r"[^\s:]*:\d{1,5}")
"""A GPU as ``node:index``."""


def grouped(names: Sequence[str]) -> list[str]:
    """GPUs node by node: gpu001:0-3, gpu002:5."""
    nodes: dict[str, list[int]] = {}
    for name in names:
        node, _, index = name.rpartition(":")
        nodes.setdefault(node, []).append(int(index))
    return [f"{node}:{ranges(told).replace(', ', ',')}".removeprefix(":") for node, told in nodes.items()]


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


def ratio(number: float) -> str:
    """A share of one as it is said of GPUs: 0.98, 0.1, 0.004."""
    return f"{number:.2f}" if abs(number) >= 0.095 or number == 0 else f"{number:.2g}"


def scaled(number: float, unit: str) -> str:
    """In thousands, millions or more of a unit: 1,980 MHz, 1.2 GJ. Clocks are said in MHz up to 10 GHz."""
    for prefix, power in (("G", 9), ("M", 6), ("k", 3)):
        if abs(number) >= 10**power * (10 if (prefix, unit) == ("G", "Hz") else 1):
            told = number / 10**power
            return f"{told:,.0f} {prefix}{unit}" if abs(told) >= 100 else f"{told:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3 h 20 min, -7 h."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if 0 < seconds < 1:
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


def span(window: Sequence[float]) -> str:
    """Two moments, the date once where they share it: 2026-03-02 08:00:00 to 08:30:00 UTC."""
    start, end = moment(window[0]), moment(window[1])
    return f"{start.removesuffix(' UTC')} to {end[11:] if start[:10] == end[:10] else end}"


def parsed(query: str) -> Query | None:
    """The query of a published citation; None where it isn't one."""
    try:
        return Query.parse(query)
    except QueryError:
        return None


def measured(query: str) -> tuple[str, str]:
    """What a metric query asks, in words, and the unit of its answer: median of gpu_sm_active_ratio of gpu001:3."""
    asked = parsed(query)
    if asked is None:
        return query, ""
    unit = "" if asked.reducer == "count" or asked.rollup_how == "count" else METRICS[asked.kind].unit
    return f"{asked.reducer or ''} of {asked.kind}".removeprefix(" of ") + of_whom(dict(asked.filters)), unit


def of_whom(labels: Mapping[str, Scalar]) -> str:
    """The owner of a curve by its labels, with its preposition: of gpu001:3, kind replay."""
    rest = {name: str(value) for name, value in labels.items()}
    words = [":".join(part for part in (rest.pop("node", ""), rest.pop("gpu", "")) if part)]
    words += [f"{name} {value}" for name, value in rest.items()]
    return " of " + ", ".join(filter(None, words)) if any(words) else ""
