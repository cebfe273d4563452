"""Slurm's host lists: ``g[2-3,07-09],login1``."""

from __future__ import annotations

import itertools
import re


def expand(text: str, max_names: int) -> tuple[str, ...]:
    """The distinct names in a host list, at most ``max_names``. A name may contain several brackets."""
    names: list[str] = []
    for part in _split_outside(text):
        if part and len(names) < max_names:
            names += _expand(part, max_names - len(names))
    return tuple(dict.fromkeys(names))


def _split_outside(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


def _expand(name: str, max_names: int) -> list[str]:
    """Expand one host expression into at most ``max_names`` names."""
    names = [""]
    for literal_text, range_text in re.findall(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", name):
        if not literal_text and not range_text:
            continue
        numbers = _numbers(range_text, max_names) if range_text else [""]
        names = list(
            itertools.islice((f"{prefix}{literal_text}{number}" for prefix in names for number in numbers), max_names)
        )
    return names


def _numbers(range_text: str, max_names: int) -> list[str]:
    numbers: list[str] = []
    for part in range_text.split(","):
        first, dash, last = part.strip().partition("-")
        if not dash or not first.isdecimal() or not last.isdecimal() or len(last) > 9:
            numbers.append(part.strip())
            continue
        stop = min(int(last), int(first) + max_names)
        numbers += [str(value).zfill(len(first)) for value in range(int(first), stop + 1)]
    return numbers[:max_names]
