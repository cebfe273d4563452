"""The series of one foreign name in a Prometheus-compatible server: how they are selected, and when they were sampled.

First and last times must be exact to the millisecond, because a run's window may rest on them, and cheap to find:
samples are counted in coarse windows, then in finer ones around the first and the last sample of each series, until few
enough are left to read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK_RANGES, Guess
from trackside.catalog.labels import JOB_LABELS, MACHINE_LABELS
from trackside.catalog.metrics import METRICS
from trackside.catalog.settling import UnitBySize, is_blank, may_hide_blanks, measured, scaled
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.metric_backend import STEPS_S, EngineRollup
from trackside.stores.prometheus import promql
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.matrix import Times, Values

MAX_EDGE_SAMPLES = 64
"""To find a series' first or last sample, the samples of a window are read if there are at most this many."""
COARSE_WINDOWS, FINER_WINDOWS = 128, 32
"""Number of windows in a span at first, and in one of these windows later, to find where a series begins and ends."""
MAX_READ_SAMPLES = 1_000_000
"""Maximum number of samples read at once."""
MAX_SCANNED_SAMPLES = 40_000_000
"""Maximum number of samples of one name that are read to separate measurements from values that stand for none."""
Indices = NDArray[np.intp]
_EXTREMES: tuple[EngineRollup, ...] = ("min", "max", "sum")
_EDGES = ("tfirst", "tlast")
_ROLLUP = re.compile(rb',\s*"rollup":\s*"(\w+)"|"rollup":\s*"(\w+)",?')
"""The label by which VictoriaMetrics distinguishes several rollups in one answer, in labels as JSON."""


def plain_label(label: str) -> str:
    """A label's name in the form in which :func:`trackside.catalog.dialect.translate` compares labels."""
    return label.lower().replace(".", "_")


def coarse_step(length_ms: int, windows: int) -> int:
    """Length in ms of a window, if a span is divided into about so many windows."""
    min_step_s = length_ms / windows / 1000
    return next((step for step in STEPS_S if step >= 60 and step >= min_step_s), STEPS_S[-1]) * 1000


def window_spans(counts: Values, max_samples: int) -> Iterator[tuple[int, int]]:
    """Ranges of windows that hold samples, each of about ``max_samples`` samples or one window."""
    begin, total = 0, 0.0
    for window, count in enumerate(counts.tolist()):
        if total and (not count or total + count > max_samples):
            yield begin, window
            total = 0.0
        if not total:
            begin = window
        total += count
    if total:
        yield begin, len(counts)


class MetricSource:
    """All series of one foreign name that concern the run, in rows.

    ``labels``: the server's labels, without the name. ``series_ids``: which of our series each row is a part of.

    Any thread may use it after :meth:`inspect`.
    """

    def __init__(
        self, api: Api, name: str, metric: str, guess: Guess, span: tuple[int, int], scoped: bool,
        labels: Sequence[Mapping[str, str]], series_ids: Sequence[int], scales: Sequence[float],
    ) -> None:  # fmt: skip
        self._api, self.name, self._guess, self._scoped = api, name, guess, scoped
        self.metric = metric
        self._metric = METRICS[metric]
        self.server, self.labels, self.series_ids = api.name, labels, series_ids
        self.scales = np.array(scales)
        self._rows = {frozenset(labels_of_row.items()): row for row, labels_of_row in enumerate(labels)}
        self._row_cache: dict[bytes, int] = {}
        self._selectors: dict[tuple[int, ...], tuple[str, ...]] = {}
        self.step_ms = coarse_step(span[1] - span[0], FINER_WINDOWS if api.is_victoria else COARSE_WINDOWS)
        self.end_ms = span[1]
        """End of the span that is read: later samples may not all be there yet."""
        self.start_ms = span[0] // self.step_ms * self.step_ms
        self._coarse: Values | None = None
        self._lock = threading.Lock()
        self._count_until: dict[int, Values] = {}
        """Time -> how many samples each row has until then."""
        self.raw: dict[int, tuple[Times, Values]] = {}
        """Row -> samples, for rows that contain placeholder values: these are rolled up here."""
        self.first_ms = np.zeros(len(labels), dtype=np.int64)
        self.last_ms = np.zeros(len(labels), dtype=np.int64)
        self.counts = np.zeros(len(labels), dtype=np.int64)
        """Number of all samples; 0 for a series without any."""

    # -- selecting

    def row(self, labels: bytes) -> int:
        """The row of a series in an answer; -1 if it is not one of these."""
        row = self._row_cache.get(labels)
        if row is None:
            row = self._row_cache[labels] = self._rows.get(frozenset(self._api.labels(labels).items()), -1)
        return row

    def selectors(self, rows: Sequence[int]) -> tuple[str, ...]:
        """Selectors for these rows, with as few conditions as possible; they may match further series."""
        key = tuple(rows)
        if key not in self._selectors:
            parts: dict[str, list[int]] = {}
            label = self._shared_label(rows)
            for row in rows:
                parts.setdefault(label if label is not None else self._owner_label(row), []).append(row)
            site = self._api.matchers
            self._selectors[key] = tuple(
                promql.selector(self.name, (*site, *conditions))
                for label, label_rows in parts.items()
                for conditions in self._conditions(label, label_rows)
            )
        return self._selectors[key]

    def _shared_label(self, rows: Sequence[int]) -> str | None:
        """The label that all rows have and that best separates them from the others; empty if no separation is
        needed."""
        if not self._scoped and len(rows) == len(self.labels):
            return ""
        common = set.intersection(*(set(self.labels[row]) for row in rows))
        candidates = [label for label in sorted(common) if self._is_owner_label(label)]
        costs = {label: self._cost(label, rows) for label in candidates}
        return min(candidates, key=lambda label: costs[label], default=None)

    def _cost(self, label: str, rows: Sequence[int]) -> tuple[int, int]:
        values = {self.labels[row][label] for row in rows}
        return sum(labels.get(label) in values for labels in self.labels) - len(rows), sum(map(len, values))

    def _is_owner_label(self, label: str) -> bool:
        plain = plain_label(label)
        return plain in JOB_LABELS or plain in MACHINE_LABELS or self._api.options.labels.get(label) in ("node", "job")

    def _owner_label(self, row: int) -> str:
        return next((label for label in sorted(self.labels[row]) if self._is_owner_label(label)), "")

    def _conditions(self, label: str, rows: Sequence[int]) -> Iterator[tuple[str, ...]]:
        if not label:
            yield ()
            return
        values = {self.labels[row][label] for row in rows}
        if len(values) == 1:
            yield (self._api.matcher(label, "=", values.pop()),)
            return
        for regex in promql.one_of(values):
            yield (self._api.matcher(label, "=~", regex),)

    # -- querying

    def rolled_up(self, rows: Sequence[int], start_ms: int, end_ms: int, step_ms: int, rollup: EngineRollup) -> Values:
        """Values of shape (rows, windows) from the server, in its own unit."""
        out = np.full((len(rows), (end_ms - start_ms) // step_ms), np.nan)
        if not rows:
            return out
        index_of = np.full(len(self.labels) + 1, -1)  # the last element stands for series that are not here
        index_of[list(rows)] = np.arange(len(rows))
        for selector in self.selectors(rows):
            query = promql.rollup(rollup, selector, step_ms, self._api.is_closed)
            for page in self._api.rolled_up(query, start_ms, end_ms, step_ms, len(rows)):
                begin = (page.start_ms - start_ms) // step_ms
                for labels, values in page.series:
                    if (index := index_of[self.row(labels)]) >= 0:
                        out[index, begin : begin + page.width] = values
        return out

    def _windows(self, rows: Sequence[int], start_ms: int, end_ms: int, step_ms: int, rollup: EngineRollup) -> Values:
        """Values of shape (rows, windows) from a multiple of the step on; the last window may be shorter.

        Windows end at multiples of their step, because Thanos and Mimir align other windows to these.
        """
        aligned_ms = end_ms // step_ms * step_ms
        values = self.rolled_up(rows, start_ms, aligned_ms, step_ms, rollup)
        if aligned_ms == end_ms:
            return values
        return np.column_stack([values, self._rollup_at(rollup, aligned_ms, end_ms, rows)[list(rows)]])

    def _window_start(self, window: int) -> int:
        """Start of a coarse window, which is the end of the previous one."""
        return min(self.start_ms + window * self.step_ms, self.end_ms)

    def _rollup_at(self, rollup: EngineRollup, start_ms: int, end_ms: int, rows: Sequence[int] | None = None) -> Values:
        """Array over all rows with one value for ``(start, end]`` of each row, or of some."""
        out = np.full(len(self.labels), np.nan)
        rows = range(len(self.labels)) if rows is None else rows
        for selector in self.selectors(rows):
            for labels, value in self._api.at(
                promql.rollup(rollup, selector, end_ms - start_ms, self._api.is_closed), end_ms
            ):
                if (row := self.row(labels)) >= 0:
                    out[row] = value
        return out

    def samples(self, rows: Collection[int], start_ms: int, end_ms: int) -> dict[int, tuple[Times, Values]]:
        """The samples of rows in ``(start, end]``, in the server's unit and in time order."""
        by_row: dict[int, tuple[Times, Values]] = {}
        for selector in self.selectors(sorted(rows)):
            for labels, (times, values) in self._api.samples(selector, start_ms, end_ms):
                row = self.row(labels)
                if row in rows and len(times):
                    order = np.lexsort((values, times))
                    by_row[row] = times[order], values[order]
        return by_row

    def measured_samples(self, rows: Sequence[int], start_ms: int, end_ms: int) -> Iterator[tuple[int, Times, Values]]:
        """Yield (row, times, values) of the measurements in ``(start, end]``, in our unit, in pieces of bounded
        size."""
        start_ms, end_ms = max(start_ms, self.start_ms), min(end_ms, self.end_ms)
        clean = [row for row in rows if row not in self.raw]
        length = max(1, self.end_ms - self.start_ms)
        total_samples = sum(int(self.counts[row]) for row in clean)
        step = max(1, length * MAX_READ_SAMPLES // max(total_samples, MAX_READ_SAMPLES))
        for begin in range(start_ms, end_ms, step) if clean else ():
            by_row = self.samples(clean, begin, min(begin + step, end_ms))
            for row, (times, values) in by_row.items():
                yield row, times, values * self.scales[row]
        for row in rows:
            if row in self.raw:
                times, values = self.raw[row]
                in_span = (times > start_ms) & (times <= end_ms)
                yield row, times[in_span], values[in_span]

    # -- what the server holds

    def inspect(self) -> None:
        """Find out what the server holds: counts, first and last times, and values that stand for no measurement."""
        rows = range(len(self.labels))
        if not self._api.is_victoria:
            sums = np.cumsum(self._coarse_counts(), axis=1)
            self._count_until = {self._window_start(window + 1): sums[:, window] for window in range(sums.shape[1])}
            self.counts = sums[:, -1].astype(np.int64)
        low, high, total = self._extremes()
        self._count_until |= {self.start_ms: np.zeros(len(rows)), self.end_ms: self.counts.astype(np.float64)}
        if not self.counts.any():
            return
        self._set_aside_placeholders(low, high, total)
        clean = np.array([row for row in rows if self.counts[row] and row not in self.raw], dtype=np.intp)
        for edge_index, out in ((0, self.first_ms), (-1, self.last_ms)) if not self._api.is_victoria else ():
            self._edges(
                clean, self._coarse_counts()[clean], np.full(len(clean), self.start_ms), self.step_ms, edge_index, out
            )
        for row, (row_times, _) in self.raw.items():
            if self.counts[row]:
                self.first_ms[row], self.last_ms[row] = row_times[0], row_times[-1]

    def _coarse_counts(self) -> Values:
        """Number of samples, of shape (rows, coarse windows)."""
        if self._coarse is None:
            rows = range(len(self.labels))
            self._coarse = np.nan_to_num(self._windows(rows, self.start_ms, self.end_ms, self.step_ms, "count"))
        return self._coarse

    def _set_aside_placeholders(self, low: Values, high: Values, total: Values) -> None:
        """Settle the unit, and keep the samples of rows that contain placeholder values."""
        has_samples = self.counts > 0
        only_blanks = has_samples & is_blank(low) & is_blank(high) & (high - low < 4)
        self.counts[only_blanks] = 0
        has_samples &= ~only_blanks
        some_blanks = has_samples & (is_blank(low) | is_blank(high) | ~np.isfinite(total))
        hiding_rows = self._hides_blanks(
            np.flatnonzero(has_samples & ~some_blanks & may_hide_blanks(low, high)).tolist(), low, high
        )
        self._read_raw([*np.flatnonzero(some_blanks).tolist(), *hiding_rows])
        self._settle_unit(high, has_samples)
        with np.errstate(over="ignore", invalid="ignore"):
            min_values, max_values = low * self.scales, high * self.scales
        all_implausible = has_samples & ((min_values > self._metric.high) | (max_values < self._metric.low))
        self.counts[all_implausible] = 0
        some_implausible = (
            has_samples & ~all_implausible & ((min_values < self._metric.low) | (max_values > self._metric.high))
        )
        self._read_raw([row for row in np.flatnonzero(some_implausible).tolist() if row not in self.raw])
        for row in list(self.raw):
            self._drop_implausible(row)

    def _extremes(self) -> tuple[Values, Values, Values]:
        """Smallest value, largest value and sum of each row; VictoriaMetrics returns counts and edge times as well."""
        if not self._api.is_victoria:
            low, high, total = (self._rollup_at(rollup, self.start_ms, self.end_ms) for rollup in _EXTREMES)
            return low, high, total
        results = {rollup: np.full(len(self.labels), np.nan) for rollup in (*_EXTREMES, "count", *_EDGES)}
        for selector in self.selectors(range(len(self.labels))):
            query = promql.extremes(tuple(results), selector, self.end_ms - self.start_ms)
            for key, value in self._api.at(query, self.end_ms):
                match = _ROLLUP.search(key)
                rollup = "" if match is None else (match[1] or match[2]).decode().removesuffix("_over_time")
                if rollup in results and (row := self.row(_ROLLUP.sub(b"", key, count=1))) >= 0:
                    results[rollup][row] = value
        self.first_ms, self.last_ms = (
            np.rint(np.nan_to_num(results[rollup]) * 1000).astype(np.int64) for rollup in _EDGES
        )
        self.counts = np.nan_to_num(results["count"]).astype(np.int64)
        return results["min"], results["max"], results["sum"]

    def _hides_blanks(self, rows: Sequence[int], low: Values, high: Values) -> set[int]:
        """Those rows that include a blank value among smaller and larger ones; most can be excluded by their range.

        VictoriaMetrics counts values by size; from other servers the samples are read in windows that may include one.
        """
        if not rows:
            return set()
        if self._api.is_victoria:
            return self._with_blanks(rows, low, high)
        low, high = (self._windows(rows, self.start_ms, self.end_ms, self.step_ms, rollup) for rollup in ("min", "max"))
        hiding: set[int] = set()
        may_hide = may_hide_blanks(low, high)
        for begin, end in window_spans(
            may_hide.any(axis=0) * (self.counts[rows].sum() / may_hide.shape[1]), MAX_READ_SAMPLES
        ):
            window_rows = {rows[index] for index in np.flatnonzero(may_hide[:, begin:end].any(axis=1)).tolist()}
            samples = self.samples(window_rows, self._window_start(begin), self._window_start(end))
            hiding.update(row for row, (_, values) in samples.items() if is_blank(values).any())
        return hiding

    def _with_blanks(self, rows: Sequence[int], low: Values, high: Values) -> set[int]:
        with_blanks: set[int] = set()
        for first, last in BLANK_RANGES:
            candidates = [row for row in rows if low[row] <= last and high[row] >= first]
            for selector in self.selectors(candidates) if candidates else ():
                within = promql.window(selector, self.end_ms - self.start_ms, self._api.is_closed)
                for labels, count in self._api.at(promql.between(within, first, last), self.end_ms):
                    if count and (row := self.row(labels)) in rows:
                        with_blanks.add(row)
        return with_blanks

    def _settle_unit(self, high: Values, has_samples: NDArray[np.bool_]) -> None:
        """Settle the unit by the largest value, for metrics whose unit depends on it."""
        if not self._guess:
            return
        unit = UnitBySize(self._guess)
        for _, values in self.raw.values():
            unit.observe(values)
        unit.observe(high[[row for row in np.flatnonzero(has_samples).tolist() if row not in self.raw]])
        self.scales *= unit.factor

    def _read_raw(self, rows: Iterable[int]) -> None:
        """Read and keep all samples of these rows, without those that stand for no measurement."""
        row_set = set(rows)
        if not row_set:
            return
        sorted_rows, counts = sorted(row_set), self._coarse_counts()
        if counts[sorted_rows].sum() > MAX_SCANNED_SAMPLES:
            raise SourceUnavailable(
                "too_large",
                f"{self._api.name}: {self.name} has values that are not measurements among"
                f" {counts[sorted_rows].sum():,.0f} samples, more than the limit for reading them",
            )
        pieces: dict[int, list[tuple[Times, Values]]] = {row: [] for row in sorted_rows}
        for begin, end in window_spans(counts[sorted_rows].sum(axis=0), MAX_READ_SAMPLES):
            for row, (times, raw) in self.samples(row_set, self._window_start(begin), self._window_start(end)).items():
                values, blank = measured(raw, self._metric.diverges)
                pieces[row].append((times[~blank], values[~blank]))
        empty = np.empty(0, np.int64), np.empty(0)
        for row, parts in pieces.items():
            parts = parts or [empty]
            self.raw[row] = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _drop_implausible(self, row: int) -> None:
        times, values = self.raw[row]
        scaled_values, plausible = scaled(values, self.scales[row], self._metric.low, self._metric.high)
        self.raw[row] = times[plausible], scaled_values[plausible]
        self.counts[row] = int(plausible.sum())

    def _edges(
        self, rows: Indices, window_counts: Values, starts: NDArray[np.int64], step_ms: int, edge_index: int, out: Times
    ) -> None:
        """Set the first (0) or last (-1) time of each row, whose samples are counted in windows from its start on."""
        sampled = window_counts > 0
        windows = sampled.argmax(axis=1) if edge_index == 0 else sampled.shape[1] - 1 - sampled[:, ::-1].argmax(axis=1)
        any_sampled = sampled.any(axis=1)  # samples may have been deleted meanwhile
        rows, starts, max_counts = (
            rows[any_sampled],
            (starts + windows * step_ms)[any_sampled],
            window_counts.max(axis=1)[any_sampled],
        )
        for start in np.unique(starts).tolist():
            start_rows, max_count = rows[starts == start], max_counts[starts == start].max()
            finer_ms, end = coarse_step(step_ms, FINER_WINDOWS), min(start + step_ms, self.end_ms)
            if max_count <= MAX_EDGE_SAMPLES or finer_ms >= step_ms:
                for row, (times, _) in self.samples(set(start_rows.tolist()), start, end).items():
                    out[row] = times[edge_index]
            else:
                counts = np.nan_to_num(self._windows(start_rows.tolist(), start, end, finer_ms, "count"))
                self._edges(start_rows, counts, np.full(len(start_rows), start), finer_ms, edge_index, out)

    def count_until(self, time_ms: int) -> Values:
        """Array over all rows: how many samples each has until a time, among those that the server rolls up."""
        time_ms = min(max(time_ms, self.start_ms), self.end_ms)
        with self._lock:
            # Start from the nearest known time: a verdict needs times near the ends.
            base = min(self._count_until, key=lambda other: abs(other - time_ms))
            counts = self._count_until[base]
        if base != time_ms:
            between = np.nan_to_num(self._rollup_at("count", min(base, time_ms), max(base, time_ms)))
            counts = counts + (between if base < time_ms else -between)
            with self._lock:
                self._count_until[time_ms] = counts
        return counts

    def sample_count(self, rows: Sequence[int], start_ms: int, end_ms: int) -> int:
        """How many samples of some rows are in ``(start, end]``."""
        clean = [row for row in rows if row not in self.raw]
        count = int((self.count_until(end_ms) - self.count_until(start_ms))[clean].sum()) if clean else 0
        for row in rows:
            if row in self.raw:
                first, last = np.searchsorted(self.raw[row][0], [start_ms, end_ms], side="right")
                count += int(last - first)
        return count
