"""PyTorch's NCCL Flight Recorder: one rank's dump of the collectives it entered, as pickle or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trackside.model import Position, Record, Scalar
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.plain_pickle import MAX_BYTES, load

_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?:\.(?:pkl|pickle|json|bin|dump|trace|gz|xz|zst|bz2))*$")
_NAME = re.compile(r"nccl_trace|flight_?recorder|fr_trace|_dump_\d", re.IGNORECASE)
_KEYS = (b"pg_config", b"pg_status", b"nccl_version", b"collective_seq_id")
_INTEGER = re.compile(r"\d{1,9}")
MAX_RANKS = 1 << 20


def _sniff(source: InputSource) -> Match | None:
    key_count = sum(1 for key in _KEYS if key in source.head)
    if source.head[:1] == b"\x80" and source.head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        if key_count >= 2 or _NAME.search(source.name):
            return Match(0.95, "a Flight Recorder dump (pickle)")
    elif key_count >= 2 and source.head.lstrip()[:1] == b"{":
        return Match(0.95, "a Flight Recorder dump (JSON)")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    data = source.whole()
    if len(data) > MAX_BYTES:
        raise ValueError(f"a dump of {len(data) >> 20} MiB; Flight Recorder dumps are far smaller")
    dump = load(data) if data[:1] == b"\x80" else json.loads(data)
    if not isinstance(dump, dict) or not {"entries", "pg_config", "pg_status"} & dump.keys():
        raise ValueError("not a Flight Recorder dump: it has neither entries nor process groups")
    raw_entries = dump.get("entries")
    entries = (
        [entry for entry in raw_entries if isinstance(entry, dict)] if isinstance(raw_entries, (list, tuple)) else []
    )
    groups = _groups(dump, entries)
    rank = rank_of(source.name, dump, groups)
    for ordinal, group in enumerate(groups, 2):
        fields = {"rank": rank, **{name: value for name, value in group.items() if value is not None}}
        sink.record(_record("flight_recorder_group", source.path, ordinal, fields))
    sizes = [len(ranks) for group in groups if (ranks := group.get("ranks"))]
    times = [time for entry in entries if (time := _seconds(entry.get("time_created_ns"))) is not None]
    summary: dict[str, Any] = {
        "rank": rank,
        "world_size": max(sizes, default=None),
        "entries": len(entries),
        "version": _plain(dump.get("version")),
        "nccl_version": _plain(dump.get("nccl_version")),
        **{
            name: max((group[name] for group in groups if group.get(name) is not None), default=None)
            for name in ("last_enqueued", "last_completed")
        },
        "time_s": max(times, default=None),
    }
    sink.record(_record("flight_recorder", source.path, 1, summary))
    note = "" if rank is not None else "neither its name nor its content gives the rank"
    return Result(len(groups) + 1, note=note)


def _record(kind: str, path: str, ordinal: int, fields: Mapping[str, Any]) -> Record:
    known_fields = {name: value for name, value in fields.items() if value is not None}
    text = ", ".join(f"{name} {value}" for name, value in known_fields.items() if name != "ranks")
    return Record(kind, Position(path, ordinal), "collective", known_fields, text[:500])


def rank_of(name: str, dump: Mapping[str, Any], groups: Iterable[Mapping[str, Any]]) -> int | None:
    """The dump's rank: from its content, else from the file's name, else the only rank that is in all its groups."""
    recorded_rank = _integer(dump.get("rank"))
    if recorded_rank is not None:
        return recorded_rank
    match = _RANK.search(name) or _LAST_NUMBER.search(name)
    if match is not None:
        return int(match[1])
    members = [set(ranks) for group in groups if (ranks := group.get("ranks"))]
    common = set.intersection(*members) if members else set()
    return common.pop() if len(common) == 1 else None


def _groups(dump: Mapping[str, Any], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields of each process group, in the order of the dump."""
    config, status = _mapping(dump.get("pg_config")), _mapping(dump.get("pg_status"))
    names = _group_names(config, status, entries)
    pending: dict[str, dict[str, Any]] = {}
    order = [*config]
    for entry in entries:
        name = _group_of(entry)
        if name is None:
            continue
        if name not in config and name not in pending:
            order.append(name)
        # completed entries stay in the ring buffer until they are overwritten; "retired" entries are finished
        if _plain(entry.get("state")) != "completed" and not entry.get("retired"):
            oldest = pending.get(name)
            if oldest is None or (_integer(entry.get("record_id")) or 0) < (_integer(oldest.get("record_id")) or 0):
                pending[name] = entry
    by_name = {names[key]: _mapping(value) for key, value in status.items() if key in names}
    described = _descriptions(entries)
    return [
        {
            "group": name,
            "description": _plain(_mapping(config.get(name)).get("desc")) or described.get(name),
            "ranks": _ranks(_mapping(config.get(name)).get("ranks")),
            "last_enqueued": _integer(by_name.get(name, {}).get("last_enqueued_collective")),
            "last_started": _integer(by_name.get(name, {}).get("last_started_collective")),
            "last_completed": _integer(by_name.get(name, {}).get("last_completed_collective")),
            **_pending_fields(pending.get(name)),
        }
        for name in dict.fromkeys(order)
    ]


def _pending_fields(entry: dict[str, Any] | None) -> dict[str, Scalar]:
    if entry is None:
        return {}
    point_to_point = entry.get("is_p2p") is True
    return {
        "pending_op": str(_plain(entry.get("profiling_name")) or "unknown").removeprefix("nccl:")[:200],
        "pending_seq": _integer(entry.get("p2p_seq_id" if point_to_point else "collective_seq_id")),
        "pending_state": _plain(entry.get("state")),
        "pending_since": _seconds(entry.get("time_created_ns")),
    }


def _group_names(config: Mapping[str, Any], status: Mapping[str, Any], entries: list[dict[str, Any]]) -> dict[str, str]:
    """Key in ``pg_status`` -> name in ``pg_config``.

    Entries give the name of groups in use. A rank with an empty ring buffer has no entries: both tables are numbered in
    the order of creation, so if they are equally long and agree with the entries, they are paired in that order.
    """
    name_by_key = {
        str(entry["pg_id"]): name for entry in entries if (name := _group_of(entry)) is not None and "pg_id" in entry
    }
    if len(config) == len(status) and all(key.isdigit() and len(key) < 10 for key in [*config, *status]):
        paired = dict(zip(sorted(status, key=int), sorted(config, key=int), strict=True))
        if all(paired.get(key) == name for key, name in name_by_key.items()):
            return paired
    return {key: name_by_key.get(key, key if key in config else f"#{key}") for key in status}


def _descriptions(entries: list[dict[str, Any]]) -> dict[str, str | None]:
    description_by_group: dict[str, str | None] = {}
    for entry in entries:
        pair = entry.get("process_group")
        if isinstance(pair, (list, tuple)) and len(pair) == 2:
            description_by_group.setdefault(str(pair[0]), _plain(pair[1]))
    return description_by_group


def _group_of(entry: Mapping[str, Any]) -> str | None:
    pair = entry.get("process_group")
    if isinstance(pair, (list, tuple)) and pair and isinstance(pair[0], (str, int)):
        return str(pair[0])
    group_id = entry.get("pg_id")
    return None if group_id is None or isinstance(group_id, (dict, list)) else str(group_id)


def _mapping(value: object) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _ranks(value: object) -> tuple[int, ...] | None:
    """Member ranks, from a list or from text like ``[0, 1, 2]``."""
    if isinstance(value, str):
        return tuple(int(number[0]) for number in _INTEGER.finditer(value[: 8 * MAX_RANKS])) or None
    if isinstance(value, (list, tuple)):
        return (
            tuple(number for number in value[:MAX_RANKS] if isinstance(number, int) and not isinstance(number, bool))
            or None
        )
    return None


def _integer(value: object) -> int | None:
    is_int64 = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return value if is_int64 else None  # type: ignore[return-value]


def _seconds(value: object) -> float | None:
    nanoseconds = _integer(value)
    return None if not nanoseconds else nanoseconds / 1e9


def _plain(value: object) -> str | None:
    return str(value)[:300] if isinstance(value, (str, int, float)) else None


FORMAT = Format("flight-recorder", "PyTorch NCCL Flight Recorder dump", "collective", _sniff, _read)
