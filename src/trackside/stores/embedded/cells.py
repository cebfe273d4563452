"""Rollups of some series at one step, worked out once: tables from which any of their windows can be answered.

Where samples are so old that only their minutes are left, ``avg``, ``sum``, ``count``, ``min``, ``max`` and ``last``
are exact for windows of whole minutes; in windows shorter than a minute a minute stands at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.stores.curves import Engine, Wanted
from trackside.stores.embedded.order import Arranged, Places, Stretches, Values, arranged
from trackside.stores.memory_curves import rolled_up

LITTLE = 0.75
"""Below this share of what was read, the samples of a table are cut out before they are reduced."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Samples, and what minutes are left of older ones; ``length_ms`` is how long a time they are of."""

    samples: Stretches
    minutes: dict[str, NDArray[Any]] | None
    length_ms: int

    def pieces(self) -> Iterator[Arranged]:
        """The samples in order, some groups at a time; all at once where there are minutes to go with them."""
        if self.minutes is None:
            yield from self.samples.pieces()
        else:
            nothing = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0)
            pieces = [Arranged(*nothing), *self.samples.pieces()]
            columns = ([getattr(piece, name) for piece in pieces] for name in ("groups", "times", "values"))
            yield Arranged(*map(np.concatenate, columns))


@dataclass(frozen=True, slots=True, eq=False)
class _Marked:
    """Samples, where the ones of each cell begin, and which cells those are; ``weights``: how many each stands for."""

    values: Values
    weights: Values | None
    starts: Places
    inside: NDArray[np.bool_]
    rows: Places
    windows: Places


class Cells:
    """Tables of one row a group and one column a window ``(t - step, t]`` from ``start_ms`` to ``end_ms``."""

    def __init__(self, rows: int, start_ms: int, end_ms: int, step_ms: int, hows: frozenset[Engine]) -> None:
        self.rows, self.start_ms, self.end_ms, self.step_ms, self.hows = rows, start_ms, end_ms, step_ms, hows
        self._counts = np.zeros((0, 0), dtype=np.int32)
        self._tables: dict[Engine, Values] = {}

    def made(self) -> Cells:
        """The tables, empty: until then they are but a plan."""
        self._counts = np.zeros((self.rows, self.width), dtype=np.int32)
        self._tables = {how: np.full((self.rows, self.width), np.nan) for how in sorted(self.hows - {"count"})}
        return self

    @classmethod
    def of(cls, wanted: Wanted) -> Cells:
        """Room for one answer."""
        hows = frozenset([wanted.how])
        return cls(len(wanted.groups), wanted.start_ms, wanted.end_ms, wanted.step_ms, hows)

    def widened(self, wanted: Wanted) -> Cells:
        """Room for another answer about the same groups at the same step as well."""
        start_ms, end_ms = min(self.start_ms, wanted.start_ms), max(self.end_ms, wanted.end_ms)
        return Cells(self.rows, start_ms, end_ms, self.step_ms, self.hows | {wanted.how})

    def cover(self, wanted: Wanted) -> bool:
        """Whether they can give this answer."""
        return wanted.how in self.hows and self.start_ms <= wanted.start_ms and wanted.end_ms <= self.end_ms

    @property
    def width(self) -> int:
        return (self.end_ms - self.start_ms) // self.step_ms

    @property
    def bytes(self) -> int:
        """What they take: counts are kept beside what was asked for."""
        return self.rows * self.width * (4 + 8 * len(self.hows - {"count"}))

    def answer(self, wanted: Wanted) -> tuple[Values, int]:
        """The windows that are wanted, NaN where nothing was sampled, and how many samples were used."""
        first = (wanted.start_ms - self.start_ms) // self.step_ms
        columns = slice(first, first + wanted.width)
        counts = self._counts[:, columns]
        if wanted.how == "count":
            return np.where(counts > 0, counts, np.nan), int(counts.sum())
        return self._tables[wanted.how][:, columns].copy(), int(counts.sum())

    def fill(self, read: Read, begin: int, stop: int) -> None:
        """Work out the rows from ``begin`` to ``stop``, to which the groups of the samples are counted."""
        counts = self._counts[begin:stop]
        for piece in read.pieces():
            marked = self._marked(read, piece, "count")
            counts[marked.rows, marked.windows] = _counted(marked)[marked.inside]
            for how, table in self._tables.items():
                if read.minutes is not None:
                    marked = self._marked(read, piece, how)
                table[begin:stop][marked.rows, marked.windows] = _rolled(marked, how)[marked.inside]

    def _marked(self, read: Read, samples: Arranged, how: Engine) -> _Marked:
        weights = None
        if read.minutes is not None:
            samples, weights = _with_minutes(samples, read.minutes, how)
        groups, times, values = samples.groups, samples.times, samples.values
        if self.end_ms - self.start_ms < LITTLE * read.length_ms:
            kept = (times > self.start_ms) & (times <= self.end_ms)
            groups, times, values = groups[kept], times[kept], values[kept]
            weights = None if weights is None else weights[kept]
        windows = (times - (self.start_ms + 1)) // self.step_ms
        change = (groups[1:] != groups[:-1]) | (windows[1:] != windows[:-1])
        starts = np.concatenate([np.zeros(min(1, len(times)), dtype=np.intp), np.flatnonzero(change) + 1])
        column = windows[starts]
        inside = (column >= 0) & (column < self.width)
        return _Marked(values, weights, starts, inside, groups[starts][inside].astype(np.intp), column[inside])


def _counted(marked: _Marked) -> NDArray[np.int64]:
    """How many samples each cell stands for."""
    if not len(marked.starts):
        return np.empty(0, dtype=np.int64)
    if marked.weights is None:
        return np.diff(marked.starts, append=len(marked.values))
    return np.add.reduceat(marked.weights, marked.starts).astype(np.int64)


def _rolled(marked: _Marked, how: Engine) -> Values:
    """What :func:`rolled_up` gives, also for rows that stand for several samples."""
    if not len(marked.starts):
        return np.empty(0)
    if marked.weights is None or how != "avg":
        return rolled_up(marked.values, marked.starts, how)
    averages: Values = rolled_up(marked.values, marked.starts, "sum") / rolled_up(marked.weights, marked.starts, "sum")
    return averages


def _with_minutes(samples: Arranged, minutes: dict[str, NDArray[Any]], how: Engine) -> tuple[Arranged, Values]:
    """Samples and minutes together in order, and how many samples each row stands for."""
    value = minutes["sum" if how in ("avg", "count") else how]
    times = minutes["last_ms"] if how == "last" else minutes["time_ms"]
    whole = arranged(
        np.concatenate([samples.groups, minutes["row"]]),
        np.concatenate([samples.times, times]),
        np.concatenate([samples.values, value]),
    )
    weights = np.concatenate([np.ones(len(samples.times)), minutes["count"].astype(np.float64)])
    return whole, weights if whole.order is None else weights[whole.order]
