"""Things in order, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def bunches(things: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Things in order, together no larger than ``most`` but for one that is so alone."""
    bunch: list[T] = []
    size = 0
    for each in things:
        if bunch and size + size_of(each) > most:
            yield bunch
            bunch, size = [], 0
        bunch.append(each)
        size += size_of(each)
    if bunch:
        yield bunch
