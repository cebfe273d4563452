"""Curves in a store's segments: DuckDB finds and reads the samples, the arithmetic is that of the curves in memory.

The engine is asked for the samples of some series in a window, not for sums: its threads would add them up in another
order each time, and a verdict must not differ in its last digits from one run, or one store, to the next.

Reading takes most of the time. So a metric is read once for all that is known to be asked of it (``expect``), and what
was worked out is kept for when it is asked again, as long as there is room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.http.unavailable import SourceUnavailable
from trackside.model import Position, Series
from trackside.stores.bunches import bunches
from trackside.stores.curves import Groups, Held, RolledUp, Sampled, Wanted, identifying
from trackside.stores.embedded.cells import Cells, Read
from trackside.stores.embedded.fields import labels_of
from trackside.stores.embedded.order import Ids, Places, Stretches, Values
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import quoted

CHUNK = 4_000_000
"""Samples taken at once; each takes some 60 bytes until it is reduced."""
CELLS_BYTES = 384 << 20
"""Rollups kept in case they, or a part of their windows, are asked again."""
RANGES = 16
"""Stretches of series' numbers that are asked for apart, so that what lies between them is not read."""
MOST = 0.75
"""From this share on all is read and the rest left out afterwards: DuckDB's filters cost more than that."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which series are looked at: SQL over the columns of ``series`` (s) and ``spans`` (p), and its parameters."""

    where: str = "true"
    parameters: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Series to be read in one go: their ``rows`` of the tables of ``cells``, counted from ``begin``."""

    cells: Sequence[Cells]
    begin: int
    stop: int
    ids: Ids
    rows: Ids

    @property
    def start_ms(self) -> int:
        """Samples are wanted after it."""
        return min(each.start_ms for each in self.cells)

    @property
    def end_ms(self) -> int:
        """And until it."""
        return max(each.end_ms for each in self.cells)


class DuckCurves(Sampled):
    """The curves of a store, or those of them that a scope lets through."""

    name = "store"

    def __init__(self, snapshot: Snapshot, scope: Scope | None = None, owner: object = None) -> None:
        self._snapshot, self._scope = snapshot, scope or Scope()
        self._owner = owner  # a store that goes with it
        self._held: list[Held] | None = None
        self._failed: dict[str, SourceUnavailable] | None = None
        self._counts: dict[int, int] = {}
        self._metrics: dict[int, str] = {}
        self._sizes: dict[str, int] = {}
        """Metric -> series of it in the whole store."""
        self._expected: dict[Groups, list[Wanted]] = {}
        self._cells: dict[tuple[Groups, int], Cells] = {}
        """By groups and step; the latest stand last."""

    def held(self) -> Sequence[Held]:
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
            labels = {text: labels_of(text) for text in {row[2] for row in rows}}  # all metrics of a GPU have the same
            self._held = [
                Held(id_, Series(metric, labels[text], Position(*at)), first, last, count)
                for id_, metric, text, *at, first, last, count in rows
            ]
            self._counts = {each.id: each.count for each in self._held}
            self._metrics = {each.id: each.series.metric for each in self._held}
            self._sizes = dict(self._snapshot.rows(f"SELECT metric, count(*) FROM {series} GROUP BY metric"))
        return self._held

    @property
    def failed(self) -> Mapping[str, SourceUnavailable]:
        """Metrics with received values whose unit isn't told yet, of curves that nothing else here measures."""
        if self._failed is None:
            held = {(each.series.metric, identifying(each.series.labels)) for each in self.held()}
            open_: dict[str, set[str]] = {}
            for metric, labels, name in self._waiting():
                if (metric, identifying(labels_of(labels))) not in held:
                    open_.setdefault(metric, set()).add(name)
            self._failed = {metric: _unsettled(metric, names) for metric, names in sorted(open_.items())}
        return self._failed

    def _waiting(self) -> list[tuple[str, str, str]]:
        """Metric, labels and foreign name of each curve in scope whose unit isn't told."""
        if not self._snapshot.manifest.of("waiting"):
            return []
        return self._snapshot.rows(
            f"""
            SELECT DISTINCT s.metric, s.labels, p.name
            FROM (SELECT name, series, input, min(time_ms) AS first_ms, max(time_ms) AS last_ms
                  FROM {self._snapshot.table("waiting")} GROUP BY ALL) p
            JOIN {self._snapshot.table("series")} s USING (series) WHERE {self._scope.where}
            """,
            self._scope.parameters,
        )

    def expect(self, wanted: Sequence[Wanted]) -> None:
        self._expected = {}
        for each in wanted:
            self._expected.setdefault(_key(each), []).append(each)

    def rollups(self, wanted: Sequence[Wanted]) -> list[RolledUp]:
        """What several need is read once, and while one is reduced the next is read."""
        self.held()
        keys = [_key(each) for each in wanted]
        sources: list[Cells | None] = [
            self._cells.get((key, each.step_ms)) for key, each in zip(keys, wanted, strict=True)
        ]
        fresh: dict[Groups, list[int]] = {}
        for place, (key, known) in enumerate(zip(keys, sources, strict=True)):
            if known is None or not known.cover(wanted[place]):
                fresh.setdefault(key, []).append(place)
        tables = {key: self._tables(key, [wanted[place] for place in places]) for key, places in fresh.items()}
        self._fill([part for key, steps in tables.items() for part in self._parts(key, list(steps.values()))])
        for key, places in fresh.items():
            for place in places:
                sources[place] = tables[key][wanted[place].step_ms]
        self._keep({(key, step): cells for key, steps in tables.items() for step, cells in steps.items()})
        return [cells.answer(each) for cells, each in zip(sources, wanted, strict=True) if cells is not None]

    def samples(
        self, held: Sequence[Held], start_ms: int, end_ms: int
    ) -> Iterator[tuple[Held, NDArray[np.int64], Values]]:
        """Of minutes that only their rollups are left of: the last."""
        for chunk in bunches(held, lambda each: self._counts.get(each.id, 0), CHUNK):
            chosen = {each.id: each for each in chunk}
            metrics = ", ".join(sorted({quoted(each.series.metric) for each in chosen.values()}))
            ids = ", ".join(map(str, chosen))
            where = (
                f"WHERE metric IN ({metrics}) AND series IN ({ids}) AND time_ms > {start_ms} AND time_ms <= {end_ms}"
            )
            span = (start_ms, end_ms)
            found = self._snapshot.arrays(
                f"SELECT series, time_ms, value FROM {self._snapshot.table('samples', times_ms=span)} {where}"
                f" UNION ALL SELECT series, last_ms AS time_ms, last AS value"
                f" FROM {self._snapshot.table('minutes', times_ms=span)} {where} ORDER BY 1, 2"
            )
            series = found["series"]
            edges = np.flatnonzero(series[1:] != series[:-1]) + 1
            for rows in np.split(np.arange(len(series)), edges) if len(series) else ():
                yield chosen[int(series[rows[0]])], found["time_ms"][rows], found["value"][rows]

    def _tables(self, groups: Groups, asked: Sequence[Wanted]) -> dict[int, Cells]:
        """By step, empty tables for what is asked of some groups, and for what is expected where there is room."""
        steps: dict[int, Cells] = {}
        for each in asked:
            known = steps.get(each.step_ms)
            steps[each.step_ms] = Cells.of(each) if known is None else known.widened(each)
        for each in self._expected.get(groups, ()):
            known = steps.get(each.step_ms)
            wider = Cells.of(each) if known is None else known.widened(each)
            others = sum(cells.bytes for step, cells in steps.items() if step != each.step_ms)
            if others + wider.bytes <= CELLS_BYTES // 2:
                steps[each.step_ms] = wider
        return {step: cells.made() for step, cells in steps.items()}

    def _keep(self, fresh: Mapping[tuple[Groups, int], Cells]) -> None:
        """Remember tables, and forget the oldest where that takes too much."""
        for key, cells in fresh.items():
            self._cells.pop(key, None)
            self._cells[key] = cells
        while sum(each.bytes for each in self._cells.values()) > CELLS_BYTES:
            del self._cells[next(iter(self._cells))]

    def _parts(self, groups: Groups, cells: Sequence[Cells]) -> Iterator[_Part]:
        """What is to be read: not too much at once."""
        begin = 0
        for chunk in bunches(groups, lambda group: sum(self._counts.get(id_, 0) for id_ in group), CHUNK):
            ids = np.array([id_ for group in chunk for id_ in group], dtype=np.int32)
            rows = np.repeat(np.arange(len(chunk), dtype=np.int32), [len(each) for each in chunk])
            if len(ids):
                yield _Part(cells, begin, begin + len(chunk), ids, rows)
            begin += len(chunk)

    def _fill(self, parts: Sequence[_Part]) -> None:
        with ThreadPoolExecutor(1) as reader:
            coming = [reader.submit(self._read_part, part) for part in parts[:1]]
            for following, part in zip_longest(parts[1:], parts):
                now = coming.pop().result()
                if following is not None:
                    coming.append(reader.submit(self._read_part, following))
                for cells in part.cells:
                    cells.fill(now, part.begin, part.stop)

    def _read_part(self, part: _Part) -> Read:
        lookup = _Lookup(part.ids, part.rows)
        found = self._read("samples", part, lookup, ("value",))
        starts, ends, rows = lookup.stretches(found["series"])
        samples = Stretches(found["time_ms"], found["value"], starts, ends, rows)
        minutes = None
        if self._snapshot.segments("minutes", times_ms=(part.start_ms, part.end_ms)):
            columns = ("min", "max", "sum", "count", "last", "last_ms")
            minutes = lookup.chosen(self._read("minutes", part, lookup, columns))
        return Read(samples, minutes, part.end_ms - part.start_ms)

    def _read(self, table: str, part: _Part, lookup: _Lookup, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
        """``series``, ``time_ms`` and other columns of a part's rows. Among them may be rows of other series, and of
        times outside the part's."""
        metrics = sorted({self._metrics[int(id_)] for id_ in lookup.ids})
        source = self._snapshot.table(table, times_ms=(part.start_ms, part.end_ms))
        where = f"metric IN ({', '.join(map(quoted, metrics))}){self._times(table, part)}"
        ranges = [""]
        if len(lookup.ids) < MOST * sum(self._sizes[metric] for metric in metrics):
            ranges = [f" AND series BETWEEN {low} AND {high}" for low, high in _ranges(lookup.ids)]
        names = ", ".join(f'"{name}"' for name in ("series", "time_ms", *columns))
        return self._snapshot.arrays(
            " UNION ALL ".join(f"SELECT {names} FROM {source} WHERE {where}{within}" for within in ranges)
        )

    def _times(self, table: str, part: _Part) -> str:
        """The condition for a part's times; empty where most of the samples meet it."""
        bounds = (part.start_ms, part.end_ms)
        spans = [each.times_ms for each in self._snapshot.segments(table, times_ms=bounds) if each.times_ms is not None]
        whole = sum(last - first + 1 for first, last in spans)
        met = sum(min(last, part.end_ms) - max(first, part.start_ms + 1) + 1 for first, last in spans)
        return "" if met >= MOST * whole else f" AND time_ms > {part.start_ms} AND time_ms <= {part.end_ms}"


class _Lookup:
    """Which row of an answer each series is of."""

    def __init__(self, ids: Ids, rows: Ids) -> None:
        order = np.argsort(ids)
        self.ids = ids[order]
        """Sorted."""
        self._low, self._high = int(self.ids[0]) - 1, int(self.ids[-1]) + 1
        self._rows = np.full(self._high - self._low + 1, -1, dtype=np.int32)
        self._rows[self.ids - self._low] = rows[order]

    def rows(self, series: Ids) -> Ids:
        """The rows of some series, -1 for others."""
        found: Ids = self._rows[np.clip(series, self._low, self._high) - self._low]
        return found

    def stretches(self, series: Ids) -> tuple[Places, Places, Ids]:
        """Where samples of one series stand together, from and to, and the row that they are of."""
        changes = np.flatnonzero(series[1:] != series[:-1]) + 1
        starts = np.concatenate([np.zeros(min(1, len(series)), dtype=np.intp), changes])
        ends, rows = np.append(starts[1:], len(series)), self.rows(series[starts])
        asked = rows >= 0
        return starts[asked], ends[asked], rows[asked]

    def chosen(self, found: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | None:
        """Columns of those that are asked for, ``row`` in place of ``series``; None without any."""
        rows = self.rows(found.pop("series"))
        asked = rows >= 0
        return {name: column[asked] for name, column in (found | {"row": rows}).items()} if asked.any() else None


def _unsettled(metric: str, names: Collection[str]) -> SourceUnavailable:
    came = " and ".join(sorted(names))
    return SourceUnavailable(
        "partial",
        f"{metric} was received as {came}, and no value shows its unit yet; it is settled by a larger one, or once a"
        " day has passed",
    )


def _key(wanted: Wanted) -> Groups:
    return tuple(map(tuple, wanted.groups))


def _ranges(ids: Ids) -> list[tuple[int, int]]:
    """Stretches that hold all of the sorted numbers and leave out the widest gaps between them."""
    gaps = np.diff(ids)
    wide = np.flatnonzero(gaps > 4096)
    if len(wide) >= RANGES:
        wide = np.sort(wide[np.argsort(gaps[wide])[-(RANGES - 1) :]])
    lows = np.concatenate([ids[:1], ids[wide + 1]])
    highs = np.concatenate([ids[wide], ids[-1:]])
    return [(int(low), int(high)) for low, high in zip(lows, highs, strict=True)]
