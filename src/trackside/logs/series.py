"""The distinct logged steps that one parser read in one file: without copies by ranks and redraws, split at
restarts, bounded.

A *series* is what one parser read in one file. Within it, the same step printed again is the same point; a step far
below the last one starts a new *part*: the process started over, or a second process' output follows the first one's.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from trackside.logs.line import split_label
from trackside.logs.pattern import redrawing_ids
from trackside.logs.stored_series import Extent, SeriesPoint, SeriesState, StoredPoint, pack_event, unpack_event
from trackside.model import Event, Scalar

MAX_OPEN_POINTS = 64
"""Distinct points that stay open: ranks print a step within this many points of each other."""
MAX_LAG_POINTS = 2
"""Distinct points by which one of several unlabeled writers may lag; a larger lag is a restart."""
RESTART_BYTES = 2_000
"""A process that starts over prints more than this before its first point; ranks in step print less between two
points."""
MAX_PINNED_POINTS = 5_000
"""First non-finite points of a stretch that are never thinned out."""

MIN_NORM_CHARS, MIN_LOSS_CHARS = 9, 15
"""Length of a gradient norm and of a loss from which equal ones are the same print; losses of 16 bits have fewer."""

REPLACES = "replaces"
"""Field of a raw point whose loss has a more specific name than the one that its writer printed before at the same place."""

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
    """Label of the writer that printed it first."""
    priority: int
    """Lowest rank that printed it: its figures are taken."""
    pinned: bool = False
    """Whether it is never thinned out."""


_PackedPoint = tuple[int, bool, float, "bytes | Callable[[], Event]"]
"""(ordinal in the series, never thinned out, loss or nan, the event as msgpack or a function that loads it)"""


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
    has_packed_loss: bool = False
    """Whether a point that is no longer open has a loss."""
    count: int = 0
    """Points added, including those thinned out."""
    part: int = 0
    """Number of the last part."""
    rank: int = 1 << 30
    """Lowest rank that printed a point; 0 for a writer without one."""
    _open_by_step: dict[float, _OpenPoint] = field(default_factory=dict)
    """Open points, the oldest first."""
    _packed: list[_PackedPoint] = field(default_factory=list)
    _writers: dict[str, _WriterState] = field(default_factory=dict)
    _stride: int = 1
    """Distance in order of the points that are kept, besides the pinned ones."""
    _last_step: float = -math.inf
    _first_step: float | None = None
    _stepless: _OpenPoint | None = None
    """The open point without a step."""
    _extent: Extent | None = None
    _min_loss: float = math.inf
    _max_loss: float = -math.inf
    _was_finite: bool = True
    _pin_count: int = 0
    _epoch: float | None = None
    _last_epoch: int | None = None
    """Epoch of the last point without a step."""
    _epoch_offsets: dict[float, int] = field(default_factory=dict)
    """Epoch -> the steps of those before it in this part."""
    _step_gap: float = 0.0
    """Difference of the last two steps."""
    _has_closed_epoch: bool = False
    """Whether an epoch's summary came after the last step."""
    _counts_in_epoch: bool | None = None
    """Whether the steps started over behind the first such summary; if not, a later start is another run's."""
    _closed_steps: int = 0
    """The steps of the epochs that such summaries closed, of a loop that counts from the start of each."""
    _latest_steps: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LAG_POINTS + 1))
    """The newest steps of this part."""

    def add(self, event: Event) -> None:
        """Add one raw point: a new one, a copy of a recent one, or the first of a new part."""
        writer, priority = _writer_of(event)
        self.rank = min(self.rank, priority)
        replaces = bool(event.fields.get(REPLACES))
        if replaces:
            event = replace(event, fields={name: value for name, value in event.fields.items() if name != REPLACES})
            if self._replace_last(event, writer):
                return
        step = self._step_over_epochs(event, writer)
        if step is None:
            self._add_without_step(event, writer, priority)
            return
        writer_state = self._writers.setdefault(writer, _WriterState())
        open_point = self._open_by_step.get(step)
        if self._is_restart(step, open_point, writer_state, event):
            self._begin_part()
            open_point, step = None, self._step_over_epochs(event, writer) or 0
        writer_state.part, writer_state.step, writer_state.offset = self.part, step, event.at.offset
        printed = event.fields.get("step")
        is_in_epoch = step != printed or event.fields.get("epoch_steps") is not None
        if is_in_epoch and "step_in_epoch" not in event.fields:
            event = replace(event, fields={**event.fields, "step": step, "step_in_epoch": printed})
        elif step != printed:
            event = replace(event, fields={**event.fields, "step": step})
        if open_point is not None and replaces and open_point.writer == writer:
            open_point.event = replace(event, fields={**open_point.event.fields, **event.fields})
        elif open_point is not None:
            self._merge(open_point, event, writer, priority)
        elif step > self._last_step or self._first_step is None:
            self._append(event, writer, priority, step)

    def _replace_last(self, event: Event, writer: str) -> bool:
        """Put the point in the place of the writer's last one, unless that is closed."""
        last = self._stepless if event.fields.get("step") is None else None
        if last is None or last.writer != writer or last.event.fields.get("epoch") != event.fields.get("epoch"):
            return False
        last.event = replace(event, fields={**last.event.fields, **event.fields})
        return True

    def _step_over_epochs(self, event: Event, writer: str) -> float | None:
        """The step counted over all epochs, for loops that count from the start of each epoch; None without a step."""
        step, epoch = event.fields.get("step"), event.fields.get("epoch")
        if not isinstance(step, (int, float)) or not math.isfinite(step):
            return None
        if not isinstance(epoch, int):
            last_in_epoch = self._last_step - self._closed_steps
            starts_over = self._has_closed_epoch and 2 * step <= last_in_epoch < math.inf
            if self._has_closed_epoch and self._counts_in_epoch is None:
                self._counts_in_epoch = starts_over
            if starts_over and self._counts_in_epoch:
                self._closed_steps += int(last_in_epoch) + (int(self._step_gap) if step == 0 else 0)
            self._has_closed_epoch = False
            return step + self._closed_steps
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
                else:  # the epoch is at least as long as the count reached in it, and has one step at least
                    offset += int(last_in_epoch) + (int(self._step_gap) or 1 if step == 0 else 0)
            self._epoch, self._epoch_offsets[epoch] = epoch, offset
        offset = self._epoch_offsets.get(epoch, 0)
        return step + offset

    def _is_restart(self, step: float, open_point: _OpenPoint | None, writer_state: _WriterState, event: Event) -> bool:
        """Whether a step below the writer's last one is a process that starts over, not a rank that lags."""
        if self._first_step is None or writer_state.part != self.part or step >= writer_state.step:
            return False
        # a record with an epoch that was done is another process's copy
        steps = self._open_by_step if isinstance(event.fields.get("epoch"), int) else self._latest_steps
        if sum(1 for other in steps if other > step) > MAX_LAG_POINTS:
            return True
        is_far = event.at.offset - writer_state.offset > RESTART_BYTES
        return (
            is_far
            and step <= self._first_step
            and (open_point is None or event.fields.get("loss") != open_point.event.fields.get("loss"))
        )

    def _begin_part(self) -> None:
        """Begin a part: its steps are not compared with those before."""
        for open_point in list(self._open_by_step.values())[-1:]:
            open_point.pinned = True
        self._close(0)
        self.part += 1
        self._last_step, self._first_step = -math.inf, None
        self._latest_steps.clear()
        self._epoch, self._epoch_offsets = None, {}
        self._has_closed_epoch, self._counts_in_epoch, self._closed_steps = False, None, 0

    def _add_without_step(self, event: Event, writer: str, priority: int) -> None:
        last, epoch = self._stepless, event.fields.get("epoch")
        if isinstance(epoch, int):
            if self._last_epoch is not None and epoch < self._last_epoch and not self._open_by_step:
                self._begin_part()
            self._last_epoch, self._has_closed_epoch = epoch, True
        if last is not None and _is_same_print(last, event, writer):
            self._merge(last, event, writer, priority)
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
            self._stepless = open_point
            return
        if self._stepless is not None:
            self._pack(self._stepless)
            self._stepless = None
        if self._last_step > -math.inf:
            self._step_gap = step - self._last_step
        self._first_step = step if self._first_step is None else self._first_step
        self._last_step = step
        self._latest_steps.append(step)
        self._open_by_step[step] = open_point
        if len(self._open_by_step) > MAX_OPEN_POINTS:
            self._close(MAX_OPEN_POINTS - 8)

    def _merge(self, open_point: _OpenPoint, event: Event, writer: str, priority: int) -> None:
        """Merge a second print of a point: it fills fields that the first left out; a lower rank or a later drawing
        replaces it, but no later drawing the first loss of all."""
        replaces = priority < open_point.priority or (
            priority == open_point.priority
            and self.parser in redrawing_ids()
            and writer == open_point.writer
            and not (open_point.ordinal == 0 and _is_finite_loss(open_point.event))
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
        while len(self._open_by_step) > keep:
            step = next(iter(self._open_by_step))
            self._pack(self._open_by_step.pop(step))
        if keep == 0 and self._stepless is not None:
            self._pack(self._stepless)
            self._stepless = None

    def _pack(self, open_point: _OpenPoint) -> None:
        """Close a point: keep it as bytes if it is pinned, an extreme of the loss, or not thinned out."""
        event, pinned = open_point.event, open_point.pinned
        printed = event.fields.get("loss")
        loss = float(printed) if isinstance(printed, (int, float)) else math.nan
        if printed is not None:
            self.has_packed_loss = True
            pinned = pinned or (self._was_finite and not math.isfinite(loss) and self._pin_count < MAX_PINNED_POINTS)
            self._pin_count += pinned
            self._was_finite = math.isfinite(loss)
        is_extreme = math.isfinite(loss) and (loss < self._min_loss or loss > self._max_loss)
        if is_extreme:
            self._min_loss, self._max_loss = min(self._min_loss, loss), max(self._max_loss, loss)
        if pinned or is_extreme or open_point.ordinal % self._stride == 0:
            fields = {**event.fields, "run_part": self.part} if self.part else dict(event.fields)
            self._packed.append((open_point.ordinal, pinned, loss, pack_event(event, fields)))

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
        open_points = [*self._open_by_step.values()] + ([self._stepless] if self._stepless else [])
        rows = [self._load_point(ordinal, data) for ordinal, _, _, data in self._packed]
        for open_point in sorted(open_points, key=lambda point: point.ordinal):
            fields = {**open_point.event.fields, "run_part": self.part} if self.part else open_point.event.fields
            fields = {**fields, "ordinal": open_point.ordinal} if self._stride > 1 else fields
            rows.append(replace(open_point.event, fields=fields))
        return rows

    def _load_point(self, ordinal: int, data: bytes | Callable[[], Event]) -> Event:
        """The event of a packed point; in a thinned series its ``ordinal`` says how many points came before it."""
        event = self._load_event(data)
        return replace(event, fields={**event.fields, "ordinal": ordinal}) if self._stride > 1 else event

    def _load_event(self, data: bytes | Callable[[], Event]) -> Event:
        return unpack_event(self.path, self.parser, data) if isinstance(data, bytes) else data()

    def points_to_store(self) -> Iterator[SeriesPoint]:
        """All points with their state, for a store; :meth:`restore` makes a series of them again."""
        for ordinal, pinned, _, data in self._packed:
            yield SeriesPoint(self._load_event(data), ordinal, pinned, False)
        for open_point in self._open_points():
            yield SeriesPoint(open_point.event, open_point.ordinal, open_point.pinned, True)

    def state(self) -> SeriesState:
        """What is known about the series apart from its points."""
        return SeriesState(self.parser, self.count, self.has_packed_loss, self.part, self.rank, self._stride)

    @classmethod
    def restore(cls, path: str, state: SeriesState, points: Sequence[StoredPoint]) -> PointSeries:
        """The series that a store kept; ``points`` are in the order of :meth:`points_to_store`."""
        series = cls(path, state.parser, state.has_packed_loss, state.count, state.part, state.rank)
        series._stride = state.stride
        for ordinal, pinned, is_open, loss, _, _, event in points:
            if is_open:
                series._open_by_step[float(ordinal)] = _OpenPoint(event(), ordinal, "", state.rank, pinned)
            else:
                series._packed.append((ordinal, pinned, math.nan if loss is None else loss, event))
        steps, times = [point.step for point in points], [point.time for point in points if point.time is not None]
        known_steps = [step for step in steps if step is not None]
        if points and len(known_steps) == len(steps):
            series._extent = Extent(
                min(known_steps), max(known_steps), min(times, default=math.inf), max(times, default=-math.inf)
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
        return self.has_packed_loss or any("loss" in point.event.fields for point in self._open_points())

    def _open_points(self) -> Iterator[_OpenPoint]:
        yield from self._open_by_step.values()
        if self._stepless is not None:
            yield self._stepless


def _is_finite_loss(event: Event) -> bool:
    """Whether a drawing shows a loss, not what a bar shows before the first step."""
    loss = event.fields.get("loss")
    return isinstance(loss, (int, float)) and math.isfinite(loss) and loss != 0


def _is_same_print(last: _OpenPoint, event: Event, writer: str) -> bool:
    """Whether a point without a step repeats the one before it: another writer's print, or figures too exact to be
    equal by chance."""
    fields, last_fields = ({**point.fields, "text": None} for point in (event, last.event))
    if last_fields != fields:
        return False
    digits = (("grad_norm", MIN_NORM_CHARS), ("loss", MIN_LOSS_CHARS))
    exact = any(_is_exact(event.fields.get(name), min_chars) for name, min_chars in digits)
    return exact or writer != last.writer


def _is_exact(value: object, min_chars: int) -> bool:
    """Whether a number has so many digits that two equal ones are one."""
    return isinstance(value, float) and math.isfinite(value) and len(repr(value)) >= min_chars


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
