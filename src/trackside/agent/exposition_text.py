"""Prometheus' text format read: what an exporter on this node serves. Bounded, and bad lines are only counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MOST_LINES = 50_000
MOST_LINE = 8 << 10
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,200}")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]{0,200})\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|\})')
_ESCAPED = re.compile(r"\\(.)")


class Series(NamedTuple):
    """Name and labels as they stand there."""

    name: str
    labels: dict[str, str]


def series_and_values(text: str) -> Iterator[tuple[str, float]]:
    """(a series as written, its value) of each sample line; times of samples are left aside."""
    for count, line in enumerate(text.split("\n")):
        if count >= MOST_LINES:
            return
        if not line or line[0] == "#" or len(line) > MOST_LINE:
            continue
        series, rest = _cut(line)
        words = rest.split()
        if series and 1 <= len(words) <= 2:
            try:
                yield series, float(words[0])
            except ValueError:
                continue


def _cut(line: str) -> tuple[str, str]:
    brace = line.rfind("}")
    if brace >= 0:
        return line[: brace + 1], line[brace + 1 :]
    series, _, rest = line.strip().partition(" ")
    return series, rest


def parse_series(text: str) -> Series | None:
    """The name and labels of a series as written; None where it is none."""
    name = _NAME.match(text)
    if name is None:
        return None
    rest = text[name.end() :].strip()
    if not rest:
        return Series(name[0], {})
    if rest[0] != "{":
        return None
    labels: dict[str, str] = {}
    at = 1
    while rest[at:].strip() != "}":
        found = _LABEL.match(rest, at)
        if found is None:
            return None
        labels[found[1]] = _ESCAPED.sub(lambda each: "\n" if each[1] == "n" else each[1], found[2])
        at = found.end()
        if found[3] == "}":
            return Series(name[0], labels) if not rest[at:].strip() else None
    return Series(name[0], labels)
