"""Slurm's host lists: ``g[2-3,07-09],login1``."""

from __future__ import annotations

import itertools
import re


def expand(text: str, most: int) -> tuple[str, ...]:
    """The names in a host list, each once, no more than ``most``; brackets may stand several times in one name."""
    names: list[str] = []
    for part in _split_outside(text):
        if part and len(names) < most:
            names += _expanded(part, most - len(names))
    return tuple(dict.fromkeys(names))


def _split_outside(text: str) -> list[str]:
    """Split at the commas that are not in brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


def _expanded(name: str, room: int) -> list[str]:
    """One host expression, from its first bracket outwards; no more than ``room`` names."""
    found = [""]
    for fixed, inside in re.findall(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", name):
        if not fixed and not inside:
            continue
        numbers = _numbers(inside, room) if inside else [""]
        found = list(itertools.islice((f"{prefix}{fixed}{number}" for prefix in found for number in numbers), room))
    return found


def _numbers(inside: str, room: int) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.strip().partition("-")
        if not dash or not first.isdecimal() or not last.isdecimal() or len(last) > 9:
            numbers.append(part.strip())
            continue
        stop = min(int(last), int(first) + room)
        numbers += [str(value).zfill(len(first)) for value in range(int(first), stop + 1)]
    return numbers[:room]
