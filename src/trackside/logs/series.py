"""The distinct logged steps that one parser read in one file: without copies by ranks and redraws, split at
restarts, bounded.

A *series* is what one parser read in one file. Within it, the same step printed again is the same point; a step far
below the last one starts a new *part*: the process started over, or a second process' output follows the first one's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from trackside.logs.line import split_label
from trackside.logs.pattern import redrawing_ids
from trackside.model import Event, EventRole, Plane, Position, Scalar

MAX_OPEN_POINTS = 64
"""Distinct points that stay open: ranks print a step within this many points of each other."""
MAX_LAG_POINTS = 2
"""Distinct points by which one of several unlabeled writers may lag; more is a restart."""
RESTART_BYTES = 2_000
"""A process that starts over prints more than this before its first point; ranks in step print less between two
points."""
MAX_PINNED_POINTS = 5_000
"""First non-finite points of a stretch that are never thinned out."""
MAX_TEXT_CHARS = 400
"""Characters of a point's line that are kept."""

_RANK = re.compile(r"\brank\s?[:=]?\s?(\d{1,6})\b|\[[Rr](\d{1,6})\]", re.IGNORECASE)
_SRUN = re.compile(r" {0,5}\d{1,6}: ")
_LABEL_STARTS = tuple("[( 0123456789")
_LOCAL = re.compile(r"\d+")


@dataclass(slots=True)
class _OpenPoint:
    """A point that a second print may still complete."""

    event: Event
    ordinal: int
    writer: str
    priority: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A point and its state in the series; a second print could still complete one that is ``open``."""

    event: Event
    ordinal: int
    pinned: bool
    open: bool


class SeriesState(msgspec.Struct, frozen=True, rename={"count": "seen"}):
    """A series without its points, as stores keep it; the names in its JSON are a file format."""

    parser: str
    count: int
    with_loss: bool
    part: int
    rank: int
    stride: int


_PackedPoint = tuple[int, bool, float, "bytes | Callable[[], Event]"]
"""(ordinal in the series, never thinned out, loss or nan, the event as msgpack or a function that loads it)"""
Extent = tuple[float, float, float, float]
"""Lowest and highest step, first and last time; inverted infinities if none is known."""


class StoredPoint(NamedTuple):
    """A point that is stored elsewhere: what is needed to choose among series, and a function that loads the event."""

    ordinal: int
    pinned: bool
    open: bool
    loss: float | None
    step: float | None
    time: float | None
    event: Callable[[], Event]


_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _WriterState:
    """Where one writer of a series is: part, last step, byte offset of its last point."""

    part: int = 0
    step: float = -math.inf
    offset: int = 0


@dataclass(slots=True)
class PointSeries:
    """The distinct points that one parser read in one file, in order."""

    path: str
    parser: str
    with_loss: bool = False
    count: int = 0
    part: int = 0
    rank: int = 1 << 30
    _recent: dict[float, _OpenPoint] = field(default_factory=dict)
    _packed: list[_PackedPoint] = field(default_factory=list)
    _writers: dict[str, _WriterState] = field(default_factory=dict)
    _stride: int = 1
    _last_step: float = -math.inf
    _first_step: float | None = None
    _anonymous: _OpenPoint | None = None
    _extent: Extent | None = None
    _min_loss: float = math.inf
    _max_loss: float = -math.inf
    _was_finite: bool = True
    _pin_count: int = 0
    _epoch: float | None = None
    _last_epoch: int | None = None
    """Of the last point without a step."""
    _epoch_offsets: dict[float, int] = field(default_factory=dict)
    _step_gap: float = 0.0

    def add(self, event: Event) -> None:
        """Take one raw point: a new one, a copy of a recent one, or the first of a new part."""
        writer, priority = _writer_of(event)
        self.rank = min(self.rank, priority)
        step = self._step_over_epochs(event, writer)
        if step is None:
            self._add_without_step(event, writer, priority)
            return
        printed = event.fields.get("step")
        if step != printed or event.fields.get("epoch_steps") is not None:
            event = replace(event, fields={**event.fields, "step": step, "step_in_epoch": printed})
        writer_state = self._writers.setdefault(writer, _WriterState())
        open_point = self._recent.get(step)
        if self._is_restart(step, open_point, writer_state, event):
            self._new_part()
            open_point = None
        writer_state.part, writer_state.step, writer_state.offset = self.part, step, event.at.offset
        if open_point is not None:
            self._complete(open_point, event, writer, priority)
        elif step > self._last_step or self._first_step is None:
            self._append(event, writer, priority, step)

    def _step_over_epochs(self, event: Event, writer: str) -> float | None:
        """The step counted over all epochs, for loops that count from the start of each epoch."""
        step, epoch = event.fields.get("step"), event.fields.get("epoch")
        if not isinstance(step, (int, float)) or not math.isfinite(step):
            return None
        if not isinstance(epoch, int):
            return step
        if self._epoch is None or epoch < min(self._epoch_offsets, default=epoch):
            self._epoch, self._epoch_offsets = epoch, {epoch: 0}
        elif epoch > self._epoch:
            offset = self._epoch_offsets[self._epoch]
            last_in_epoch = self._last_step - offset
            if step <= last_in_epoch and last_in_epoch > -math.inf:
                epoch_steps = event.fields.get("epoch_steps")
                epoch_steps = epoch_steps if isinstance(epoch_steps, int) else None
                if epoch_steps is not None:
                    offset += epoch_steps * (epoch - int(self._epoch))
                else:  # the epoch is at least as long as the count reached in it
                    offset += int(last_in_epoch) + (int(self._step_gap) if step == 0 else 0)
            self._epoch, self._epoch_offsets[epoch] = epoch, offset
        offset = self._epoch_offsets.get(epoch, 0)
        return step + offset

    def _is_restart(self, step: float, open_point: _OpenPoint | None, writer_state: _WriterState, event: Event) -> bool:
        if self._first_step is None or writer_state.part != self.part or step >= writer_state.step:
            return False
        count_ahead = sum(1 for other in self._recent if other > step)
        if count_ahead > MAX_LAG_POINTS:
            return True
        is_far = event.at.offset - writer_state.offset > RESTART_BYTES
        return (
            is_far
            and step <= self._first_step
            and (open_point is None or event.fields.get("loss") != open_point.event.fields.get("loss"))
        )

    def _new_part(self) -> None:
        for open_point in list(self._recent.values())[-1:]:
            open_point.pinned = True
        self._close(0)
        self.part += 1
        self._last_step, self._first_step = -math.inf, None
        self._epoch, self._epoch_offsets = None, {}

    def _add_without_step(self, event: Event, writer: str, priority: int) -> None:
        last, epoch = self._anonymous, event.fields.get("epoch")
        if isinstance(epoch, int):
            if self._last_epoch is not None and epoch < self._last_epoch and not self._recent:
                self._new_part()
            self._last_epoch = epoch
        if last is not None and _same_print(last, event, writer):
            self._complete(last, event, writer, priority)
            return
        self._close(0)
        self._append(event, writer, priority, None)

    def _append(self, event: Event, writer: str, priority: int, step: float | None) -> None:
        open_point = _OpenPoint(
            event,
            self.count,
            writer,
            priority,
            pinned=self.count == 0 or (step is not None and self._first_step is None),
        )
        self.count += 1
        if step is None:
            self._anonymous = open_point
            return
        if self._anonymous is not None:
            self._pack(self._anonymous)
            self._anonymous = None
        if self._last_step > -math.inf:
            self._step_gap = step - self._last_step
        self._first_step = step if self._first_step is None else self._first_step
        self._last_step = step
        self._recent[step] = open_point
        if len(self._recent) > MAX_OPEN_POINTS:
            self._close(MAX_OPEN_POINTS - 8)

    def _complete(self, open_point: _OpenPoint, event: Event, writer: str, priority: int) -> None:
        """Merge a second print of a point: it fills fields that the first left out; a lower rank or a later drawing
        replaces it."""
        replaces = priority < open_point.priority or (
            priority == open_point.priority and self.parser in redrawing_ids() and writer == open_point.writer
        )
        winner, loser = (event, open_point.event) if replaces else (open_point.event, event)
        fields: dict[str, Scalar] = {**loser.fields, **winner.fields}
        if event.parser != open_point.event.parser or priority == open_point.priority:
            missing = {name: value for name, value in event.fields.items() if name not in open_point.event.fields}
            fields = {**missing, **fields}
        open_point.event = replace(winner, fields=fields)
        open_point.priority = min(open_point.priority, priority)

    def _close(self, keep: int) -> None:
        """Pack all open points except the newest ``keep`` (an open point without a step is the newest of all)."""
        while len(self._recent) > keep:
            step = next(iter(self._recent))
            self._pack(self._recent.pop(step))
        if keep == 0 and self._anonymous is not None:
            self._pack(self._anonymous)
            self._anonymous = None

    def _pack(self, open_point: _OpenPoint) -> None:
        event, pinned = open_point.event, open_point.pinned
        printed = event.fields.get("loss")
        loss = float(printed) if isinstance(printed, (int, float)) else math.nan
        if printed is not None:
            self.with_loss = True
            pinned = pinned or (self._was_finite and not math.isfinite(loss) and self._pin_count < MAX_PINNED_POINTS)
            self._pin_count += pinned
            self._was_finite = math.isfinite(loss)
        extreme = math.isfinite(loss) and (loss < self._min_loss or loss > self._max_loss)
        if extreme:
            self._min_loss, self._max_loss = min(self._min_loss, loss), max(self._max_loss, loss)
        if pinned or extreme or open_point.ordinal % self._stride == 0:
            fields = {**event.fields, "run_part": self.part} if self.part else dict(event.fields)
            self._packed.append((open_point.ordinal, pinned, loss, _pack_event(event, fields)))

    def thin(self) -> None:
        """Drop every second interior point, but neither the lowest nor the highest loss."""
        self._stride *= 2
        finite = [row for row in self._packed if math.isfinite(row[2])]
        extremes = {extreme_of(finite, key=lambda row: row[2])[0] for extreme_of in (min, max)} if finite else set()
        self._packed = [row for row in self._packed if row[1] or row[0] % self._stride == 0 or row[0] in extremes]

    @property
    def size(self) -> int:
        """The number of packed points."""
        return len(self._packed)

    def points(self) -> list[Event]:
        """All points, each part in the order of its steps."""
        open_points = [*self._recent.values()] + ([self._anonymous] if self._anonymous else [])
        rows = [self._row(ordinal, data) for ordinal, _, _, data in self._packed]
        for open_point in sorted(open_points, key=lambda point: point.ordinal):
            fields = {**open_point.event.fields, "run_part": self.part} if self.part else open_point.event.fields
            fields = {**fields, "ordinal": open_point.ordinal} if self._stride > 1 else fields
            rows.append(replace(open_point.event, fields=fields))
        return rows

    def _row(self, ordinal: int, data: bytes | Callable[[], Event]) -> Event:
        """The event of a packed point; in a thinned series its ``ordinal`` says how many points came before it."""
        event = self._load(data)
        return replace(event, fields={**event.fields, "ordinal": ordinal}) if self._stride > 1 else event

    def _load(self, data: bytes | Callable[[], Event]) -> Event:
        return _unpack_event(self.path, self.parser, data) if isinstance(data, bytes) else data()

    def stored_points(self) -> Iterator[SeriesPoint]:
        """All points with their state, to be stored elsewhere; :meth:`restored` loads them."""
        for ordinal, pinned, _, data in self._packed:
            yield SeriesPoint(self._load(data), ordinal, pinned, False)
        for open_point in self._open_points():
            yield SeriesPoint(open_point.event, open_point.ordinal, open_point.pinned, True)

    def state(self) -> SeriesState:
        """What is known about the series apart from its points."""
        return SeriesState(self.parser, self.count, self.with_loss, self.part, self.rank, self._stride)

    @classmethod
    def restored(cls, path: str, state: SeriesState, points: Sequence[StoredPoint]) -> PointSeries:
        """The series again; ``points`` are in the order of :meth:`stored_points`."""
        series = cls(path, state.parser, state.with_loss, state.count, state.part, state.rank)
        series._stride = state.stride
        for ordinal, pinned, still_open, loss, _, _, event in points:
            if still_open:
                series._recent[float(ordinal)] = _OpenPoint(event(), ordinal, "", state.rank, pinned)
            else:
                series._packed.append((ordinal, pinned, math.nan if loss is None else loss, event))
        steps, times = [point.step for point in points], [point.time for point in points if point.time is not None]
        known_steps = [step for step in steps if step is not None]
        if points and len(known_steps) == len(steps):
            infinity = math.inf
            series._extent = (
                min(known_steps),
                max(known_steps),
                min(times, default=infinity),
                max(times, default=-infinity),
            )
        return series

    @property
    def extent(self) -> Extent | None:
        """The steps and times between which its points lie; None unless it was restored and all its points have a
        step."""
        return self._extent

    @property
    def has_loss(self) -> bool:
        """Whether any point has a loss."""
        return self.with_loss or any("loss" in point.event.fields for point in self._open_points())

    def _open_points(self) -> Iterator[_OpenPoint]:
        yield from self._recent.values()
        if self._anonymous is not None:
            yield self._anonymous


def _same_print(last: _OpenPoint, event: Event, writer: str) -> bool:
    """Whether a point without a step repeats the one before it: another writer's print, or figures too exact to be
    equal by chance."""
    if last.event.fields != event.fields:
        return False
    norm = event.fields.get("grad_norm")
    exact = isinstance(norm, float) and math.isfinite(norm) and len(repr(norm)) > 8
    return exact or writer != last.writer


def _writer_of(event: Event) -> tuple[str, int]:
    """(writer's label, order of preference: lower ranks first) of a printed point."""
    text = event.text
    label = split_label(text, _SRUN.match(text) is not None)[1] if text[:1] in _LABEL_STARTS else ""
    if event.rank is not None:
        return label or f"rank{event.rank}", event.rank
    match = _RANK.search(text, 0, 120)
    if match is not None:
        number = int(match[1] or match[2])
        return label or f"rank{number}", number
    local = _LOCAL.search(label)
    return label, int(local[0]) if local else 0


def _pack_event(event: Event, fields: Mapping[str, Scalar]) -> bytes:
    position = event.at
    head = (
        position.line,
        position.offset,
        position.length,
        event.text[:MAX_TEXT_CHARS],
        event.time,
        event.rank,
        event.node,
    )
    try:
        return _encode((*head, fields))
    except OverflowError:  # an integer beyond 64 bits
        return _encode(
            (*head, {name: float(value) if isinstance(value, int) else value for name, value in fields.items()})
        )


def _unpack_event(path: str, parser: str, data: bytes) -> Event:
    line, offset, length, text, time, rank, node, fields = msgspec.msgpack.decode(data)
    plane: Plane = "log"
    return Event(
        "progress",
        Position(path, line, offset, length),
        plane,
        text,
        time,
        rank,
        node,
        EventRole.OBSERVATION,
        parser,
        fields,
    )
