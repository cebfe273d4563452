"""Splits an iterable into batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], size_of: Callable[[T], int], max_size: int) -> Iterator[list[T]]:
    """Items in order, in batches of at most ``max_size``; an item that is larger gets a batch of its own."""
    batch: list[T] = []
    size = 0
    for item in items:
        if batch and size + size_of(item) > max_size:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += size_of(item)
    if batch:
        yield batch
