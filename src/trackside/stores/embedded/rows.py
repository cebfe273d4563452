"""Inputs, events, records and training points as columns of a store's tables, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.model import Event, Input, Plane, Position, Record, Role, Scalar
from trackside.stores.embedded.fields import clean, fields_of, fields_text

Words = NDArray[np.object_]


def objects(values: Iterable[str | float | int | bool | None]) -> Words:
    """A column of words or of numbers, None among them."""
    listed = list(values)
    column = np.empty(len(listed), dtype=object)
    column[:] = listed
    return column


def _texts(values: Iterable[str | None]) -> Words:
    return objects([None if value is None else clean(value) for value in values])


def _numbers(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)


def _rank(value: int | None) -> int | None:
    """A rank that the column holds: no launcher counts beyond 63 bits, a broken line may."""
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def _word(value: Scalar) -> str | None:
    return None if value is None else str(value)


def _time(value: Scalar) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def places(rows: Sequence[Position]) -> dict[str, NDArray[Any]]:
    """Where rows stand."""
    return {
        "path": _texts(at.path for at in rows),
        "line": _numbers(at.line for at in rows),
        "offset": _numbers(at.offset for at in rows),
        "length": _numbers(at.length for at in rows),
    }


@dataclass(frozen=True, slots=True)
class Kept:
    """An input as the store keeps it, beside its row of a verdict.

    ``is_log``: whether it has log events or training points, and so is some job's log; ``owner``: the job that its
    lines name; ``training``: JSON of the series of its points; ``place``: the id of the input whose place it takes, 0
    for none; ``planes``: those of its rows; ``read_at``: POSIX seconds.
    """

    id: int
    row: Input
    root: str = ""
    label: str = ""
    hash: str = ""
    is_log: bool = False
    owner: str | None = None
    training: str = ""
    place: int = 0
    planes: tuple[Plane, ...] = ()
    read_at: float = 0.0

    @property
    def path(self) -> str:
        """What citations call it."""
        return self.row.path


def input_columns(inputs: Sequence[Kept]) -> dict[str, NDArray[Any]]:
    """Rows of inputs."""
    rows = [each.row for each in inputs]
    return {
        "input": np.array([each.id for each in inputs], dtype=np.int32),
        "place": np.array([each.place or each.id for each in inputs], dtype=np.int32),
        "path": _texts(row.path for row in rows),
        "root": _texts(each.root for each in inputs),
        "label": _texts(each.label for each in inputs),
        "format": objects(row.format for row in rows),
        "status": objects(row.status for row in rows),
        "note": _texts(row.note for row in rows),
        "rows": _numbers(row.rows for row in rows),
        "plane": objects(row.plane for row in rows),
        "bytes": _numbers(row.bytes for row in rows),
        "hash": objects(each.hash for each in inputs),
        "read_at": np.array([each.read_at for each in inputs], dtype=np.float64),
        "planes": objects(",".join(each.planes) for each in inputs),
        "is_log": np.array([each.is_log for each in inputs], dtype=bool),
        "owner": _texts(each.owner for each in inputs),
        "training": objects(each.training for each in inputs),
    }


INPUT = (
    "input, root, label, hash, is_log, owner, training, place, planes, read_at,"
    " path, format, status, note, rows, plane, bytes"
)


def input_of(row: Sequence[Any]) -> Kept:
    """An input from the columns of :data:`INPUT`."""
    id_, root, label, hash_, is_log, owner, training, place, planes, read_at, *told = row
    named = tuple(planes.split(",")) if planes else ()
    return Kept(id_, Input(*told), root, label, hash_, is_log, owner, training, place, named, read_at)


@dataclass(frozen=True, slots=True)
class Point:
    """One training point as a log's series holds it."""

    event: Event
    ordinal: int
    pinned: bool
    held: bool


def event_columns(rows: Sequence[tuple[int, int, Event, str | None]]) -> dict[str, NDArray[Any]]:
    """Rows of (input, ordinal in it, event, id of the job it names)."""
    events = [row[2] for row in rows]
    return {
        "input": np.array([row[0] for row in rows], dtype=np.int32),
        "seq": np.array([row[1] for row in rows], dtype=np.int32),
        "kind": objects(each.kind for each in events),
        "plane": objects(each.plane for each in events),
        "time": objects(each.time for each in events),
        "rank": objects(_rank(each.rank) for each in events),
        "node": _texts(each.node for each in events),
        "role": objects(each.role.value for each in events),
        "parser": _texts(each.parser for each in events),
        "job": _texts(row[3] for row in rows),
        **places([each.at for each in events]),
        "text": _texts(each.text for each in events),
        "fields": objects(fields_text(each.fields) for each in events),
    }


def event_of(row: Sequence[Any]) -> Event:
    """An event from (kind, plane, time, rank, node, role, parser, path, line, offset, length, text, fields)."""
    kind, plane, time, rank, node, role, parser, path, line, offset, length, text, fields = row
    at = Position(path, line, offset, length)
    return Event(kind, at, plane, text, time, rank, node, Role(role), parser, fields_of(fields))


EVENT = 'kind, plane, time, rank, node, role, parser, path, line, "offset", length, text, fields'


@dataclass(frozen=True, slots=True)
class About:
    """What a record is found by, beside its own fields."""

    job: str | None = None
    """Id of the job it is of."""
    number: str | None = None
    """The number that this id begins with."""
    outputs: tuple[str, ...] = ()
    """Names of the job's output files, as recorded."""


def record_columns(rows: Sequence[tuple[int, int, Record, About]]) -> dict[str, NDArray[Any]]:
    """Rows of (input, ordinal in it, record, what it is found by)."""
    records = [row[2] for row in rows]
    abouts = [row[3] for row in rows]
    return {
        "input": np.array([row[0] for row in rows], dtype=np.int32),
        "seq": np.array([row[1] for row in rows], dtype=np.int32),
        "kind": objects(each.kind for each in records),
        "plane": objects(each.plane for each in records),
        "job": _texts(about.job for about in abouts),
        "number": _texts(about.number for about in abouts),
        "raw_id": _texts(_word(each.get("raw_id")) for each in records),
        "array_id": _texts(_word(each.get("array_id")) for each in records),
        "name": _texts(_word(each.get("name")) for each in records),
        "end": objects(_time(each.get("end")) for each in records),
        "node": _texts(_word(each.get("name")) if each.kind == "node" else None for each in records),
        "outputs": _texts("/".join(about.outputs) or None for about in abouts),
        **places([each.at for each in records]),
        "text": _texts(each.text for each in records),
        "fields": objects(fields_text(each.fields) for each in records),
    }


RECORD = 'kind, plane, path, line, "offset", length, text, fields'


def record_of(row: Sequence[Any]) -> Record:
    """A record from the columns of :data:`RECORD`."""
    kind, plane, path, line, offset, length, text, fields = row
    return Record(kind, Position(path, line, offset, length), plane, fields_of(fields), text)


def point_columns(rows: Sequence[tuple[int, Point]]) -> dict[str, NDArray[Any]]:
    """Rows of (input, point)."""
    events = [point.event for _, point in rows]
    return {
        "input": np.array([input_ for input_, _ in rows], dtype=np.int32),
        "parser": _texts(each.parser for each in events),
        "ordinal": _numbers(point.ordinal for _, point in rows),
        "pinned": np.array([point.pinned for _, point in rows], dtype=bool),
        "held": np.array([point.held for _, point in rows], dtype=bool),
        "time": objects(each.time for each in events),
        "rank": objects(_rank(each.rank) for each in events),
        "node": _texts(each.node for each in events),
        "step": objects(_time(each.fields.get("step")) for each in events),
        "loss": objects(_time(each.fields.get("loss")) for each in events),
        **places([each.at for each in events]),
        "text": _texts(each.text for each in events),
        "fields": objects(fields_text(each.fields) for each in events),
    }


POINT = 'parser, ordinal, pinned, held, time, rank, node, path, line, "offset", length, text, fields'


def point_of(row: Sequence[Any]) -> Point:
    """A training point from the columns of :data:`POINT`."""
    parser, ordinal, pinned, held, time, rank, node, path, line, offset, length, text, fields = row
    at = Position(path, line, offset, length)
    event = Event("progress", at, "log", text, time, rank, node, Role.FACT, parser, fields_of(fields))
    return Point(event, ordinal, pinned, held)
