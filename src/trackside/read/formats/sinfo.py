"""Nodes as text: ``sinfo``, ``sinfo -R``, ``sinfo -N -l``, ``-o`` formats, and ``sacctmgr show event``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trackside.catalog.slurm.columns import SACCTMGR_EVENT, SINFO
from trackside.catalog.slurm.fields import SlurmValue, node_record
from trackside.catalog.slurm.values import nodes
from trackside.model import Position, Record
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.squeue import table_of
from trackside.read.slurm_table import SlurmRow, SlurmTable, first_lines, header_of


def _sniff(source: InputSource) -> Match | None:
    table_and_date = table_of(source.text, SINFO)
    if table_and_date is None:
        return None
    columns = set(table_and_date[0].columns)
    name_columns, state_columns = (
        {"nodelist", "hostnames", "nodehost"},
        {"state", "statelong", "statecompact", "reason"},
    )
    if not columns & name_columns or not columns & state_columns:
        return None
    return Match(0.92, "sinfo -R" if "reason" in columns and "avail" not in columns else "sinfo")


def _read(source: InputSource, sink: Sink) -> Result:
    table_and_date = table_of(source.text, SINFO)
    if table_and_date is None:
        raise ValueError("the header of sinfo cannot be read: run it without -h")
    table, as_of = table_and_date

    def fields(row: SlurmRow) -> Iterator[dict[str, SlurmValue]]:
        state = row.get("statecomplete", "statelong", "state#2", "state", "statecompact")
        for name in nodes(row.get("nodelist", "nodehost", "hostnames")):
            yield node_record("sinfo", row.values.get, name, state, as_of=as_of, source="sinfo")

    return _emit(source, sink, table, fields, "no nodes: none was down or drained")


def _sniff_events(source: InputSource) -> Match | None:
    table = header_of(first_lines(source.text, 2), SACCTMGR_EVENT)
    if table is None or not {"state", "reason"} & set(table.columns):
        return None
    return Match(0.94, "sacctmgr show event") if {"nodename", "node"} & set(table.columns) else None


def _read_events(source: InputSource, sink: Sink) -> Result:
    table = header_of(first_lines(source.text, 2), SACCTMGR_EVENT)
    if table is None:
        raise ValueError("unknown columns: run sacctmgr with -P and its header")

    def fields(row: SlurmRow) -> Iterator[dict[str, SlurmValue]]:
        for name in nodes(row.get("nodename", "node")):
            yield node_record("sacctmgr", row.values.get, name, row.get("state"), source="sacctmgr")

    return _emit(source, sink, table, fields, "no node events")


def _emit(
    source: InputSource,
    sink: Sink,
    table: SlurmTable,
    fields: Callable[[SlurmRow], Iterator[dict[str, SlurmValue]]],
    empty_note: str,
) -> Result:
    """Emit one record per node and state; sinfo repeats a node for each partition."""
    known_keys: set[tuple[SlurmValue, ...]] = set()
    for row in table.rows(source.lines()):
        for index, node_fields in enumerate(fields(row)):
            key = tuple(node_fields.get(name) for name in ("name", "state", "flags", "reason", "reason_time"))
            if key in known_keys:
                continue
            known_keys.add(key)
            # Nodes of one row get distinct offsets, so that each can be cited.
            position = Position(source.path, row.line, row.offset + index, max(0, row.length - index))
            sink.record(Record("node", position, "scheduler", node_fields, row.text.strip()))
    return table.result(len(known_keys), empty_note)


FORMATS = (
    Format("sinfo", "Slurm nodes, sinfo as text", "scheduler", _sniff, _read),
    Format("sacctmgr-event", "Slurm node events, sacctmgr show event", "scheduler", _sniff_events, _read_events),
)
