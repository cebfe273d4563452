"""The series of one foreign name in a Prometheus-compatible server: how they are chosen, and when they were there.

What is held must be known to the millisecond, as a run's window may rest on it, and cheaply: samples are counted in
coarse windows, then in finer ones about the first and the last of each series, until there are few enough to be read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK_RANGES, Guess
from trackside.catalog.labels import OWNER, PLACE
from trackside.catalog.metrics import METRICS
from trackside.catalog.settling import UnitBySize, is_blank, may_hide_blanks, measured, scaled
from trackside.http.unanswered import Unanswered
from trackside.stores.curves import STEPS_S, Engine
from trackside.stores.prometheus import promql
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.matrix import Times, Values

FEW = 64
"""Samples of a series in a window up to which they are read, to find the first or the last."""
COARSE, FINER = 128, 32
"""Windows that a span is counted in at first, and that one of them is, to find where a series begins and ends."""
MOST_RAW = 1_000_000
"""Samples read at once."""
MOST_LOOKED_AT = 40_000_000
"""Samples of one name that are read to tell those that measured nothing from the others."""
Places = NDArray[np.intp]
_EXTREMES: tuple[Engine, ...] = ("min", "max", "sum")
_EDGES = ("tfirst", "tlast")
_ROLLUP = re.compile(rb',\s*"rollup":\s*"(\w+)"|"rollup":\s*"(\w+)",?')
"""The label by which VictoriaMetrics tells several roll-ups in one answer apart, in labels as JSON."""


def plain_label(label: str) -> str:
    """As :func:`trackside.catalog.dialect.translate` compares labels."""
    return label.lower().replace(".", "_")


def coarse_step(length_ms: int, windows: int) -> int:
    """A length in ms in which a span is counted in about so many windows."""
    least = length_ms / windows / 1000
    return next((step for step in STEPS_S if step >= 60 and step >= least), STEPS_S[-1]) * 1000


def spans_of(counts: Values, most: int) -> Iterator[tuple[int, int]]:
    """Stretches of windows that hold samples, each of about ``most`` samples or one window."""
    begin, size = 0, 0.0
    for place, count in enumerate(counts.tolist()):
        if size and (not count or size + count > most):
            yield begin, place
            size = 0.0
        if not size:
            begin = place
        size += count
    if size:
        yield begin, len(counts)


class Source:
    """All series of one foreign name that concern the run, in rows.

    ``labels``: as the server has them, without the name. ``curves``: which of our curves each is a part of.

    Once it was looked at, any thread may ask it.
    """

    def __init__(
        self, api: Api, name: str, metric: str, guess: Guess, span: tuple[int, int], scoped: bool,
        labels: Sequence[Mapping[str, str]], curves: Sequence[int], scales: Sequence[float],
    ) -> None:  # fmt: skip
        self._api, self.name, self._guess, self._scoped = api, name, guess, scoped
        self.metric = metric
        self._metric = METRICS[metric]
        self.server, self.labels, self.curves = api.name, labels, curves
        self.scales = np.array(scales)
        self._rows = {frozenset(each.items()): row for row, each in enumerate(labels)}
        self._found: dict[bytes, int] = {}
        self._selectors: dict[tuple[int, ...], tuple[str, ...]] = {}
        self.step_ms = coarse_step(span[1] - span[0], FINER if api.victoria else COARSE)
        self.end_ms = span[1]
        """Nothing after it is asked for: the newest samples may not all be there yet."""
        self.start_ms = span[0] // self.step_ms * self.step_ms
        self._coarse: Values | None = None
        self._lock = threading.Lock()
        self._until: dict[int, Values] = {}
        """Time -> how many samples each row has until then."""
        self.raw: dict[int, tuple[Times, Values]] = {}
        """Row -> samples, of those that hold some that measured nothing: these are rolled up here."""
        self.first_ms = np.zeros(len(labels), dtype=np.int64)
        self.last_ms = np.zeros(len(labels), dtype=np.int64)
        self.counts = np.zeros(len(labels), dtype=np.int64)
        """Of all samples held; 0 for a series that isn't."""

    # -- choosing

    def row(self, labels: bytes) -> int:
        """The row of a series of an answer; -1 for one that isn't here."""
        found = self._found.get(labels)
        if found is None:
            found = self._found[labels] = self._rows.get(frozenset(self._api.labels(labels).items()), -1)
        return found

    def selectors(self, rows: Sequence[int]) -> tuple[str, ...]:
        """What chooses these rows, by as few conditions as it takes; more may come with them."""
        key = tuple(rows)
        if key not in self._selectors:
            parts: dict[str, list[int]] = {}
            shared = self._shared(rows)
            for row in rows:
                parts.setdefault(shared if shared is not None else self._telling(row), []).append(row)
            site = self._api.matchers
            self._selectors[key] = tuple(
                promql.selector(self.name, (*site, *conditions))
                for label, chosen in parts.items()
                for conditions in self._conditions(label, chosen)
            )
        return self._selectors[key]

    def _shared(self, rows: Sequence[int]) -> str | None:
        """The label that all rows have and that tells them best from the others; empty: nothing need be told."""
        if not self._scoped and len(rows) == len(self.labels):
            return ""
        common = set.intersection(*(set(self.labels[row]) for row in rows))
        found = [label for label in sorted(common) if self._is_place(label)]
        costs = {label: self._cost(label, rows) for label in found}
        return min(found, key=lambda label: costs[label], default=None)

    def _cost(self, label: str, rows: Sequence[int]) -> tuple[int, int]:
        values = {self.labels[row][label] for row in rows}
        return sum(each.get(label) in values for each in self.labels) - len(rows), sum(map(len, values))

    def _is_place(self, label: str) -> bool:
        plain = plain_label(label)
        return plain in OWNER or plain in PLACE or self._api.options.labels.get(label) in ("node", "job")

    def _telling(self, row: int) -> str:
        return next((label for label in sorted(self.labels[row]) if self._is_place(label)), "")

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

    # -- asking

    def rolled(self, rows: Sequence[int], start_ms: int, end_ms: int, step_ms: int, how: Engine) -> Values:
        """(rows, windows) as the server has them, in its own unit."""
        out = np.full((len(rows), (end_ms - start_ms) // step_ms), np.nan)
        if not rows:
            return out
        places = np.full(len(self.labels) + 1, -1)  # the last: of what isn't here
        places[list(rows)] = np.arange(len(rows))
        for chosen in self.selectors(rows):
            query = promql.rollup(how, chosen, step_ms, self._api.closed)
            for page in self._api.rolled(query, start_ms, end_ms, step_ms, len(rows)):
                begin = (page.start_ms - start_ms) // step_ms
                for labels, values in page.series:
                    if (place := places[self.row(labels)]) >= 0:
                        out[place, begin : begin + page.width] = values
        return out

    def _windows(self, rows: Sequence[int], start_ms: int, end_ms: int, step_ms: int, how: Engine) -> Values:
        """(rows, windows) from a multiple of the step on; the last window is as long as what is left.

        Windows end at multiples of their step, as Thanos and Mimir move those there that don't.
        """
        whole_ms = end_ms // step_ms * step_ms
        found = self.rolled(rows, start_ms, whole_ms, step_ms, how)
        if whole_ms == end_ms:
            return found
        return np.column_stack([found, self._at(how, whole_ms, end_ms, rows)[list(rows)]])

    def _bound(self, place: int) -> int:
        """Where a coarse window begins, and the one before it ends."""
        return min(self.start_ms + place * self.step_ms, self.end_ms)

    def _at(self, how: Engine, start_ms: int, end_ms: int, rows: Sequence[int] | None = None) -> Values:
        """(all rows,) one value for ``(start, end]`` of each row, or of some."""
        out = np.full(len(self.labels), np.nan)
        rows = range(len(self.labels)) if rows is None else rows
        for chosen in self.selectors(rows):
            for labels, value in self._api.at(promql.rollup(how, chosen, end_ms - start_ms, self._api.closed), end_ms):
                if (row := self.row(labels)) >= 0:
                    out[row] = value
        return out

    def samples(self, rows: Collection[int], start_ms: int, end_ms: int) -> dict[int, tuple[Times, Values]]:
        """The samples of rows in ``(start, end]``, in the server's unit, in order of time."""
        found: dict[int, tuple[Times, Values]] = {}
        for chosen in self.selectors(sorted(rows)):
            for labels, (times, values) in self._api.samples(chosen, start_ms, end_ms):
                row = self.row(labels)
                if row in rows and len(times):
                    order = np.lexsort((values, times))
                    found[row] = times[order], values[order]
        return found

    def kept(self, rows: Sequence[int], start_ms: int, end_ms: int) -> Iterator[tuple[int, Times, Values]]:
        """(row, times, values) of the samples in ``(start, end]`` that measured something, in our unit, in pieces of
        not too many."""
        start_ms, end_ms = max(start_ms, self.start_ms), min(end_ms, self.end_ms)
        asked = [row for row in rows if row not in self.raw]
        length = max(1, self.end_ms - self.start_ms)
        many = sum(int(self.counts[row]) for row in asked)
        step = max(1, length * MOST_RAW // max(many, MOST_RAW))
        for begin in range(start_ms, end_ms, step) if asked else ():
            found = self.samples(asked, begin, min(begin + step, end_ms))
            for row, (times, values) in found.items():
                yield row, times, values * self.scales[row]
        for row in rows:
            if row in self.raw:
                times, values = self.raw[row]
                inside = (times > start_ms) & (times <= end_ms)
                yield row, times[inside], values[inside]

    # -- what is there

    def look(self) -> None:
        """Learn what is held: counts, the first and the last time, and what of it measured nothing."""
        rows = range(len(self.labels))
        if not self._api.victoria:
            sums = np.cumsum(self._counted(), axis=1)
            self._until = {self._bound(place + 1): sums[:, place] for place in range(sums.shape[1])}
            self.counts = sums[:, -1].astype(np.int64)
        low, high, total = self._extremes()
        self._until |= {self.start_ms: np.zeros(len(rows)), self.end_ms: self.counts.astype(np.float64)}
        if not self.counts.any():
            return
        self._sift(low, high, total)
        clean = np.array([row for row in rows if self.counts[row] and row not in self.raw], dtype=np.intp)
        for which, out in ((0, self.first_ms), (-1, self.last_ms)) if not self._api.victoria else ():
            self._edges(clean, self._counted()[clean], np.full(len(clean), self.start_ms), self.step_ms, which, out)
        for row, (row_times, _) in self.raw.items():
            if self.counts[row]:
                self.first_ms[row], self.last_ms[row] = row_times[0], row_times[-1]

    def _counted(self) -> Values:
        """(rows, coarse windows) how many samples there are."""
        if self._coarse is None:
            rows = range(len(self.labels))
            self._coarse = np.nan_to_num(self._windows(rows, self.start_ms, self.end_ms, self.step_ms, "count"))
        return self._coarse

    def _sift(self, low: Values, high: Values, total: Values) -> None:
        """Settle the unit, and find the rows that hold what is no measurement: their samples are kept here."""
        here = self.counts > 0
        blank = here & is_blank(low) & is_blank(high) & (high - low < 4)
        self.counts[blank] = 0
        here &= ~blank
        blanks = here & (is_blank(low) | is_blank(high) | ~np.isfinite(total))
        hidden = self._hidden(np.flatnonzero(here & ~blanks & may_hide_blanks(low, high)).tolist(), low, high)
        self._read([*np.flatnonzero(blanks).tolist(), *hidden])
        self._settle(high, here)
        with np.errstate(over="ignore", invalid="ignore"):
            least, most = low * self.scales, high * self.scales
        never = here & ((least > self._metric.high) | (most < self._metric.low))
        self.counts[never] = 0
        odd = here & ~never & ((least < self._metric.low) | (most > self._metric.high))
        self._read([row for row in np.flatnonzero(odd).tolist() if row not in self.raw])
        for row in list(self.raw):
            self._drop_implausible(row)

    def _extremes(self) -> tuple[Values, Values, Values]:
        """(rows,) least, largest and sum of what is held; VictoriaMetrics tells counts and the edges' times as well."""
        if not self._api.victoria:
            low, high, total = (self._at(how, self.start_ms, self.end_ms) for how in _EXTREMES)
            return low, high, total
        found = {how: np.full(len(self.labels), np.nan) for how in (*_EXTREMES, "count", *_EDGES)}
        for chosen in self.selectors(range(len(self.labels))):
            query = promql.extremes(tuple(found), chosen, self.end_ms - self.start_ms)
            for key, value in self._api.at(query, self.end_ms):
                told = _ROLLUP.search(key)
                how = "" if told is None else (told[1] or told[2]).decode().removesuffix("_over_time")
                if how in found and (row := self.row(_ROLLUP.sub(b"", key, count=1))) >= 0:
                    found[how][row] = value
        self.first_ms, self.last_ms = (np.rint(np.nan_to_num(found[how]) * 1000).astype(np.int64) for how in _EDGES)
        self.counts = np.nan_to_num(found["count"]).astype(np.int64)
        return found["min"], found["max"], found["sum"]

    def _hidden(self, rows: Sequence[int], low: Values, high: Values) -> set[int]:
        """Those rows that hold a blank among larger and smaller values; most that could hold none.

        VictoriaMetrics counts values by size; of other servers the samples are read in windows where one may hide.
        """
        if not rows:
            return set()
        if self._api.victoria:
            return self._with_blanks(rows, low, high)
        low, high = (self._windows(rows, self.start_ms, self.end_ms, self.step_ms, how) for how in ("min", "max"))
        found: set[int] = set()
        could = may_hide_blanks(low, high)
        for begin, end in spans_of(could.any(axis=0) * (self.counts[rows].sum() / could.shape[1]), MOST_RAW):
            chosen = {rows[place] for place in np.flatnonzero(could[:, begin:end].any(axis=1)).tolist()}
            samples = self.samples(chosen, self._bound(begin), self._bound(end))
            found.update(row for row, (_, values) in samples.items() if is_blank(values).any())
        return found

    def _with_blanks(self, rows: Sequence[int], low: Values, high: Values) -> set[int]:
        found: set[int] = set()
        for first, last in BLANK_RANGES:
            could = [row for row in rows if low[row] <= last and high[row] >= first]
            for chosen in self.selectors(could) if could else ():
                within = promql.window(chosen, self.end_ms - self.start_ms, self._api.closed)
                for labels, count in self._api.at(promql.between(within, first, last), self.end_ms):
                    if count and (row := self.row(labels)) in rows:
                        found.add(row)
        return found

    def _settle(self, high: Values, here: NDArray[np.bool_]) -> None:
        """Fix the unit by the largest value, where only that tells it."""
        if not self._guess:
            return
        unit = UnitBySize(self._guess)
        for _, values in self.raw.values():
            unit.observe(values)
        unit.observe(high[[row for row in np.flatnonzero(here).tolist() if row not in self.raw]])
        self.scales *= unit.factor

    def _read(self, rows: Iterable[int]) -> None:
        """Keep all samples of these rows, but those that stand for none."""
        wanted = set(rows)
        if not wanted:
            return
        chosen, counted = sorted(wanted), self._counted()
        if counted[chosen].sum() > MOST_LOOKED_AT:
            raise Unanswered("too_large", f"{self._api.name}: {self.name} holds values that stand for none among "
                             f"{counted[chosen].sum():,.0f} samples, more than are looked at")  # fmt: skip
        pieces: dict[int, list[tuple[Times, Values]]] = {row: [] for row in chosen}
        for begin, end in spans_of(counted[chosen].sum(axis=0), MOST_RAW):
            for row, (times, raw) in self.samples(wanted, self._bound(begin), self._bound(end)).items():
                values, blank = measured(raw, self._metric.diverges)
                pieces[row].append((times[~blank], values[~blank]))
        nothing = np.empty(0, np.int64), np.empty(0)
        for row, parts in pieces.items():
            parts = parts or [nothing]
            self.raw[row] = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _drop_implausible(self, row: int) -> None:
        times, values = self.raw[row]
        ours, good = scaled(values, self.scales[row], self._metric.low, self._metric.high)
        self.raw[row] = times[good], ours[good]
        self.counts[row] = int(good.sum())

    def _edges(
        self, rows: Places, counted: Values, starts: NDArray[np.int64], step_ms: int, which: int, out: Times
    ) -> None:
        """The first (0) or last (-1) time of each row, whose samples are counted in windows from its start on."""
        held = counted > 0
        places = held.argmax(axis=1) if which == 0 else held.shape[1] - 1 - held[:, ::-1].argmax(axis=1)
        there = held.any(axis=1)  # they may have been deleted meanwhile
        rows, starts, most = rows[there], (starts + places * step_ms)[there], counted.max(axis=1)[there]
        for start in np.unique(starts).tolist():
            chosen, size = rows[starts == start], most[starts == start].max()
            finer, end = coarse_step(step_ms, FINER), min(start + step_ms, self.end_ms)
            if size <= FEW or finer >= step_ms:
                for row, (times, _) in self.samples(set(chosen.tolist()), start, end).items():
                    out[row] = times[which]
            else:
                counts = np.nan_to_num(self._windows(chosen.tolist(), start, end, finer, "count"))
                self._edges(chosen, counts, np.full(len(chosen), start), finer, which, out)

    def until(self, time_ms: int) -> Values:
        """(rows,) how many samples each has until a time, of those that the server rolls up."""
        time_ms = min(max(time_ms, self.start_ms), self.end_ms)
        with self._lock:
            # From the nearest time known: a verdict asks for times near the ends.
            base = min(self._until, key=lambda other: abs(other - time_ms))
            known = self._until[base]
        if base != time_ms:
            between = np.nan_to_num(self._at("count", min(base, time_ms), max(base, time_ms)))
            known = known + (between if base < time_ms else -between)
            with self._lock:
                self._until[time_ms] = known
        return known

    def used(self, rows: Sequence[int], start_ms: int, end_ms: int) -> int:
        """How many samples of some rows are in ``(start, end]``."""
        clean = [row for row in rows if row not in self.raw]
        count = int((self.until(end_ms) - self.until(start_ms))[clean].sum()) if clean else 0
        for row in rows:
            if row in self.raw:
                first, last = np.searchsorted(self.raw[row][0], [start_ms, end_ms], side="right")
                count += int(last - first)
        return count
