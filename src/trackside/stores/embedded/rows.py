"""Converts inputs, events, records and logged steps to columns of a store's tables, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.model import Event, EventRole, Input, Plane, Position, Record, Scalar
from trackside.stores.embedded.fields import clean, fields_of, fields_text

ObjectColumn = NDArray[np.object_]


def object_column(values: Iterable[str | float | int | bool | None]) -> ObjectColumn:
    """A column of texts or numbers that may hold None."""
    listed = list(values)
    column = np.empty(len(listed), dtype=object)
    column[:] = listed
    return column


def _texts(values: Iterable[str | None]) -> ObjectColumn:
    return object_column([None if value is None else clean(value) for value in values])


def _numbers(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)


def _rank(value: int | None) -> int | None:
    """A rank that the column can hold: no launcher counts beyond 63 bits, but a corrupt line may."""
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def _text_or_none(value: Scalar) -> str | None:
    return None if value is None else str(value)


def _number_or_none(value: Scalar) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def position_columns(rows: Sequence[Position]) -> dict[str, NDArray[Any]]:
    """The positions of rows as columns."""
    return {
        "path": _texts(position.path for position in rows),
        "line": _numbers(position.line for position in rows),
        "offset": _numbers(position.offset for position in rows),
        "length": _numbers(position.length for position in rows),
    }


@dataclass(frozen=True, slots=True)
class StoredInput:
    """An input as the store keeps it, around its row in a verdict.

    ``is_log``: whether it has log events or logged steps, and so is a job's log; ``owner``: the job that its lines
    name; ``training``: JSON of the series of its points; ``place``: the id of the input whose place in the order it
    takes, 0 for none; ``planes``: those of its rows; ``read_at``: POSIX seconds.
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
        """The name that citations use."""
        return self.row.path


SERIES_PATH = "received/metrics"
"""Path of the series of all senders: without a node, only their labels distinguish them."""


def received_day(id_: int, day: str, rows: int = 0) -> StoredInput:
    """The input that stands for a day's pushed samples. Its root is relative, because a store may be moved."""
    row = Input(f"{SERIES_PATH}/{day}", "received", "read", "samples that were pushed", rows, "metric")
    return StoredInput(id_, row, SERIES_PATH, day, planes=("metric",))


def input_columns(inputs: Sequence[StoredInput]) -> dict[str, NDArray[Any]]:
    """Columns of the table ``inputs``."""
    rows = [stored.row for stored in inputs]
    return {
        "input": np.array([stored.id for stored in inputs], dtype=np.int32),
        "place": np.array([stored.place or stored.id for stored in inputs], dtype=np.int32),
        "path": _texts(row.path for row in rows),
        "root": _texts(stored.root for stored in inputs),
        "label": _texts(stored.label for stored in inputs),
        "format": object_column(row.format for row in rows),
        "status": object_column(row.status for row in rows),
        "note": _texts(row.note for row in rows),
        "rows": _numbers(row.rows for row in rows),
        "plane": object_column(row.plane for row in rows),
        "bytes": _numbers(row.bytes for row in rows),
        "hash": object_column(stored.hash for stored in inputs),
        "read_at": np.array([stored.read_at for stored in inputs], dtype=np.float64),
        "planes": object_column(",".join(stored.planes) for stored in inputs),
        "is_log": np.array([stored.is_log for stored in inputs], dtype=bool),
        "owner": _texts(stored.owner for stored in inputs),
        "training": object_column(stored.training for stored in inputs),
    }


INPUT = (
    "input, root, label, hash, is_log, owner, training, place, planes, read_at,"
    " path, format, status, note, rows, plane, bytes"
)


def input_of(row: Sequence[Any]) -> StoredInput:
    """An input from the columns of :data:`INPUT`."""
    id_, root, label, hash_, is_log, owner, training, place, planes, read_at, *input_fields = row
    named = tuple(planes.split(",")) if planes else ()
    return StoredInput(id_, Input(*input_fields), root, label, hash_, is_log, owner, training, place, named, read_at)


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One logged step of a log's series."""

    event: Event
    ordinal: int
    """Number of the point in its series, from 0, before the series was thinned."""
    pinned: bool
    """Whether it is never thinned."""
    is_open: bool
    """Whether further lines may add to it: it was still open at the end of the log. The column is ``held``."""


def event_columns(rows: Sequence[tuple[int, int, Event, str | None]]) -> dict[str, NDArray[Any]]:
    """Columns from rows of (input, ordinal in it, event, id of the job it names)."""
    events = [row[2] for row in rows]
    return {
        "input": np.array([row[0] for row in rows], dtype=np.int32),
        "seq": np.array([row[1] for row in rows], dtype=np.int32),
        "kind": object_column(event.kind for event in events),
        "plane": object_column(event.plane for event in events),
        "time": object_column(event.time for event in events),
        "rank": object_column(_rank(event.rank) for event in events),
        "node": _texts(event.node for event in events),
        "role": object_column(event.role.value for event in events),
        "parser": _texts(event.parser for event in events),
        "job": _texts(row[3] for row in rows),
        **position_columns([event.at for event in events]),
        "text": _texts(event.text for event in events),
        "fields": object_column(fields_text(event.fields) for event in events),
    }


def event_of(row: Sequence[Any]) -> Event:
    """An event from (kind, plane, time, rank, node, role, parser, path, line, offset, length, text, fields)."""
    kind, plane, time, rank, node, role, parser, path, line, offset, length, text, fields = row
    position = Position(path, line, offset, length)
    return Event(kind, position, plane, text, time, rank, node, EventRole(role), parser, fields_of(fields))


EVENT = 'kind, plane, time, rank, node, role, parser, path, line, "offset", length, text, fields'


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """Keys by which a record is looked up, besides its own fields."""

    job: str | None = None
    """Id of the record's job."""
    number: str | None = None
    """The number at the start of this id."""
    outputs: tuple[str, ...] = ()
    """Names of the job's output files, as recorded."""


def record_columns(rows: Sequence[tuple[int, int, Record, RecordKeys]]) -> dict[str, NDArray[Any]]:
    """Columns from rows of (input, ordinal in it, record, its keys)."""
    records = [row[2] for row in rows]
    all_keys = [row[3] for row in rows]
    return {
        "input": np.array([row[0] for row in rows], dtype=np.int32),
        "seq": np.array([row[1] for row in rows], dtype=np.int32),
        "kind": object_column(record.kind for record in records),
        "plane": object_column(record.plane for record in records),
        "job": _texts(keys.job for keys in all_keys),
        "number": _texts(keys.number for keys in all_keys),
        "raw_id": _texts(_text_or_none(record.get("raw_id")) for record in records),
        "array_id": _texts(_text_or_none(record.get("array_id")) for record in records),
        "name": _texts(_text_or_none(record.get("name")) for record in records),
        "end": object_column(_number_or_none(record.get("end")) for record in records),
        "node": _texts(_text_or_none(record.get("name")) if record.kind == "node" else None for record in records),
        "outputs": _texts("/".join(keys.outputs) or None for keys in all_keys),
        **position_columns([record.at for record in records]),
        "text": _texts(record.text for record in records),
        "fields": object_column(fields_text(record.fields) for record in records),
    }


RECORD = 'kind, plane, path, line, "offset", length, text, fields'


def record_of(row: Sequence[Any]) -> Record:
    """A record from the columns of :data:`RECORD`."""
    kind, plane, path, line, offset, length, text, fields = row
    return Record(kind, Position(path, line, offset, length), plane, fields_of(fields), text)


def point_columns(rows: Sequence[tuple[int, LoggedStep]]) -> dict[str, NDArray[Any]]:
    """Columns from rows of (input, point)."""
    events = [point.event for _, point in rows]
    return {
        "input": np.array([input_ for input_, _ in rows], dtype=np.int32),
        "parser": _texts(event.parser for event in events),
        "ordinal": _numbers(point.ordinal for _, point in rows),
        "pinned": np.array([point.pinned for _, point in rows], dtype=bool),
        "held": np.array([point.is_open for _, point in rows], dtype=bool),
        "time": object_column(event.time for event in events),
        "rank": object_column(_rank(event.rank) for event in events),
        "node": _texts(event.node for event in events),
        "step": object_column(_number_or_none(event.fields.get("step")) for event in events),
        "loss": object_column(_number_or_none(event.fields.get("loss")) for event in events),
        **position_columns([event.at for event in events]),
        "text": _texts(event.text for event in events),
        "fields": object_column(fields_text(event.fields) for event in events),
    }


POINT = 'parser, ordinal, pinned, held, time, rank, node, path, line, "offset", length, text, fields'


def point_of(row: Sequence[Any]) -> LoggedStep:
    """A logged step from the columns of :data:`POINT`."""
    parser, ordinal, pinned, is_open, time, rank, node, path, line, offset, length, text, fields = row
    position = Position(path, line, offset, length)
    event = Event("progress", position, "log", text, time, rank, node, EventRole.OBSERVATION, parser, fields_of(fields))
    return LoggedStep(event, ordinal, pinned, is_open)
