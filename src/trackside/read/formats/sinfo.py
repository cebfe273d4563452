"""Nodes as text: ``sinfo``, ``sinfo -R``, ``sinfo -N -l``, ``-o`` formats, and ``sacctmgr show event``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trackside.catalog.slurm.columns import SACCTMGR_EVENT, SINFO
from trackside.catalog.slurm.fields import Value, node_record
from trackside.catalog.slurm.values import nodes
from trackside.model import Position, Record
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.formats.squeue import table_of
from trackside.read.slurm_table import Row, Table, first_lines, header_of


def _sniff(source: Source) -> Match | None:
    found = table_of(source.text, SINFO)
    if found is None:
        return None
    columns = set(found[0].columns)
    named, described = {"nodelist", "hostnames", "nodehost"}, {"state", "statelong", "statecompact", "reason"}
    if not columns & named or not columns & described:
        return None
    return Match(0.92, "sinfo -R" if "reason" in columns and "avail" not in columns else "sinfo")


def _read(source: Source, sink: Sink) -> Result:
    found = table_of(source.text, SINFO)
    if found is None:
        raise ValueError("the header of sinfo can't be read: run it without -h")
    table, as_of = found

    def fields(row: Row) -> Iterator[dict[str, Value]]:
        state = row.get("statecomplete", "statelong", "state#2", "state", "statecompact")
        for name in nodes(row.get("nodelist", "nodehost", "hostnames")):
            yield node_record("sinfo", row.values.get, name, state, as_of=as_of, source="sinfo")

    return _emit(source, sink, table, fields, "no node in it: none was down or drained")


def _sniff_events(source: Source) -> Match | None:
    table = header_of(first_lines(source.text, 2), SACCTMGR_EVENT)
    if table is None or not {"state", "reason"} & set(table.columns):
        return None
    return Match(0.94, "sacctmgr show event") if {"nodename", "node"} & set(table.columns) else None


def _read_events(source: Source, sink: Sink) -> Result:
    table = header_of(first_lines(source.text, 2), SACCTMGR_EVENT)
    if table is None:
        raise ValueError("the columns can't be told: run sacctmgr with -P and its header")

    def fields(row: Row) -> Iterator[dict[str, Value]]:
        for name in nodes(row.get("nodename", "node")):
            yield node_record("sacctmgr", row.values.get, name, row.get("state"), source="sacctmgr")

    return _emit(source, sink, table, fields, "no event of a node in it")


def _emit(
    source: Source, sink: Sink, table: Table, fields: Callable[[Row], Iterator[dict[str, Value]]], none: str
) -> Result:
    """One record a node and state; sinfo repeats a node once a partition."""
    seen: set[tuple[Value, ...]] = set()
    for row in table.rows(source.lines()):
        for index, each in enumerate(fields(row)):
            key = tuple(each.get(name) for name in ("name", "state", "flags", "reason", "reason_time"))
            if key in seen:
                continue
            seen.add(key)
            # Several nodes of one row keep places of their own, so that each can be cited.
            at = Position(source.path, row.line, row.offset + index, max(0, row.length - index))
            sink.record(Record("node", at, "scheduler", each, row.text.strip()))
    return table.result(len(seen), none)


FORMATS = (
    Format("sinfo", "Slurm nodes, sinfo as text", "scheduler", _sniff, _read),
    Format("sacctmgr-event", "Slurm node events, sacctmgr show event", "scheduler", _sniff_events, _read_events),
)
