"""Metrics in a Prometheus-compatible server, as curves: VictoriaMetrics, Prometheus, Mimir, Thanos.

The server rolls up, one query for all series of a metric. What it would roll up otherwise than curves in memory is
fetched as samples and rolled up here: series that hold values which stand for none, and windows in which several
series of the server are one of ours (the job's label of a GPU changed).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trackside.http.unavailable import SourceUnavailable
from trackside.stores.curves import Engine, Groups, Held, RolledUp, Sampled, Wanted
from trackside.stores.memory_curves import roll
from trackside.stores.metric_store import MetricOptions, MetricServer, Scope
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.matrix import Times, Values
from trackside.stores.prometheus.scope import Concerned, anything_of, concerned
from trackside.stores.prometheus.series import MOST_RAW, Source, spans_of

MOST_SAMPLES = 20_000_000
"""Samples fetched for one answer, where the server can't roll up what is one curve."""
Part = tuple[Source, int]
"""A series of the server: its source, and its row there."""
Flags = NDArray[np.bool_]
TABLES_BYTES = 384 << 20
"""Answers kept in case they, or a part of their windows, are asked again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The windows of some groups, as far as they are known to be asked, and where they come from."""

    wanted: Wanted
    coming: Future[Values]

    @property
    def bytes(self) -> int:
        return _bytes(self.wanted)

    def covers(self, wanted: Wanted) -> bool:
        """Whether all windows of another question are among these."""
        return self.wanted.start_ms <= wanted.start_ms and self.wanted.end_ms >= wanted.end_ms

    def windows(self, wanted: Wanted) -> Values:
        first = (wanted.start_ms - self.wanted.start_ms) // wanted.step_ms
        return self.coming.result()[:, first : first + wanted.width].copy()


class PrometheusCurves(MetricServer, Sampled):
    """The curves of a server that concern a run."""

    title = "prometheus"

    def __init__(self, options: MetricOptions, scope: Scope | None = None) -> None:
        super().__init__(options, scope)
        self._api = Api(options, self.endpoint)
        self._looking: Future[Concerned] | None = None
        self._beginning = threading.Lock()
        self._tables: dict[tuple[Groups, int, Engine], _Table] = {}
        """The latest stand last."""
        self._expected: dict[tuple[Groups, int, Engine], Wanted] = {}
        self._counts: dict[tuple[Groups, int, int], Future[int]] = {}
        """Of what is expected, by groups, start and end."""

    @property
    def failed(self) -> Mapping[str, SourceUnavailable]:
        """They are not held; but that doesn't mean that they were not measured."""
        return self._concerned.failed

    def close(self) -> None:
        self._api.close()

    def begin(self) -> None:
        with self._beginning:
            if self._looking is None:
                self._looking = Future()
                threading.Thread(target=self._look, args=(self._looking,), name="prometheus-look", daemon=True).start()

    def _look(self, looking: Future[Concerned]) -> None:
        try:
            looking.set_result(concerned(self._api, self.scope))
        except BaseException as error:  # noqa: BLE001 - whatever it is, who wants the result is to get it
            looking.set_exception(error)

    @property
    def _concerned(self) -> Concerned:
        self.begin()
        assert self._looking is not None
        return self._looking.result()

    def anything(self) -> bool:
        """Whether the server has a series under the job's id at all: far cheaper than to look for what it holds, and
        all there is to know of a job whose time and nodes nobody tells. Raises SourceUnavailable."""
        return anything_of(self._api, self.scope.jobs)

    def held(self) -> Sequence[Held]:
        return self._concerned.held

    def samples(self, held: Sequence[Held], start_ms: int, end_ms: int) -> Iterator[tuple[Held, Times, Values]]:
        concerned = self._concerned
        by_id = {each.id: each for each in held}
        rows = _by_source(part for id_ in by_id for part in concerned.parts.get(id_, ()))
        for source, chosen in rows.items():
            for row, times, values in source.kept(chosen, start_ms, end_ms):
                yield by_id[source.curves[row]], times, values

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """They are asked for from now on, side by side."""
        self.held()  # not from a thread of the pool, which it waits for
        self._expected = {}
        for each in wanted:
            key = _key(each)
            self._expected[key] = _widened(self._expected[key], each) if key in self._expected else each
        self._counts = {
            key: self._api.pool.submit(self._used, each)
            for key, each in {_counted(each): each for each in wanted}.items()
        }
        room = TABLES_BYTES
        for key, each in self._expected.items():
            room -= _bytes(each)
            if room < 0:
                break
            if key not in self._tables or not self._tables[key].covers(each):
                self._tables[key] = self._table(each)

    def rollups(self, wanted: Sequence[Wanted]) -> list[RolledUp]:
        try:
            self.held()
        except SourceUnavailable as reason:
            return [reason] * len(wanted)
        tables = [self._known(each) for each in wanted]
        counts = [self._counts.get(_counted(each)) or self._api.pool.submit(self._used, each) for each in wanted]
        answers: list[RolledUp] = []
        for each, table, count in zip(wanted, tables, counts, strict=True):
            try:
                answers.append((table.windows(each), count.result()))
            except SourceUnavailable as reason:
                self._tables.pop(_key(each), None)  # it may be answered the next time
                self._counts.pop(_counted(each), None)
                answers.append(reason)
        self._forget()
        return answers

    def _known(self, wanted: Wanted) -> _Table:
        key = _key(wanted)
        table = self._tables.pop(key, None)
        if table is None or not table.covers(wanted):
            expected = self._expected.get(key)
            table = self._table(wanted if expected is None else _widened(expected, wanted))
        self._tables[key] = table
        return table

    def _forget(self) -> None:
        """Let the oldest go where all take too much."""
        size = sum(each.bytes for each in self._tables.values())
        for key in list(self._tables):
            if size <= TABLES_BYTES:
                break
            size -= self._tables.pop(key).bytes

    def _table(self, wanted: Wanted) -> _Table:
        return _Table(wanted, self._api.pool.submit(lambda: _windows_of(self._parts(wanted), wanted)))

    def _parts(self, wanted: Wanted) -> list[list[Part]]:
        parts = self._concerned.parts
        return [[part for id_ in ids for part in parts.get(id_, ())] for ids in wanted.groups]

    def _used(self, wanted: Wanted) -> int:
        """How many samples a question is answered from."""
        rows = _by_source(part for group in self._parts(wanted) for part in group)
        return sum(source.used(chosen, wanted.start_ms, wanted.end_ms) for source, chosen in rows.items())


def _key(wanted: Wanted) -> tuple[Groups, int, Engine]:
    return tuple(map(tuple, wanted.groups)), wanted.step_ms, wanted.how


def _counted(wanted: Wanted) -> tuple[Groups, int, int]:
    return tuple(map(tuple, wanted.groups)), wanted.start_ms, wanted.end_ms


def _widened(one: Wanted, other: Wanted) -> Wanted:
    """The windows of both, and those between."""
    return replace(one, start_ms=min(one.start_ms, other.start_ms), end_ms=max(one.end_ms, other.end_ms))


def _bytes(wanted: Wanted) -> int:
    return 8 * len(wanted.groups) * wanted.width


# -- windows: rolled up by the server, and where need be here


def _windows_of(groups: Sequence[Sequence[Part]], wanted: Wanted) -> Values:
    """(groups, windows) of each group of the server's series taken as one curve. Raises SourceUnavailable."""
    shape = len(groups), wanted.width
    whole, apart = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    parts = [part for group in groups for part in group]
    if not parts or not wanted.width:
        return whole
    values, first = _rolled(parts, wanted), 0
    for row, group in enumerate(groups):
        own = values[first : first + len(group)]
        first += len(group)
        if len(group) == 1:
            whole[row] = own[0]
        elif group:
            held = (~np.isnan(own)).sum(axis=0)
            if wanted.how in ("sum", "count"):
                whole[row] = np.where(held > 0, np.nansum(own, axis=0), np.nan)
            else:  # of windows that only one of them has a value for, it is that one
                whole[row] = (np.fmin if wanted.how == "min" else np.fmax).reduce(own, axis=0)
                apart[row] = (held > 1) & (wanted.how not in ("min", "max"))
    apart[:, _whole(parts[0][0], wanted) :] = True
    if apart.any():
        _from_samples(groups, wanted, apart, whole)
    return whole


def _by_source(parts: Iterable[Part]) -> dict[Source, list[int]]:
    """The rows of each source, in order."""
    found: dict[Source, set[int]] = {}
    for source, row in parts:
        found.setdefault(source, set()).add(row)
    return {source: sorted(rows) for source, rows in found.items()}


def _whole(source: Source, wanted: Wanted) -> int:
    """How many windows end before the newest samples, which are not asked for."""
    return int(np.clip((source.end_ms - wanted.start_ms) // wanted.step_ms, 0, None))


def _rolled(parts: Sequence[Part], wanted: Wanted) -> Values:
    """(parts, windows) of each series, in our unit."""
    values = np.full((len(parts), wanted.width), np.nan)
    places = {part: place for place, part in enumerate(parts)}
    for source, rows in _by_source(parts).items():
        clean = [row for row in rows if row not in source.raw]
        end_ms = min(wanted.end_ms, wanted.start_ms + _whole(source, wanted) * wanted.step_ms)
        found = source.rolled(clean, wanted.start_ms, end_ms, wanted.step_ms, wanted.how)
        if wanted.how != "count":
            with np.errstate(over="ignore", invalid="ignore"):
                found *= source.scales[clean][:, None]
        values[[places[source, row] for row in clean], : found.shape[1]] = found
        for row in rows:
            if row in source.raw:
                _roll(values[places[source, row]], *source.raw[row], wanted)
    return values


def _roll(out: Values, times: Times, values: Values, wanted: Wanted) -> None:
    """Fill in the windows of samples that are in order of time."""
    first, last = np.searchsorted(times, [wanted.start_ms, wanted.end_ms], side="right")
    roll(out, times[first:last], values[first:last], wanted)


def _from_samples(groups: Sequence[Sequence[Part]], wanted: Wanted, apart: Flags, whole: Values) -> None:
    """Roll up here those windows that are marked in ``apart``."""
    concerned = [row for row in range(len(groups)) if groups[row] and apart[row].any()]
    read: dict[Part, list[tuple[Times, Values]]] = {}
    for source, rows in _by_source(part for row in concerned for part in groups[row]).items():
        _read(source, rows, wanted, np.asarray(apart[concerned].any(axis=0)), read)
    for row in concerned:
        pieces = [piece for part in groups[row] for piece in read.get(part, ())]
        if pieces:
            times, values = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
            order = np.lexsort((values, times))
            out = np.full(whole.shape[1], np.nan)
            _roll(out, times[order], values[order], wanted)
            whole[row, apart[row]] = out[apart[row]]


def _read(
    source: Source, rows: Sequence[int], wanted: Wanted, marked: Flags, read: dict[Part, list[tuple[Times, Values]]]
) -> None:
    """The samples of some rows in the windows that are marked, in our unit."""
    clean = [row for row in rows if row not in source.raw]
    each = source.counts[clean].sum() / (source.end_ms - source.start_ms) * wanted.step_ms
    if each * marked.sum() > MOST_SAMPLES:
        raise SourceUnavailable("too_large", f"{source.server}: several series of {source.name} measure the same at the same "
                         f"time, and their {each * marked.sum():,.0f} samples are more than are fetched; choose one of "
                         "each with match, or let the server leave out doubles")  # fmt: skip
    for begin, end in spans_of(marked * max(each, 1.0), MOST_RAW):
        start_ms, end_ms = (wanted.start_ms + place * wanted.step_ms for place in (begin, end))
        end_ms = min(end_ms, source.end_ms)
        for row in rows:
            if row in source.raw:
                times, values = source.raw[row]
                first, last = np.searchsorted(times, [start_ms, end_ms], side="right")
                read.setdefault((source, row), []).append((times[first:last], values[first:last]))
        if clean and start_ms < end_ms:
            for row, (times, values) in source.samples(set(clean), start_ms, end_ms).items():
                read.setdefault((source, row), []).append((times, values * source.scales[row]))


METRIC_STORE = PrometheusCurves
