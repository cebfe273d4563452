"""The distinct points that one parser read in one file: ranks and redraws removed, restarts told apart, bounded.

A *series* is what one parser read in one file. Within it the same step seen again is the same point; a step far below the
last one begins a new *part*: the process started over, or a second process' output follows the first one's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from trackside.logs.line import split_label
from trackside.model import Event, Plane, Position, Role, Scalar

RECENT = 64
"""Distinct points held open: ranks print a step within so many points of each other."""
LATE = 2
"""Distinct points by which one of several unlabelled writers may lag; more is a fresh start."""
RESTART_BYTES = 2_000
"""A process that starts over prints more than this before its first point; ranks in step print less between two."""
PINNED = 5_000
"""First non-finite points of a stretch that are never thinned away."""
TEXT = 400
"""Characters of a point's line that are kept."""

DRAWN = frozenset(("keras", "lightning", "tqdm"))
"""Parsers of bars: the last drawing of a count is the point, not the first."""
_RANK = re.compile(r"\brank\s?[:=]?\s?(\d{1,6})\b|\[[Rr](\d{1,6})\]", re.IGNORECASE)
_SRUN = re.compile(r" {0,5}\d{1,6}: ")
_LABELLED = tuple("[( 0123456789")
_LOCAL = re.compile(r"\d+")


@dataclass(slots=True)
class _Open:
    """A point that may still be completed by a second print of it."""

    event: Event
    ordinal: int
    writer: str
    priority: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A point as a series holds it: ``open`` ones may still have been completed by a second print."""

    event: Event
    ordinal: int
    pinned: bool
    open: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """What tells one series from another when a run's points are chosen."""

    parser: str
    seen: int
    with_loss: bool
    part: int
    rank: int
    stride: int


_Packed = tuple[int, bool, float, "bytes | Callable[[], Event]"]
"""(ordinal in the series, never thinned, loss or nan, msgpack of the event, or where to get it)"""
Ends = tuple[float, float, float, float]
"""Least and greatest step, first and last time; infinite the other way round where none is known."""


class Away(NamedTuple):
    """A point that is kept elsewhere: all that is needed to choose among series, and how to get the rest."""

    ordinal: int
    pinned: bool
    open: bool
    loss: float | None
    step: float | None
    time: float | None
    event: Callable[[], Event]


_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Writer:
    part: int = 0
    step: float = -math.inf
    offset: int = 0


@dataclass(slots=True)
class Series:
    """The distinct points that one parser read in one file, in order."""

    path: str
    parser: str
    with_loss: bool = False
    seen: int = 0
    part: int = 0
    rank: int = 1 << 30
    _recent: dict[float, _Open] = field(default_factory=dict)
    _packed: list[_Packed] = field(default_factory=list)
    _writers: dict[str, _Writer] = field(default_factory=dict)
    _stride: int = 1
    _top: float = -math.inf
    _first: float | None = None
    _anonymous: _Open | None = None
    _ends: Ends | None = None
    _low: float = math.inf
    _high: float = -math.inf
    _finite: bool = True
    _pins: int = 0
    _epoch: float | None = None
    _base: dict[float, int] = field(default_factory=dict)
    _gap: float = 0.0

    def add(self, event: Event) -> None:
        """Take one raw point: new, a copy of a recent one, or the first of a new part."""
        writer, priority = _who(event)
        self.rank = min(self.rank, priority)
        step = self._unrolled(event, writer)
        if step is None:
            self._add_without_step(event, writer, priority)
            return
        if step != event.fields.get("step"):
            event = replace(event, fields={**event.fields, "step": step})
        state = self._writers.setdefault(writer, _Writer())
        known = self._recent.get(step)
        if self._restarts(step, known, state, event):
            self._new_part()
            known = None
        state.part, state.step, state.offset = self.part, step, event.at.offset
        if known is not None:
            self._complete(known, event, writer, priority)
        elif step > self._top or self._first is None:
            self._append(event, writer, priority, step)

    def _unrolled(self, event: Event, writer: str) -> float | None:
        """The step counted over epochs, for loops that count from the start of each."""
        step, epoch = event.fields.get("step"), event.fields.get("epoch")
        if not isinstance(step, (int, float)) or not math.isfinite(step):
            return None
        if not isinstance(epoch, int):
            return step
        if self._epoch is None or epoch < min(self._base, default=epoch):
            self._epoch, self._base = epoch, {epoch: 0}
        elif epoch > self._epoch:
            base = self._base[self._epoch]
            last = self._top - base
            if step <= last and last > -math.inf:
                length = event.fields.get("epoch_steps")
                length = length if isinstance(length, int) else None
                if length is not None:
                    base += length * (epoch - int(self._epoch))
                else:  # the epoch's length is at least what was counted in it
                    base += int(last) + (int(self._gap) if step == 0 else 0)
            self._epoch, self._base[epoch] = epoch, base
        base = self._base.get(epoch, 0)
        return step + base

    def _restarts(self, step: float, known: _Open | None, state: _Writer, event: Event) -> bool:
        if self._first is None or state.part != self.part or step >= state.step:
            return False
        behind = sum(1 for other in self._recent if other > step)
        if behind > LATE:
            return True
        far = event.at.offset - state.offset > RESTART_BYTES
        return (
            far
            and step <= self._first
            and (known is None or event.fields.get("loss") != known.event.fields.get("loss"))
        )

    def _new_part(self) -> None:
        for opened in list(self._recent.values())[-1:]:
            opened.pinned = True
        self._close(0)
        self.part += 1
        self._top, self._first = -math.inf, None
        self._epoch, self._base = None, {}

    def _add_without_step(self, event: Event, writer: str, priority: int) -> None:
        last = self._anonymous
        if last is not None and _same_print(last, event, writer):
            self._complete(last, event, writer, priority)
            return
        self._close(0)
        self._append(event, writer, priority, None)

    def _append(self, event: Event, writer: str, priority: int, step: float | None) -> None:
        opened = _Open(
            event, self.seen, writer, priority, pinned=self.seen == 0 or (step is not None and self._first is None)
        )
        self.seen += 1
        if step is None:
            self._anonymous = opened
            return
        if self._anonymous is not None:
            self._pack(self._anonymous)
            self._anonymous = None
        if self._top > -math.inf:
            self._gap = step - self._top
        self._first = step if self._first is None else self._first
        self._top = step
        self._recent[step] = opened
        if len(self._recent) > RECENT:
            self._close(RECENT - 8)

    def _complete(self, known: _Open, event: Event, writer: str, priority: int) -> None:
        """A second print of a point: fills what the first left out; a lower rank or a later drawing replaces it."""
        prefer = priority < known.priority or (
            priority == known.priority and self.parser in DRAWN and writer == known.writer
        )
        late, early = (event, known.event) if prefer else (known.event, event)
        fields: dict[str, Scalar] = {**early.fields, **late.fields}
        if event.parser != known.event.parser or priority == known.priority:
            missing = {name: value for name, value in event.fields.items() if name not in known.event.fields}
            fields = {**missing, **fields}
        known.event = replace(late, fields=fields)
        known.priority = min(known.priority, priority)

    def _close(self, keep: int) -> None:
        """Pack all open points but the newest ``keep`` (an open point without a step is the newest of all)."""
        while len(self._recent) > keep:
            step = next(iter(self._recent))
            self._pack(self._recent.pop(step))
        if keep == 0 and self._anonymous is not None:
            self._pack(self._anonymous)
            self._anonymous = None

    def _pack(self, opened: _Open) -> None:
        event, pinned = opened.event, opened.pinned
        printed = event.fields.get("loss")
        loss = float(printed) if isinstance(printed, (int, float)) else math.nan
        if printed is not None:
            self.with_loss = True
            pinned = pinned or (self._finite and not math.isfinite(loss) and self._pins < PINNED)
            self._pins += pinned
            self._finite = math.isfinite(loss)
        extreme = math.isfinite(loss) and (loss < self._low or loss > self._high)
        if extreme:
            self._low, self._high = min(self._low, loss), max(self._high, loss)
        if pinned or extreme or opened.ordinal % self._stride == 0:
            fields = {**event.fields, "run_part": self.part} if self.part else dict(event.fields)
            self._packed.append((opened.ordinal, pinned, loss, _packed(event, fields)))

    def thin(self) -> None:
        """Drop every second interior point, but neither the lowest nor the highest loss."""
        self._stride *= 2
        finite = [row for row in self._packed if math.isfinite(row[2])]
        extremes = {pick(finite, key=lambda row: row[2])[0] for pick in (min, max)} if finite else set()
        self._packed = [row for row in self._packed if row[1] or row[0] % self._stride == 0 or row[0] in extremes]

    @property
    def size(self) -> int:
        """Points held."""
        return len(self._packed)

    def points(self) -> list[Event]:
        """All points, each part in the order of its steps."""
        still = [*self._recent.values()] + ([self._anonymous] if self._anonymous else [])
        rows = [self._row(ordinal, data) for ordinal, _, _, data in self._packed]
        for opened in sorted(still, key=lambda one: one.ordinal):
            fields = {**opened.event.fields, "run_part": self.part} if self.part else opened.event.fields
            fields = {**fields, "ordinal": opened.ordinal} if self._stride > 1 else fields
            rows.append(replace(opened.event, fields=fields))
        return rows

    def _row(self, ordinal: int, data: bytes | Callable[[], Event]) -> Event:
        """A held point; in a thinned series it says how many came before it."""
        event = self._whole(data)
        return replace(event, fields={**event.fields, "ordinal": ordinal}) if self._stride > 1 else event

    def _whole(self, data: bytes | Callable[[], Event]) -> Event:
        return _unpacked(self.path, self.parser, data) if isinstance(data, bytes) else data()

    def held(self) -> Iterator[Held]:
        """All points as they are held, to be kept elsewhere; :meth:`restored` takes them back."""
        for ordinal, pinned, _, data in self._packed:
            yield Held(self._whole(data), ordinal, pinned, False)
        for opened in self._open():
            yield Held(opened.event, opened.ordinal, opened.pinned, True)

    def counts(self) -> Counts:
        """What is known of the series beside its points."""
        return Counts(self.parser, self.seen, self.with_loss, self.part, self.rank, self._stride)

    @classmethod
    def restored(cls, path: str, counts: Counts, points: Sequence[Away]) -> Series:
        """The series again, its points in the order of :meth:`held`."""
        series = cls(path, counts.parser, counts.with_loss, counts.seen, counts.part, counts.rank)
        series._stride = counts.stride
        for ordinal, pinned, still_open, loss, _, _, event in points:
            if still_open:
                series._recent[float(ordinal)] = _Open(event(), ordinal, "", counts.rank, pinned)
            else:
                series._packed.append((ordinal, pinned, math.nan if loss is None else loss, event))
        steps, times = [point.step for point in points], [point.time for point in points if point.time is not None]
        known = [step for step in steps if step is not None]
        if points and len(known) == len(steps):
            none = math.inf
            series._ends = min(known), max(known), min(times, default=none), max(times, default=-none)
        return series

    @property
    def ends(self) -> Ends | None:
        """Between which steps and times its points lie, where that is known without them and all have a step."""
        return self._ends

    @property
    def loss_seen(self) -> bool:
        """Whether any point has a loss."""
        return self.with_loss or any("loss" in one.event.fields for one in self._open())

    def _open(self) -> Iterator[_Open]:
        yield from self._recent.values()
        if self._anonymous is not None:
            yield self._anonymous


def _same_print(last: _Open, event: Event, writer: str) -> bool:
    """Whether a point without a step repeats the one before it: another writer's print, or figures too exact for chance."""
    if last.event.fields != event.fields:
        return False
    norm = event.fields.get("grad_norm")
    exact = isinstance(norm, float) and math.isfinite(norm) and len(repr(norm)) > 8
    return exact or writer != last.writer


def _who(event: Event) -> tuple[str, int]:
    """(writer's label, order of preference: lower ranks first) of a printed point."""
    text = event.text
    label = split_label(text, _SRUN.match(text) is not None)[1] if text[:1] in _LABELLED else ""
    if event.rank is not None:
        return label or f"rank{event.rank}", event.rank
    found = _RANK.search(text, 0, 120)
    if found is not None:
        number = int(found[1] or found[2])
        return label or f"rank{number}", number
    local = _LOCAL.search(label)
    return label, int(local[0]) if local else 0


def _packed(event: Event, fields: Mapping[str, Scalar]) -> bytes:
    at = event.at
    head = (at.line, at.offset, at.length, event.text[:TEXT], event.time, event.rank, event.node)
    try:
        return _encode((*head, fields))
    except OverflowError:  # a whole number beyond 64 bits
        return _encode((*head, {name: float(v) if isinstance(v, int) else v for name, v in fields.items()}))


def _unpacked(path: str, parser: str, data: bytes) -> Event:
    line, offset, length, text, time, rank, node, fields = msgspec.msgpack.decode(data)
    plane: Plane = "log"
    return Event(
        "progress", Position(path, line, offset, length), plane, text, time, rank, node, Role.FACT, parser, fields
    )
