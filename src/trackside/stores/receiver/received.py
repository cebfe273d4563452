"""What was sent into segments: one input a day, and in each commit how far the write-ahead log is done with.

The unit of some foreign names is told by the size of their values only (``scale_of``). Until it is, their values go to
a table of their own, ``waiting``, as they came; the commit that settles a name moves them to the samples, and the
manifest remembers its factor for good.
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
from trackside.model import Input
from trackside.stores.embedded.layout import Mark, Received, Segment
from trackside.stores.embedded.order import Ids, Times, Values, arranged
from trackside.stores.embedded.rows import Kept, objects
from trackside.stores.embedded.samples import SampleBatch, Spans
from trackside.stores.embedded.tables import ORDER, quoted
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.arrivals import PATH, Arrivals, Arrived

WAIT_S = 86400.0
"""How long the values of a foreign name wait, at most, before the largest of them settles its unit."""
_Rows = tuple[Ids, Times, Values]
"""Number of the series, time, value in our unit."""
_NONE: _Rows = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64)


@dataclass(slots=True)
class _Waiting(UnitBySize):
    """A name whose unit isn't settled. ``since``: when its first value was written, POSIX seconds."""

    since: float = 0.0

    @property
    def is_overdue(self) -> bool:
        """Whether it has waited long enough."""
        return time.time() - self.since > WAIT_S


@dataclass(slots=True)
class _Change:
    """What a commit changes: the day's input, and segments."""

    day: Kept
    added: list[Segment] = field(default_factory=list)
    removed: list[Segment] = field(default_factory=list)


class ReceivedSamples:
    """Writes what arrives through one writer. After a StoreError, :meth:`reset` and give it the same again."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._of: Arrivals | None = None
        self._numbers: Ids = np.empty(0, dtype=np.int32)
        """Our curve -> the number of its series, of the arrivals that came last."""
        self._day: tuple[Kept, Segment] | None = None
        """The day's input, and the segment of its row."""
        self.waiting: Mapping[str, int] = {}
        """Names whose unit isn't settled, and how many values of each wait. Any thread may ask."""
        self._load()

    def reset(self) -> None:
        """Know only what is committed."""
        self._writer.forget_numbers()
        self._of = None
        self._load()

    def _load(self) -> None:
        snapshot = self._writer.snapshot()
        found = snapshot.arrays(
            f"SELECT series, max(last_ms) AS last_ms FROM {snapshot.table('spans')} WHERE count > 0 GROUP BY series"
        )
        self._last_ms = np.full(self._writer.manifest.next_series, np.iinfo(np.int64).min)
        self._last_ms[found["series"]] = found["last_ms"]
        peak = "coalesce(max(value) FILTER (isfinite(value)), 0)"
        self._waiting: dict[str, _Waiting] = {}
        for name, top, count in snapshot.rows(
            f"SELECT name, {peak}, count(*) FROM {snapshot.table('waiting')} GROUP BY name"
        ):
            known = translate(name, {})
            since = self._writer.manifest.received.since.get(name, time.time())
            self._waiting[name] = _Waiting(known.guess if known else "", max(top, 0.0), count, since)
        self._tell()

    def _tell(self) -> None:
        self.waiting = {name: each.count for name, each in self._waiting.items()}

    def flush(self, arrived: Arrived, mark: Mark, bytes_: int, oldest_ms: int | None = None) -> Counter[str]:
        """Write samples, and commit that the log is done with up to ``mark``. ``bytes_``: of the bodies they came in;
        ``oldest_ms``: samples up to then are kept as minutes only, so no more can be added. Gives why samples were
        left out. Raises StoreError."""
        writer, left_out = self._writer, Counter[str]()
        if not len(arrived.values):
            writer.replace((), (), received=msgspec.structs.replace(writer.manifest.received, mark=mark))
            return left_out
        change = self._begun()
        of_foreign = self._numbered(arrived)
        known = arrived.foreign
        places, times_ms, raw = usable_samples(
            known, arrived.places, arrived.times_ms, arrived.values, left_out, oldest_ms=oldest_ms
        )
        factors = dict(writer.manifest.received.factors)
        units = known["unit"][places]
        settled = self._settled(arrived, factors, units, raw)
        factors |= settled
        scales = np.array([factors.get(name, np.nan) for name, _ in arrived.units] + [1.0])  # -1: the last
        scale = known["scale"][places] * scales[units]
        here = ~np.isnan(scale)
        ready = places[here]
        values, good = scaled(raw[here], scale[here], known["low"][ready], known["high"][ready])
        left_out["implausible"] += int((~good).sum())
        now: _Rows = of_foreign[ready][good], times_ms[here][good], values[good]
        if (~here).any():
            at = ~here
            change.added.append(
                self._wait(arrived, change.day.id, places[at], of_foreign[places[at]], times_ms[at], raw[at])
            )
        self._finish(now, settled, change, left_out, mark, bytes_)
        return left_out

    def settle(self) -> Counter[str]:
        """Settle the names that have waited long enough, though nothing comes any more. Gives why samples were left
        out. Raises StoreError."""
        left_out: Counter[str] = Counter()
        settled = {name: waiting.factor for name, waiting in self._waiting.items() if waiting.is_overdue}
        if settled:
            self._finish(_NONE, settled, self._begun(), left_out, self._writer.manifest.received.mark)
        return left_out

    def _finish(
        self,
        now: _Rows,
        settled: Mapping[str, float],
        change: _Change,
        left_out: Counter[str],
        mark: Mark,
        bytes_: int = 0,
    ) -> None:
        """Write rows and those that are settled, and commit."""
        rows = self._distinct([now, *self._released(settled, change, left_out)], left_out)
        if len(rows[0]):
            change.added += self._written(rows, change.day)
        since = {name: each.since for name, each in self._waiting.items() if name not in settled}
        factors = {**self._writer.manifest.received.factors, **settled}
        row = replace(change.day.row, rows=change.day.row.rows + len(rows[0]), bytes=change.day.row.bytes + bytes_)
        day = replace(change.day, row=row, read_at=time.time())
        self._day = day, self._writer.grow(day, change.added, change.removed, Received(mark, factors, since))
        for name in settled:
            self._waiting.pop(name, None)
        self._tell()
        self._seen(rows)

    # -- series and units

    def _numbered(self, arrived: Arrived) -> Ids:
        """The number of each foreign series' own curve."""
        numbers = self._writer.numbers
        if arrived.of is not self._of:
            self._of, self._numbers = arrived.of, np.empty(0, dtype=np.int32)
            self._writer.forget_numbers()  # those of series that are met no longer
            numbers = self._writer.numbers
        if tail := arrived.series[len(self._numbers) :]:
            numbers.begin()
            self._numbers = np.concatenate([self._numbers, numbers.of(tail)])
            numbers.begin()
        found: Ids = self._numbers[arrived.foreign["ours"]]
        return found

    def _settled(self, arrived: Arrived, factors: Mapping[str, float], units: Ids, raw: Values) -> dict[str, float]:
        """The factors of names whose unit can be told from now on. ``factors``: those known by then."""
        for unit, (name, guess) in enumerate(arrived.units):
            values = raw[units == unit] if name not in factors else raw[:0]
            if len(values):
                self._waiting.setdefault(name, _Waiting(guess, since=time.time())).observe(values)
        return {
            name: waiting.factor for name, waiting in self._waiting.items() if waiting.is_settled or waiting.is_overdue
        }

    def _wait(self, arrived: Arrived, input_: int, places: Ids, series: Ids, times_ms: Times, raw: Values) -> Segment:
        """Write values whose unit isn't known as they came."""
        found = arranged(series, times_ms, raw)
        order = slice(None) if found.order is None else found.order
        words = [name for name, _ in arrived.units]
        metrics = [each.metric for each in arrived.series]
        foreign = arrived.foreign[places[order]]
        columns = {
            "name": objects(words[unit] for unit in foreign["unit"].tolist()),
            "metric": objects(metrics[curve] for curve in foreign["ours"].tolist()),
            "series": found.groups,
            "time_ms": found.times,
            "value": found.values,
            "input": np.full(len(found.groups), input_, dtype=np.int32),
        }
        return self._writer.segment("waiting", columns)

    def _released(self, settled: Mapping[str, float], change: _Change, left_out: Counter[str]) -> list[_Rows]:
        """The values that waited for these names; what waits for others is written anew."""
        old = self._writer.manifest.of("waiting")
        if not settled or not old:
            return []
        snapshot = self._writer.snapshot()
        source, moved = snapshot.source("waiting", old), []
        for name, factor in settled.items():
            for (metric,) in snapshot.rows(f"SELECT DISTINCT metric FROM {source} WHERE name = ?", [name]):
                found = snapshot.arrays(
                    f"SELECT series, time_ms, value FROM {source} WHERE name = ? AND metric = ?", [name, metric]
                )
                known = translate(name, {})
                scale = factor * (known.scale if known else 1.0)
                values, good = scaled(found["value"], scale, METRICS[metric].low, METRICS[metric].high)
                left_out["implausible"] += int((~good).sum())
                moved.append((found["series"][good], found["time_ms"][good], values[good]))
                for number in np.unique(found["series"]).tolist():
                    self._writer.numbers.metrics.setdefault(number, metric)
        change.removed += old
        names = ", ".join(map(quoted, settled))
        rest = f"SELECT * FROM {source} WHERE name NOT IN ({names}) ORDER BY {ORDER['waiting']}"
        change.added += self._writer.selected("waiting", rest)
        return moved

    # -- samples

    def _distinct(self, parts: list[_Rows], left_out: Counter[str]) -> _Rows:
        """By series and time, each sample once: neither twice in these nor beside the same in the store."""
        series, times_ms, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        if not len(series):
            return series, times_ms, values
        found = arranged(series, times_ms, values)
        series, times_ms, values = found.groups, found.times, found.values
        again = np.zeros(len(series), dtype=bool)
        again[1:] = (series[1:] == series[:-1]) & (times_ms[1:] == times_ms[:-1]) & (values[1:] == values[:-1])
        top = int(series.max())
        if top >= len(self._last_ms):
            more = np.full(top + 1024 - len(self._last_ms), np.iinfo(np.int64).min)
            self._last_ms = np.concatenate([self._last_ms, more])
        late = np.flatnonzero(times_ms <= self._last_ms[series])
        if len(late):
            again[late[self._in_store(series[late], times_ms[late], values[late])]] = True
        left_out["duplicate"] += int(again.sum())
        return series[~again], times_ms[~again], values[~again]

    def _in_store(self, series: Ids, times_ms: Times, values: Values) -> NDArray[np.int64]:
        """Which of these samples the store has, to the last bit."""
        snapshot = self._writer.snapshot()
        first, last = int(times_ms.min()), int(times_ms.max())
        source = snapshot.table("samples", times_ms=(first - 1, last))
        columns = {"place": np.arange(len(series)), "series": series, "time_ms": times_ms, "value": values}
        self._writer.connection.register("late", columns)
        try:
            found = snapshot.arrays(
                "SELECT place FROM late SEMI JOIN (SELECT series, time_ms, value FROM"
                f" {source} WHERE time_ms BETWEEN {first} AND {last}) USING (series, time_ms, value)"
            )
        finally:
            self._writer.connection.unregister("late")
        places: NDArray[np.int64] = found["place"]
        return places

    def _written(self, rows: _Rows, day: Kept) -> list[Segment]:
        writer = self._writer
        batch = SampleBatch([(*rows, day.id)], len(rows[0]))
        segment, spans = batch.written(writer.connection, writer.directory, writer.numbers.metrics)
        return [segment, writer.segment("spans", _span_columns(spans, day.path))]

    def _seen(self, rows: _Rows) -> None:
        series, times_ms, _ = rows
        if len(series):
            ends = np.append(np.flatnonzero(series[1:] != series[:-1]), len(series) - 1)
            self._last_ms[series[ends]] = np.maximum(self._last_ms[series[ends]], times_ms[ends])

    # -- the input

    def _begun(self) -> _Change:
        """A change of the day's input; of another one once the segment of its row was merged with others'."""
        day = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d")
        if self._day is not None:
            kept, segment = self._day
            if kept.label == day and segment in self._writer.manifest.segments:
                return _Change(kept, removed=[segment])
        row = Input(f"{PATH}/{day}", "received", "read", "samples that were sent", plane="metric")
        return _Change(Kept(self._writer.begin(), row, PATH, day, planes=("metric",)))  # a store may be moved


def _span_columns(spans: Spans, path: str) -> Mapping[str, NDArray[np.generic]]:
    """Spans of received samples: their place is the series' number."""
    none = np.zeros(len(spans.series), dtype=np.int64)
    return {
        "input": spans.inputs,
        "series": spans.series,
        "first_ms": spans.first_ms,
        "last_ms": spans.last_ms,
        "count": spans.count,
        "path": objects([path] * len(none)),
        "line": spans.series.astype(np.int64),
        "offset": none,
        "length": none,
    }
