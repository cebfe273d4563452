"""Slurm's host lists: ``g[2-3,07-09],login1``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


class TooManyNames(ValueError):
    """The host lists of one input name more hosts than its budget."""


@dataclass(slots=True)
class _Budget:
    """The names that the host lists of one input may have."""

    total: int
    used: int = 0
    shared_names: dict[str, str] = field(default_factory=dict)
    """One string for each name, however often it is named."""


_budget: ContextVar[_Budget | None] = ContextVar("hostlist_budget", default=None)


@contextmanager
def name_budget(total: int) -> Iterator[None]:
    """Within this, host lists may have ``total`` names altogether: a line of 20 characters can name thousands."""
    token = _budget.set(_Budget(total))
    try:
        yield
    finally:
        _budget.reset(token)


def expand(text: str, max_names: int) -> tuple[str, ...]:
    """The distinct names in a host list, at most ``max_names``. A name may contain several brackets. Raises
    :class:`TooManyNames` once the budget of the input is used up."""
    names: list[str] = []
    for part in _split_outside(text):
        if part and len(names) < max_names:
            names += _expand(part, max_names - len(names))
    distinct = dict.fromkeys(names)
    if (budget := _budget.get()) is None:
        return tuple(distinct)
    budget.used += len(distinct)
    if budget.used > budget.total:
        raise TooManyNames(f"its host lists name more than {budget.total:,} nodes altogether; split it")
    return tuple(budget.shared_names.setdefault(name, name) for name in distinct)


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
