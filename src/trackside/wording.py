"""Fills the template of a sentence with cited values. All formatting of figures is here, none in families."""

from __future__ import annotations

import datetime as dt
import math
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from trackside.catalog.excerpt import ELLIPSIS, excerpt
from trackside.catalog.metrics import METRICS
from trackside.evidence import Value
from trackside.model import Scalar
from trackside.query import Query, QueryError

MAX_VALUE_CHARS = 160
"""Maximum characters of a text value inside a sentence; the citation holds the full text."""
MAX_END_CHARS = 60
"""Characters that are added from the end of one long line: its reason often stands there."""
CUT_TOLERANCE = 24
"""A text that is longer by no more than this is shown whole: what is cut may be what the reader needs."""

MIN_QUOTE_CHARS = 40
"""Characters of a log line that make a value a quote rather than a name found in it."""
_PROGRESS_BAR = re.compile(
    r"^(?:(?:[^\r\n]{0,200}\d/\d{1,12}|\d{1,12}it) \[[^\]\r\n]{1,200}\] *"
    r"|[^|\r\n]{0,100}\d{1,3}%\|[\u2588-\u258f\ufffd# ]{0,200})(?=[A-Za-z\[*]|\d{4}-\d\d-\d\d[ T])"
)
"""A progress bar that another program's line was printed behind: the line is what matters."""
_COLOR = re.compile(r"\x1b?\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""A terminal's color codes; some loggers lose the escape character."""
_UNQUOTED_FIELD = re.compile(r"(?<![\"'`{])\{(\w+)\}")
"""A field of a template without quotation marks around it."""
SCALED = frozenset({"bytes", "s", "time", "share", "ratio", "B/s", "bytes/s", "Hz", "J", "bool"})
"""Units that change how the figure itself is formatted; any other unit just follows the figure."""


def fill_template(template: str, values: Mapping[str, Value], zoned: bool = True) -> str:
    """Fill a template. ``{name}`` is a value with its unit, ``{name:plain}`` without; ``{name:logged steps}`` is a
    count of that noun, with its singular for 1. ``zoned``: see :func:`moment`.

    A value named ``ranks`` includes its noun: rank 3, ranks 0-3. A line of a log stands in quotation marks.
    """
    if "message" in values and not values["message"].value:  # as of an assertion without a text
        template = template.replace(": {message}", "")
    return _Wording(zoned).vformat(_UNQUOTED_FIELD.sub(r"{\1!q}", template), (), values)


def capitalize(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def with_stop(text: str) -> str:
    """The text with a final full stop, unless it ends in other punctuation or was cut short. A colon announces what is
    not quoted: an ellipsis takes its place, so that it does not announce the next sentence."""
    if text.endswith(":"):
        return text.rstrip(" :") + "\N{HORIZONTAL ELLIPSIS}"
    ends = (".", "!", "?", "\N{HORIZONTAL ELLIPSIS}")
    return text if text.removesuffix('"').endswith(ends) else text + "."


class _Wording(string.Formatter):
    def __init__(self, zoned: bool) -> None:
        self._zoned = zoned

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = super().get_value(key, args, kwargs)
        if key == "ranks" and isinstance(value, Value):
            numbers = word(value.value)
            return Value(f"rank{'s' if re.search('[-,]| and ', numbers) else ''} {numbers}", value.cites)
        return value

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion != "q":
            return super().convert_field(value, conversion)
        return f'"{word(value.value)}"' if isinstance(value, Value) and _is_log_line(value) else value

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Value):
            if format_spec == "whole":
                return str(value.value)
            unit = "" if format_spec == "plain" else format_spec or value.unit
            if unit == "time" and not self._zoned and isinstance(value.value, (int, float)):
                return moment(value.value, zoned=False)
            return word(value.value, unit)
        return str(super().format_field(value, format_spec))


def _is_log_line(value: Value) -> bool:
    """Whether a value is a line of a log as it was printed, or a long part of one."""
    if not isinstance(value.value, str) or not value.cites or value.cites[0].plane == "scheduler":
        return False
    query, line = value.cites[0].query, str(value.cites[0].value)
    begins = value.value[:MIN_QUOTE_CHARS]
    is_quote = value.value == line or (len(begins) == MIN_QUOTE_CHARS and begins in line)
    return is_quote and query is not None and query.reduced == "text"


def word(value: Scalar | tuple[Scalar, ...], unit: str = "") -> str:
    """One value as text: sizes in GiB, durations in min and h, times in UTC, lists of numbers as ranges."""
    if isinstance(value, tuple):
        return _list(value, unit)
    if value is None:
        return "not recorded"
    if isinstance(value, str):
        lines = _PROGRESS_BAR.sub("", _COLOR.sub("", value)).strip()
        text = " ".join(lines.split())
        if "\n" not in lines:
            return excerpt(text, MAX_VALUE_CHARS, MAX_END_CHARS)
        if len(text) <= MAX_VALUE_CHARS + CUT_TOLERANCE:
            return text
        first = " ".join(lines.partition("\n")[0].split())  # below it, a message lists details or gives advice
        if len(first) > MAX_VALUE_CHARS:
            return excerpt(first, MAX_VALUE_CHARS, MAX_END_CHARS)
        return text[: MAX_VALUE_CHARS - 1] + ELLIPSIS
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
        case "share" | "ratio":
            return percent(number)
        case "B/s" | "bytes/s":
            return f"{size(number)}/s"
        case "Hz":
            return with_si_prefix(number, "Hz")
        case "J":
            return with_si_prefix(number, "J")
        case "W":
            return f"{number:,.0f} W" if abs(number) >= 10 else f"{number:.2g} W"
        case "C":
            return f"{number:.0f} \N{DEGREE SIGN}C"
        case "bool":
            return "yes" if number else "no"
        case "code" | "state" | "flags":
            return f"{number:.0f}"
        case "step" | "epoch" | "line":  # a position, not a count
            return f"{unit} {_number(number, '')}"
    if number == int(number) and abs(number) < 1e15:
        plain = f"{int(number):,}"
    else:
        plain = f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.4g}"
    return f"{plain} {_singular(unit) if plain == '1' else unit}" if unit else plain


def _singular(unit: str) -> str:
    """The singular of a unit that is a plural noun: errors, GPUs, launches, logged steps. Other units unchanged."""
    if not unit[:-1].replace(" ", "").replace("-", "").isalnum() or not unit.endswith("s") or len(unit) < 4:
        return unit
    if unit.endswith("ies"):
        return unit if unit.endswith("series") else unit[:-3] + "y"
    return unit[:-2] if unit.endswith(("ches", "sses")) else unit[:-1]


def _list(values: tuple[Scalar, ...], unit: str) -> str:
    if values and all(isinstance(v, int) for v in values):
        head, comma, last = ranges([int(v) for v in values if isinstance(v, int)]).rpartition(", ")
        return f"{head} and {last}" if comma else last
    words = [word(v, unit) for v in values]
    if len(words) > 2 and all(map(_GPU.fullmatch, words)):
        words = group_gpus(words)
    if len(words) > 8:
        words = [*words[:7], f"{len(words) - 7} more"]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1] if words else "none"


_GPU = re.compile(r"[^\s:]*:\d{1,5}")
"""A GPU as ``node:index``."""


def group_gpus(names: Sequence[str]) -> list[str]:
    """GPU names grouped by node: gpu001:0-3, gpu002:5."""
    nodes: dict[str, list[int]] = {}
    for name in names:
        node, _, index = name.rpartition(":")
        nodes.setdefault(node, []).append(int(index))
    return [f"{node}:{ranges(indices).replace(', ', ',')}".removeprefix(":") for node, indices in nodes.items()]


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
    """Bytes in binary units: 91.6 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:,.4g} {unit}" if unit != "bytes" else f"{int(number)} bytes"
        number /= 1024
    return f"{number:.4g} TiB"


def percent(ratio: float) -> str:
    """A ratio in percent, two digits: 98%, 10%, 0.4%."""
    return f"{ratio:.0%}" if abs(ratio) >= 0.095 else f"{100 * ratio:.2g}%"


def with_si_prefix(number: float, unit: str) -> str:
    """A figure with an SI prefix: 1,980 MHz, 1.2 GJ. Clocks are in MHz up to 10 GHz."""
    for prefix, power in (("G", 9), ("M", 6), ("k", 3)):
        if abs(number) >= 10**power * (10 if (prefix, unit) == ("G", "Hz") else 1):
            mantissa = number / 10**power
            return f"{mantissa:,.0f} {prefix}{unit}" if abs(mantissa) >= 100 else f"{mantissa:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def duration(seconds: float) -> str:
    """Seconds in readable units: 45 s, 2 min 30 s, 12 min, 3 h 20 min, -7 h."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if 0 < seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if round(seconds) < 600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def moment(time: float, zoned: bool = True) -> str:
    """A POSIX time as UTC text: 2026-03-02 08:00:00 UTC. ``zoned``: whether its time zone is known; if not, the text
    does not name one."""
    try:
        text = dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{time:.0f}"
    return f"{text} UTC" if zoned else text


def span(window: Sequence[float], zoned: bool = True) -> str:
    """A time span, with the date once if both ends share it: 2026-03-02 08:00:00 to 08:30:00 UTC. ``zoned``: see
    :func:`moment`."""
    start, end = moment(window[0], zoned), moment(window[1], zoned)
    if start == end:
        return end
    return f"{start.removesuffix(' UTC')} to {end[11:] if start[:10] == end[:10] else end}"


def parse_query(query: str) -> Query | None:
    """The query of a published citation; None if the text is not a query."""
    try:
        return Query.parse(query)
    except QueryError:
        return None


def metric_phrase(query: str) -> tuple[str, str]:
    """A metric query as text, and the unit of its result: (``median of gpu_sm_active_ratio of gpu001:3``, unit)."""
    parsed_query = parse_query(query)
    if parsed_query is None:
        return query, ""
    unit = (
        "" if parsed_query.reducer == "count" or parsed_query.rollup_how == "count" else METRICS[parsed_query.kind].unit
    )
    return f"{parsed_query.reducer or ''} of {parsed_query.kind}".removeprefix(" of ") + label_phrase(
        dict(parsed_query.filters)
    ), unit


def label_phrase(labels: Mapping[str, Scalar]) -> str:
    """The labels of a series as a phrase: `` of gpu001:3, kind replay``; empty without labels."""
    remaining = {name: str(value) for name, value in labels.items()}
    parts = [":".join(part for part in (remaining.pop("node", ""), remaining.pop("gpu", "")) if part)]
    parts += [f"{name} {value}" for name, value in remaining.items()]
    return " of " + ", ".join(filter(None, parts)) if any(parts) else ""
