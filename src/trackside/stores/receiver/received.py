"""Writes pushed samples into segments: one input per day, and each commit records how far the write-ahead log is
processed.

The unit of some foreign names can only be derived from the size of their values (``scale_of``). Until it is known,
their values go unchanged to a separate table, ``waiting``; the commit that settles a name moves them to the samples,
and the manifest keeps its factor for good.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import translate
from trackside.catalog.metrics import METRICS
from trackside.catalog.settling import UnitBySize, scaled, usable_samples
from trackside.stores.embedded.layout import LogPosition, ReceivedState, TableSegment
from trackside.stores.embedded.order import Ids, Times, Values, sort_samples
from trackside.stores.embedded.rows import StoredInput, object_column, received_day
from trackside.stores.embedded.samples import SampleBatch, Spans
from trackside.stores.embedded.tables import ORDER, sql_literal
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.arrivals import ArrivalBatch, Arrivals

MAX_WAIT_S = 86400.0
"""Longest time that values of a foreign name wait before the largest of them settles its unit."""
_Rows = tuple[Ids, Times, Values]
"""Series id, time, value in our unit."""
_NO_ROWS: _Rows = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64)


@dataclass(slots=True)
class _UnsettledName(UnitBySize):
    """A name whose unit is not settled. ``since``: when its first value was written, POSIX seconds."""

    since: float = 0.0

    @property
    def is_overdue(self) -> bool:
        """Whether it has waited long enough."""
        return time.time() - self.since > MAX_WAIT_S


@dataclass(slots=True)
class _Change:
    """What a commit changes: the day's input, and segments."""

    day: StoredInput
    added: list[TableSegment] = field(default_factory=list)
    removed: list[TableSegment] = field(default_factory=list)


class ReceivedSamples:
    """Writes batches through one writer. After a StoreError, call :meth:`reset` and write the same batch again."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._arrivals: Arrivals | None = None
        self._series_ids: Ids = np.empty(0, dtype=np.int32)
        """Index of our series -> series id, for the latest arrivals."""
        self._day: tuple[StoredInput, TableSegment] | None = None
        """The day's input, and the segment of its row."""
        self.unsettled: Mapping[str, int] = {}
        """Names whose unit is not settled, and how many values of each wait. Any thread may read it."""
        self._load()

    def reset(self) -> None:
        """Return to the committed state."""
        self._writer.reset_series_ids()
        self._arrivals = None
        self._load()

    def _load(self) -> None:
        snapshot = self._writer.snapshot()
        last_times = snapshot.arrays(
            f"SELECT series, max(last_ms) AS last_ms FROM {snapshot.table('spans')} WHERE count > 0 GROUP BY series"
        )
        self._last_ms = np.full(self._writer.manifest.next_series, np.iinfo(np.int64).min)
        self._last_ms[last_times["series"]] = last_times["last_ms"]
        peak = "coalesce(max(value) FILTER (isfinite(value)), 0)"
        self._unsettled: dict[str, _UnsettledName] = {}
        for name, top, count in snapshot.rows(
            f"SELECT name, {peak}, count(*) FROM {snapshot.table('waiting')} GROUP BY name"
        ):
            translated = translate(name, {})
            since = self._writer.manifest.received.since.get(name, time.time())
            self._unsettled[name] = _UnsettledName(translated.guess if translated else "", max(top, 0.0), count, since)
        self._publish_counts()

    def _publish_counts(self) -> None:
        self.unsettled = {name: name_state.count for name, name_state in self._unsettled.items()}

    def flush(
        self, batch: ArrivalBatch, mark: LogPosition, body_bytes: int, oldest_ms: int | None = None
    ) -> Counter[str]:
        """Write samples, and commit that the log is processed up to ``mark``. ``body_bytes``: size of the bodies they
        came in; ``oldest_ms``: samples up to this time are kept as per-minute aggregates only, so no more can be added.
        Returns why samples were left out. Raises StoreError."""
        writer, left_out = self._writer, Counter[str]()
        if not len(batch.values):
            writer.replace((), (), received=msgspec.structs.replace(writer.manifest.received, mark=mark))
            return left_out
        change = self._begin_change()
        series_ids = self._ids_of(batch)
        foreign = batch.foreign
        rows, times_ms, raw = usable_samples(
            foreign, batch.rows, batch.times_ms, batch.values, left_out, oldest_ms=oldest_ms
        )
        factors = dict(writer.manifest.received.factors)
        units = foreign["unit"][rows]
        settled = self._newly_settled(batch, factors, units, raw)
        factors |= settled
        scales = np.array([factors.get(name, np.nan) for name, _ in batch.units] + [1.0])  # for unit -1
        scale = foreign["scale"][rows] * scales[units]
        has_unit = ~np.isnan(scale)
        ready_rows = rows[has_unit]
        values, plausible = scaled(
            raw[has_unit], scale[has_unit], foreign["low"][ready_rows], foreign["high"][ready_rows]
        )
        left_out["implausible"] += int((~plausible).sum())
        rows_to_write: _Rows = series_ids[ready_rows][plausible], times_ms[has_unit][plausible], values[plausible]
        if (~has_unit).any():
            no_unit = ~has_unit
            change.added.append(
                self._write_unsettled(
                    batch, change.day.id, rows[no_unit], series_ids[rows[no_unit]], times_ms[no_unit], raw[no_unit]
                )
            )
        self._finish(rows_to_write, settled, change, left_out, mark, body_bytes)
        return left_out

    def settle(self) -> Counter[str]:
        """Settle the names that have waited long enough, even if no more values come. Returns why samples were left
        out. Raises StoreError."""
        left_out: Counter[str] = Counter()
        settled = {name: unsettled.factor for name, unsettled in self._unsettled.items() if unsettled.is_overdue}
        if settled:
            self._finish(_NO_ROWS, settled, self._begin_change(), left_out, self._writer.manifest.received.mark)
        return left_out

    def _finish(
        self,
        new_rows: _Rows,
        settled: Mapping[str, float],
        change: _Change,
        left_out: Counter[str],
        mark: LogPosition,
        body_bytes: int = 0,
    ) -> None:
        """Write new rows and those whose unit is settled, and commit."""
        rows = self._distinct([new_rows, *self._release(settled, change, left_out)], left_out)
        if len(rows[0]):
            change.added += self._write_samples(rows, change.day)
        since = {name: name_state.since for name, name_state in self._unsettled.items() if name not in settled}
        factors = {**self._writer.manifest.received.factors, **settled}
        row = replace(change.day.row, rows=change.day.row.rows + len(rows[0]), bytes=change.day.row.bytes + body_bytes)
        day = replace(change.day, row=row, read_at=time.time())
        self._day = day, self._writer.grow(day, change.added, change.removed, ReceivedState(mark, factors, since))
        for name in settled:
            self._unsettled.pop(name, None)
        self._publish_counts()
        self._note_times(rows)

    # -- series and units

    def _ids_of(self, batch: ArrivalBatch) -> Ids:
        """The series id of each foreign series."""
        all_ids = self._writer.series_ids
        if batch.arrivals is not self._arrivals:
            self._arrivals, self._series_ids = batch.arrivals, np.empty(0, dtype=np.int32)
            self._writer.reset_series_ids()  # ids of series that no longer occur
            all_ids = self._writer.series_ids
        if tail := batch.series[len(self._series_ids) :]:
            all_ids.begin()
            self._series_ids = np.concatenate([self._series_ids, all_ids.of(tail)])
            all_ids.begin()
        ids: Ids = self._series_ids[batch.foreign["ours"]]
        return ids

    def _newly_settled(
        self, batch: ArrivalBatch, factors: Mapping[str, float], units: Ids, raw: Values
    ) -> dict[str, float]:
        """The factors of names whose unit is known from now on. ``factors``: those known before."""
        for unit, (name, guess) in enumerate(batch.units):
            values = raw[units == unit] if name not in factors else raw[:0]
            if len(values):
                self._unsettled.setdefault(name, _UnsettledName(guess, since=time.time())).observe(values)
        return {
            name: unsettled.factor
            for name, unsettled in self._unsettled.items()
            if unsettled.is_settled or unsettled.is_overdue
        }

    def _write_unsettled(
        self, batch: ArrivalBatch, input_: int, rows: Ids, series: Ids, times_ms: Times, raw: Values
    ) -> TableSegment:
        """Write values whose unit is not known, unchanged."""
        samples = sort_samples(series, times_ms, raw)
        order = slice(None) if samples.order is None else samples.order
        names = [name for name, _ in batch.units]
        metrics = [series_of_row.metric for series_of_row in batch.series]
        foreign = batch.foreign[rows[order]]
        columns = {
            "name": object_column(names[unit] for unit in foreign["unit"].tolist()),
            "metric": object_column(metrics[index] for index in foreign["ours"].tolist()),
            "series": samples.groups,
            "time_ms": samples.times,
            "value": samples.values,
            "input": np.full(len(samples.groups), input_, dtype=np.int32),
        }
        return self._writer.write_segment("waiting", columns)

    def _release(self, settled: Mapping[str, float], change: _Change, left_out: Counter[str]) -> list[_Rows]:
        """Take out the values that waited for these names; values that wait for others are written again."""
        old_segments = self._writer.manifest.of("waiting")
        if not settled or not old_segments:
            return []
        snapshot = self._writer.snapshot()
        source, moved = snapshot.source("waiting", old_segments), []
        for name, factor in settled.items():
            for (metric,) in snapshot.rows(f"SELECT DISTINCT metric FROM {source} WHERE name = ?", [name]):
                columns = snapshot.arrays(
                    f"SELECT series, time_ms, value FROM {source} WHERE name = ? AND metric = ?", [name, metric]
                )
                translated = translate(name, {})
                scale = factor * (translated.scale if translated else 1.0)
                values, plausible = scaled(columns["value"], scale, METRICS[metric].low, METRICS[metric].high)
                left_out["implausible"] += int((~plausible).sum())
                moved.append((columns["series"][plausible], columns["time_ms"][plausible], values[plausible]))
                for id_ in np.unique(columns["series"]).tolist():
                    self._writer.series_ids.metrics.setdefault(id_, metric)
        change.removed += old_segments
        names = ", ".join(map(sql_literal, settled))
        remaining = f"SELECT * FROM {source} WHERE name NOT IN ({names}) ORDER BY {ORDER['waiting']}"
        change.added += self._writer.write_query("waiting", remaining)
        return moved

    # -- samples

    def _distinct(self, parts: list[_Rows], left_out: Counter[str]) -> _Rows:
        """Each sample once, by series and time: without duplicates in the batch or of samples in the store."""
        series, times_ms, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        if not len(series):
            return series, times_ms, values
        samples = sort_samples(series, times_ms, values)
        series, times_ms, values = samples.groups, samples.times, samples.values
        is_duplicate = np.zeros(len(series), dtype=bool)
        is_duplicate[1:] = (series[1:] == series[:-1]) & (times_ms[1:] == times_ms[:-1]) & (values[1:] == values[:-1])
        max_id = int(series.max())
        if max_id >= len(self._last_ms):
            more = np.full(max_id + 1024 - len(self._last_ms), np.iinfo(np.int64).min)
            self._last_ms = np.concatenate([self._last_ms, more])
        late = np.flatnonzero(times_ms <= self._last_ms[series])
        if len(late):
            is_duplicate[late[self._in_store(series[late], times_ms[late], values[late])]] = True
        left_out["duplicate"] += int(is_duplicate.sum())
        return series[~is_duplicate], times_ms[~is_duplicate], values[~is_duplicate]

    def _in_store(self, series: Ids, times_ms: Times, values: Values) -> NDArray[np.int64]:
        """Indices of the samples that the store already has, bit for bit."""
        snapshot = self._writer.snapshot()
        first, last = int(times_ms.min()), int(times_ms.max())
        source = snapshot.table("samples", times_ms=(first - 1, last))
        columns = {"place": np.arange(len(series)), "series": series, "time_ms": times_ms, "value": values}
        self._writer.connection.register("late", columns)
        try:
            matches = snapshot.arrays(
                "SELECT place FROM late SEMI JOIN (SELECT series, time_ms, value FROM"
                f" {source} WHERE time_ms BETWEEN {first} AND {last}) USING (series, time_ms, value)"
            )
        finally:
            self._writer.connection.unregister("late")
        indices: NDArray[np.int64] = matches["place"]
        return indices

    def _write_samples(self, rows: _Rows, day: StoredInput) -> list[TableSegment]:
        writer = self._writer
        sample_batch = SampleBatch([(*rows, day.id)], len(rows[0]))
        segment, spans = sample_batch.write(writer.connection, writer.directory, writer.series_ids.metrics)
        return [segment, writer.write_segment("spans", _span_columns(spans, day.path))]

    def _note_times(self, rows: _Rows) -> None:
        series, times_ms, _ = rows
        if len(series):
            ends = np.append(np.flatnonzero(series[1:] != series[:-1]), len(series) - 1)
            self._last_ms[series[ends]] = np.maximum(self._last_ms[series[ends]], times_ms[ends])

    # -- the input

    def _begin_change(self) -> _Change:
        """A change to the day's input; begins another input if the segment of its row was merged with others."""
        day = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d")
        if self._day is not None:
            stored, segment = self._day
            if stored.label == day and segment in self._writer.manifest.segments:
                return _Change(stored, removed=[segment])
        return _Change(received_day(self._writer.begin(), day))


def _span_columns(spans: Spans, path: str) -> Mapping[str, NDArray[np.generic]]:
    """Spans of received samples: their position is the series id."""
    zeros = np.zeros(len(spans.series), dtype=np.int64)
    return {
        "input": spans.inputs,
        "series": spans.series,
        "first_ms": spans.first_ms,
        "last_ms": spans.last_ms,
        "count": spans.count,
        "path": object_column([path] * len(zeros)),
        "line": spans.series.astype(np.int64),
        "offset": zeros,
        "length": zeros,
    }
