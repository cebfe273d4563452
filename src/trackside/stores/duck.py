"""Curves in a store's segments: DuckDB finds and reads the samples, the arithmetic is that of the curves in memory.

The engine is asked for the samples of some series in a window, not for sums: its threads would add them up in another
order each time, and a verdict must not differ in its last digits from one run, or one store, to the next.

Where samples are so old that only their minutes are left, ``avg``, ``sum``, ``count``, ``min``, ``max`` and ``last``
are exact for windows of whole minutes; ``stddev`` and the quantiles are those of the minutes' averages; and in windows
shorter than a minute a minute stands at its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.model import Position, Series
from trackside.stores.curves import Engine, Held, Wanted
from trackside.stores.fields import labels_of
from trackside.stores.memory_curves import reduced
from trackside.stores.order import Arranged, arranged
from trackside.stores.snapshot import Snapshot
from trackside.stores.tables import quoted

CHUNK = 4_000_000
"""Samples taken at once; each takes some 60 bytes until it is reduced."""
RECENT_BYTES = 256 << 20
"""Samples kept in case another rollup of the same series is asked next."""
RANGES = 16
"""Stretches of series' numbers that are asked for apart, so that what lies between them is not read."""
Ids = NDArray[np.int32]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which series are looked at: SQL over the columns of ``series`` (s) and ``spans`` (p), and its parameters."""

    where: str = "true"
    parameters: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Series to be read in one go: ``rows`` are theirs of the answers at ``places``, counted from ``begin``."""

    places: Sequence[int]
    begin: int
    stop: int
    ids: Ids
    rows: Ids
    start_ms: int
    end_ms: int


@dataclass(slots=True, eq=False)
class _Read:
    """The samples of a part in ``(start, end]``, in order, and what minutes are left of older ones."""

    start_ms: int
    end_ms: int
    samples: Arranged
    minutes: dict[str, NDArray[Any]] | None

    @property
    def bytes(self) -> int:
        """What it takes."""
        minutes = 0 if self.minutes is None else sum(column.nbytes for column in self.minutes.values())
        return 20 * len(self.samples.times) + minutes


class DuckCurves:
    """The curves of a store, or those of them that a scope lets through."""

    name = "store"

    def __init__(self, snapshot: Snapshot, scope: Scope | None = None, owner: object = None) -> None:
        self._snapshot, self._scope = snapshot, scope or Scope()
        self._owner = owner  # a store that goes with it
        self._held: list[Held] | None = None
        self._counts: dict[int, int] = {}
        self._metrics: dict[int, str] = {}
        self._recent: OrderedDict[bytes, _Read] = OrderedDict()

    def held(self) -> Sequence[Held]:
        """See :class:`trackside.stores.curves.Curves`."""
        if self._held is None:
            spans, series = self._snapshot.table("spans"), self._snapshot.table("series")
            rows = self._snapshot.rows(
                f"""
                SELECT s.series, s.metric, s.labels, f.path, f.line, f."offset", f.length, first_ms, last_ms, n
                FROM (SELECT p.series, min(p.first_ms) AS first_ms, max(p.last_ms) AS last_ms,
                             sum(p.count)::BIGINT AS n,
                             arg_min({{path: p.path, line: p.line, "offset": p."offset", length: p.length,
                                      input: p.input}}, p.input) AS f
                      FROM {spans} p JOIN {series} s USING (series) WHERE {self._scope.where} GROUP BY p.series
                      HAVING sum(p.count) > 0)
                JOIN {series} s USING (series) ORDER BY f.input, f.line, f."offset", s.series
                """,
                self._scope.parameters,
            )
            self._held = [
                Held(id_, Series(metric, labels_of(labels), Position(*at)), first, last, count)
                for id_, metric, labels, *at, first, last, count in rows
            ]
            self._counts = {each.id: each.count for each in self._held}
            self._metrics = {each.id: each.series.metric for each in self._held}
        return self._held

    def rollup(
        self, groups: Sequence[Sequence[int]], start_ms: int, end_ms: int, step_ms: int, how: Engine
    ) -> tuple[Values, int]:
        """See :class:`trackside.stores.curves.Curves`."""
        return self.rollups([Wanted(groups, start_ms, end_ms, step_ms, how)])[0]

    def rollups(self, wanted: Sequence[Wanted]) -> list[tuple[Values, int]]:
        """See :class:`trackside.stores.curves.Batching`: what several need is read once, and while one is reduced the
        next is read."""
        self.held()
        tables = [np.full((len(each.groups), (each.end_ms - each.start_ms) // each.step_ms), np.nan) for each in wanted]
        used = [0] * len(wanted)
        parts = list(self._parts(wanted))
        with ThreadPoolExecutor(1) as reader:
            coming = [reader.submit(self._read_part, part) for part in parts[:1]]
            for following, part in zip_longest(parts[1:], parts):
                now = coming.pop().result()
                if following is not None:
                    coming.append(reader.submit(self._read_part, following))
                for place in part.places:
                    used[place] += _reduce(now, wanted[place], tables[place][part.begin : part.stop])
        return list(zip(tables, used, strict=True))

    def _parts(self, wanted: Sequence[Wanted]) -> Iterator[_Part]:
        """What is to be read: the same series together, not too many at once."""
        alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, each in enumerate(wanted):
            alike.setdefault(tuple(map(tuple, each.groups)), []).append(place)
        for groups, places in alike.items():
            start_ms = min(wanted[place].start_ms for place in places)
            end_ms = max(wanted[place].end_ms for place in places)
            for begin, stop in self._chunks(groups):
                ids = np.array([id_ for group in groups[begin:stop] for id_ in group], dtype=np.int32)
                rows = np.repeat(np.arange(stop - begin, dtype=np.int32), [len(each) for each in groups[begin:stop]])
                if len(ids):
                    yield _Part(places, begin, stop, ids, rows, start_ms, end_ms)

    def _chunks(self, groups: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """(first, one past the last) of the groups that are taken together."""
        begin = size = 0
        for place, group in enumerate(groups):
            count = sum(self._counts.get(id_, 0) for id_ in group)
            if size and size + count > CHUNK:
                yield begin, place
                begin, size = place, 0
            size += count
        if begin < len(groups):
            yield begin, len(groups)

    def _read_part(self, part: _Part) -> _Read:
        key = part.ids.tobytes() + part.rows.tobytes()
        if key in self._recent:
            self._recent.move_to_end(key)
            known = self._recent[key]
            if known.start_ms <= part.start_ms and part.end_ms <= known.end_ms:
                return known
        found = self._read("samples", part, "value")
        whole = arranged(found["row"], found["time_ms"], found["value"])
        read = _Read(part.start_ms, part.end_ms, Arranged(whole.groups, whole.times, whole.values), None)
        if self._snapshot.segments("minutes", times_ms=(part.start_ms, part.end_ms)):
            columns = ", ".join(f'"{name}"' for name in ("min", "max", "sum", "count", "last", "last_ms"))
            minutes = self._read("minutes", part, columns)
            read.minutes = minutes if len(minutes["row"]) else None
        self._recent[key] = read
        while sum(each.bytes for each in self._recent.values()) > RECENT_BYTES:
            self._recent.popitem(last=False)
        return read

    def _read(self, table: str, part: _Part, columns: str) -> dict[str, NDArray[Any]]:
        """Columns of a part's rows, ``time_ms``, and which ``row`` of the answer each belongs to."""
        order = np.argsort(part.ids)
        ids, rows = part.ids[order], part.rows[order]
        metrics = ", ".join(quoted(name) for name in sorted({self._metrics[int(id_)] for id_ in ids}))
        source = self._snapshot.table(table, times_ms=(part.start_ms, part.end_ms))
        found = self._snapshot.arrays(
            " UNION ALL ".join(
                f"SELECT series, time_ms, {columns} FROM {source} WHERE metric IN ({metrics})"
                f" AND series BETWEEN {low} AND {high} AND time_ms > {part.start_ms} AND time_ms <= {part.end_ms}"
                for low, high in _ranges(ids)
            )
        )
        series = found.pop("series")
        lookup = np.full(int(ids[-1]) - int(ids[0]) + 1, -1, dtype=np.int32)
        lookup[ids - ids[0]] = rows
        row = lookup[series - ids[0]]
        asked = row >= 0
        if not asked.all():
            found, row = {name: column[asked] for name, column in found.items()}, row[asked]
        return {"row": row, **found}


def _ranges(ids: Ids) -> list[tuple[int, int]]:
    """Stretches that hold all of the sorted numbers and leave out the widest gaps between them."""
    gaps = np.diff(ids)
    wide = np.flatnonzero(gaps > 4096)
    if len(wide) >= RANGES:
        wide = np.sort(wide[np.argsort(gaps[wide])[-(RANGES - 1) :]])
    lows = np.concatenate([ids[:1], ids[wide + 1]])
    highs = np.concatenate([ids[wide], ids[-1:]])
    return [(int(low), int(high)) for low, high in zip(lows, highs, strict=True)]


def _reduce(read: _Read, wanted: Wanted, table: Values) -> int:
    """Fill the rows of an answer that a part is for; gives how many samples were used."""
    samples, weights = read.samples, None
    if read.minutes is not None:
        samples, weights = _with_minutes(samples, read.minutes, wanted.how)
    if (read.start_ms, read.end_ms) != (wanted.start_ms, wanted.end_ms):
        kept = (samples.times > wanted.start_ms) & (samples.times <= wanted.end_ms)
        samples = Arranged(samples.groups[kept], samples.times[kept], samples.values[kept])
        weights = None if weights is None else weights[kept]
    if not len(samples.times):
        return 0
    windows = (samples.times - (wanted.start_ms + 1)) // wanted.step_ms
    change = (samples.groups[1:] != samples.groups[:-1]) | (windows[1:] != windows[:-1])
    starts = np.concatenate([np.zeros(1, dtype=np.intp), np.flatnonzero(change) + 1])
    if weights is None:
        table[samples.groups[starts], windows[starts]] = reduced(samples.values, starts, wanted.how)
        return len(samples.times)
    table[samples.groups[starts], windows[starts]] = _weighted(samples.values, weights, starts, wanted.how)
    return int(weights.sum())


def _with_minutes(samples: Arranged, minutes: dict[str, NDArray[Any]], how: Engine) -> tuple[Arranged, Values]:
    """Samples and minutes together in order, and how many samples each row stands for."""
    match how:
        case "min" | "max" | "last" | "sum":
            value = minutes[how]
        case "avg" | "count":
            value = minutes["sum"]
        case _:
            value = minutes["sum"] / minutes["count"]
    times = minutes["last_ms"] if how == "last" else minutes["time_ms"]
    whole = arranged(
        np.concatenate([samples.groups, minutes["row"]]),
        np.concatenate([samples.times, times]),
        np.concatenate([samples.values, value]),
    )
    weights = np.concatenate([np.ones(len(samples.times)), minutes["count"].astype(np.float64)])
    return whole, weights if whole.order is None else weights[whole.order]


def _weighted(values: Values, weights: Values, starts: NDArray[np.intp], how: Engine) -> Values:
    """What :func:`reduced` gives, for rows that stand for several samples."""
    if how == "count":
        return reduced(weights, starts, "sum")
    if how == "avg":
        averages: Values = reduced(values, starts, "sum") / reduced(weights, starts, "sum")
        return averages
    return reduced(values, starts, how)
