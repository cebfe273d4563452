"""Finds damaged segments of a store, and rebuilds the store from what is left of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from trackside.errors import StoreError
from trackside.stores.embedded.checksums import checksums_of, damaged_blocks
from trackside.stores.embedded.layout import TableSegment
from trackside.stores.embedded.rows import SERIES_PATH, input_columns, received_day
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import ORDER, TABLES, parquet, sql_literal
from trackside.stores.embedded.writer import Writer

OnProgress = Callable[[int], None]
"""Called with the number of bytes just read."""


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment that is not as it was written. ``fault``: what is wrong with it; ``paths``: the inputs that it may hold
    rows of."""

    segment: TableSegment
    fault: str
    paths: tuple[str, ...] = ()


@dataclass(slots=True)
class RebuildResult:
    """What a rebuild did. ``kept_rows``: rows of damaged segments that were intact; ``lost_rows``: the others;
    ``paths``: the inputs to ingest again."""

    damaged: list[DamagedSegment] = field(default_factory=list)
    kept_rows: int = 0
    lost_rows: int = 0
    paths: list[str] = field(default_factory=list)


def find_damage(snapshot: Snapshot, on_progress: OnProgress | None = None) -> list[DamagedSegment]:
    """Read all of a store's segments, and return those that are damaged."""
    damaged = []
    for segment in snapshot.manifest.segments:
        if fault := snapshot.fault(segment):
            damaged.append((segment, fault))
        if on_progress is not None:
            on_progress(segment.bytes)
    inputs = _known_inputs(snapshot, [segment for segment, _ in damaged]) if damaged else {}
    return [
        DamagedSegment(
            segment, fault, tuple(inputs[number].path for number in inputs if _may_hold(segment, number, inputs))
        )
        for segment, fault in damaged
    ]


def rebuild(writer: Writer, on_progress: OnProgress | None = None) -> RebuildResult:
    """Replace damaged segments by their intact rows, and record whose rows were lost, so that these inputs are
    ingested again. The damaged files are set aside. Raises StoreError."""
    snapshot = writer.snapshot()
    result = RebuildResult(find_damage(snapshot, on_progress))
    damaged_segments = [damaged.segment for damaged in result.damaged]
    if not damaged_segments:
        return result
    saved_segments = [saved for segment in damaged_segments for saved in _intact_rows(writer, segment)]
    result.kept_rows = sum(segment.rows for segment in saved_segments)
    result.lost_rows = sum(segment.rows for segment in damaged_segments) - result.kept_rows
    inputs = _known_inputs(snapshot, damaged_segments)
    listed = _listed_inputs(snapshot, list(_other_segments(snapshot, "inputs", damaged_segments)))
    listed |= _listed_inputs(snapshot, [segment for segment in saved_segments if segment.table == "inputs"])
    numbers = [number for number in range(1, writer.manifest.next_input) if number not in writer.manifest.dead]

    def numbers_in(segments: list[TableSegment]) -> set[int]:
        return {number for number in numbers if any(_may_hold(segment, number, inputs) for segment in segments)}

    unlisted = numbers_in([segment for segment in damaged_segments if segment.table == "inputs"]) - listed.keys()
    lossy = numbers_in([segment for segment in damaged_segments if segment.table != "inputs"])
    days = [
        received_day(number, known.path.removeprefix(f"{SERIES_PATH}/"))
        for number, known in inputs.items()
        if number in unlisted and known.path.startswith(f"{SERIES_PATH}/")
    ]
    if days:  # pushed samples exist nowhere else: only the row that lists them is lost
        saved_segments.append(writer.write_segment("inputs", input_columns(days)))
        unlisted -= {day.id for day in days}
    incomplete = unlisted | lossy
    writer.replace(saved_segments, damaged_segments, dead=unlisted, incomplete=incomplete - unlisted)
    for segment in damaged_segments:
        writer.directory.set_aside(segment)
    result.paths = [inputs[number].path for number in inputs if number in incomplete]
    writer.directory.delete_unreferenced_files()
    return result


def add_checksums(writer: Writer) -> None:
    """Add checksums to segments of an earlier version, which can be read. Raises StoreDamaged for one that cannot."""
    plain_segments = [segment for segment in writer.manifest.segments if not segment.checksums]
    if not plain_segments:
        return
    snapshot = writer.snapshot()
    for segment in plain_segments:
        snapshot.require_intact(segment)
    summed = [
        msgspec.structs.replace(segment, checksums=checksums_of(writer.directory.file(segment)))
        for segment in plain_segments
    ]
    writer.replace(summed, plain_segments)


@dataclass(frozen=True, slots=True)
class _KnownInput:
    """An input. If the row that lists it is lost, ``path`` is its name in citations, and ``planes`` is None."""

    path: str
    planes: frozenset[str] | None = None


def _may_hold(segment: TableSegment, number: int, inputs: Mapping[int, _KnownInput]) -> bool:
    """Whether a segment may hold rows of an input, or what its rows need."""
    planes = inputs[number].planes if number in inputs else None
    if segment.table == "inputs" or planes is None:
        is_of_table = True
    elif segment.table in ("events", "records", "points"):
        is_of_table = bool(planes - {"metric"})
    else:
        is_of_table = "metric" in planes
    return is_of_table and (segment.table == "series" or segment.inputs[0] <= number <= segment.inputs[1])


def _other_segments(snapshot: Snapshot, table: str, excluded: Iterable[TableSegment]) -> Iterator[TableSegment]:
    names = {segment.name for segment in excluded}
    return (segment for segment in snapshot.manifest.of(table) if segment.name not in names)


def _listed_inputs(snapshot: Snapshot, segments: list[TableSegment]) -> dict[int, _KnownInput]:
    """The inputs in some segments of their table."""
    source = snapshot.source("inputs", segments)
    return {
        number: _KnownInput(os.path.join(root, label), frozenset(filter(None, planes.split(","))))
        for number, root, label, planes in snapshot.rows(
            f"SELECT input, root, label, planes FROM {source} ORDER BY place"
        )
    }


def _known_inputs(snapshot: Snapshot, damaged: list[TableSegment]) -> dict[int, _KnownInput]:
    """All inputs, from what is intact: rows of most tables name the path of their input."""
    inputs = _listed_inputs(snapshot, list(_other_segments(snapshot, "inputs", damaged)))
    if any(segment.table == "inputs" for segment in damaged):
        for table in ("events", "records", "points", "spans"):
            source = snapshot.source(table, list(_other_segments(snapshot, table, damaged)))
            for number, path in snapshot.rows(f"SELECT DISTINCT input, path FROM {source} ORDER BY ALL"):
                inputs.setdefault(number, _KnownInput(path))
    return inputs


def _intact_rows(writer: Writer, segment: TableSegment) -> list[TableSegment]:
    """The rows of a damaged segment that its checksums prove intact, as a new segment; none if too much is damaged."""
    bounds = _intact_bounds(writer.snapshot(), segment)
    if not bounds:
        return []
    rows = " OR ".join(f"file_row_number BETWEEN {first} AND {last}" for first, last in bounds)
    source = f"{parquet([writer.directory.file(segment)])[:-1]}, file_row_number = true)"
    columns = ", ".join(f'"{name}"' for name in TABLES[segment.table])
    try:
        return writer.write_query(
            segment.table,
            f"SELECT {columns} FROM {source} WHERE {rows} ORDER BY {ORDER[segment.table]}",
            segment.level,
        )
    except StoreError:  # a part of the file that no row group covers is needed to read it
        return []


def _intact_bounds(snapshot: Snapshot, segment: TableSegment) -> list[tuple[int, int]]:
    """The first and last row of each intact row group of a damaged segment."""
    path = snapshot.directory.file(segment)
    try:
        blocks = damaged_blocks(path, segment.checksums)
        with open(path, "rb") as file:
            file.seek(-8, 2)
            footer_start = file.tell() - int.from_bytes(file.read(4), "little")
    except OSError:
        return []
    if not blocks or any(block.stop > footer_start for block in blocks):
        return []
    groups = snapshot.rows(
        f"""
        SELECT any_value(row_group_num_rows), min(least(data_page_offset, coalesce(dictionary_page_offset,
               data_page_offset))), sum(total_compressed_size)::BIGINT
        FROM parquet_metadata({sql_literal(path)}) GROUP BY row_group_id ORDER BY row_group_id
        """
    )
    bounds, first_row = [], 0
    for n_rows, start, n_bytes in groups:
        if not any(block.start < start + n_bytes and block.stop > start for block in blocks):
            bounds.append((first_row, first_row + n_rows - 1))
        first_row += n_rows
    return bounds
