"""Flight Recorder dumps: their records, the ranks they implicate, and pickles that are more than data."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trackside.facts.logs.flight_records import missing_ranks, pending_collectives, unfinished_ranks
from trackside.model import Input, Record
from trackside.read import plain_pickle
from trackside.read.detect import read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource
from trackside.read.walk import walk


def entry(record: int, group: str, seq: int, op: str = "all_reduce", state: str = "scheduled") -> dict[str, Any]:
    return {
        "record_id": record,
        "pg_id": int(group),
        "process_group": (group, f"group {group}"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_795_248_000_000_000_000 + record,
        "state": state,
        "retired": state == "completed",
        "is_p2p": op.startswith(("send", "recv")),
    }


def dump(entries: Sequence[dict[str, Any]], groups: dict[str, tuple[Sequence[int], int, int]]) -> dict[str, Any]:
    """``groups``: name -> (members, last enqueued, last completed)."""
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {g: {"name": g, "desc": f"group {g}", "ranks": str(list(r))} for g, (r, _, _) in groups.items()},
        "pg_status": {
            g: {"last_enqueued_collective": e, "last_started_collective": -1, "last_completed_collective": c}
            for g, (_, e, c) in groups.items()
        },
        "entries": list(entries),
    }


def read(data: bytes, path: str) -> tuple[Input, list[Record]]:
    sink = CollectingSink()
    row = read_source(InputSource(path, data[:HEAD_BYTES], io.BufferedReader(io.BytesIO(data)), len(data)), sink)  # type: ignore[arg-type]
    return row, sink.records


def read_all(dumps: dict[int, dict[str, Any]]) -> list[Record]:
    return [
        r for rank, document in dumps.items() for r in read(pickle.dumps(document, 2), f"nccl_trace_rank_{rank}")[1]
    ]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, None])
def test_records_of_a_dump(protocol: int | None) -> None:
    document = dump([entry(1, "0", 6, state="completed"), entry(2, "0", 7), entry(3, "0", 8)], {"0": (range(4), 8, 6)})
    data = json.dumps(document).encode() if protocol is None else pickle.dumps(document, protocol)
    row, records = read(data, "traces/nccl_trace_rank_3")
    assert (row.format, row.status, row.plane) == ("flight-recorder", "read", "collective")
    group_record, rank_record = records
    assert group_record.fields == {
        "rank": 3,
        "group": "0",
        "description": "group 0",
        "ranks": (0, 1, 2, 3),
        "last_enqueued": 8,
        "last_started": -1,
        "last_completed": 6,
        "pending_op": "all_reduce",
        "pending_seq": 7,
        "pending_state": "scheduled",
        "pending_since": pytest.approx(1_795_248_000),
    }
    assert {
        name: rank_record.get(name) for name in ("rank", "world_size", "entries", "last_enqueued", "nccl_version")
    } == {
        "rank": 3,
        "world_size": 4,
        "entries": 3,
        "last_enqueued": 8,
        "nccl_version": "2.27.3",
    }


@pytest.mark.parametrize(("name", "rank"), [("_dump_12", 12), ("rank03.json", 3), ("fr_trace_rank_5.pkl", 5), ("x", 1)])
def test_the_rank_comes_from_file_name_or_groups(name: str, rank: int) -> None:
    groups = {"0": (range(4), 8, 6), "1": ([1, 3], 0, 0), "2": ([0, 1], 0, 0)}
    assert {record.get("rank") for record in read(pickle.dumps(dump([], groups), 2), name)[1]} == {rank}


def test_ranks_that_never_entered_a_collective_are_missing() -> None:
    all_ranks = range(4)
    dumps = {rank: dump([entry(1, "0", 7)], {"0": (all_ranks, 9, 6)}) for rank in (0, 1, 3)}
    dumps[2] = dump([], {"0": (all_ranks, 6, 6)})
    (stall,) = pending_collectives(read_all(dumps))
    assert (stall.group, stall.op, stall.seq, stall.missing, stall.waiting) == ("0", "all_reduce", 7, (2,), (0, 1, 3))
    assert [row.get("rank") for row in stall.rows] == [2, 0, 1, 3]
    assert missing_ranks(read_all(dumps)) == (2,)
    del dumps[3]
    assert missing_ranks(read_all(dumps)) == (2,)


def test_a_rank_that_waits_for_another_is_not_missing() -> None:
    """Rank 1 waits for rank 2 in group 1; rank 0 waits for rank 1 in group 0."""
    dumps = {
        0: dump([entry(1, "0", 5)], {"0": ([0, 1], 5, 4)}),
        1: dump([entry(1, "1", 8)], {"0": ([0, 1], 4, 4), "1": ([1, 2], 8, 7)}),
        2: dump([], {"1": ([1, 2], 7, 7)}),
    }
    assert missing_ranks(read_all(dumps)) == (2,)


def test_no_rank_is_missing_if_all_entered_or_only_sends_are_pending() -> None:
    all_ranks = range(2)
    dumps = {rank: dump([entry(1, "0", 7)], {"0": (all_ranks, 7, 6)}) for rank in all_ranks}
    assert missing_ranks(read_all(dumps)) == ()
    only_p2p = {
        0: dump([entry(1, "0", 7, "send 0->1")], {"0": (all_ranks, 9, 6)}),
        1: dump([], {"0": (all_ranks, 2, 2)}),
    }
    assert pending_collectives(read_all(only_p2p)) == []
    assert missing_ranks([]) == ()


def test_a_rank_behind_the_others_is_unfinished() -> None:
    dumps = {
        0: dump([entry(1, "0", 9)], {"0": ([0, 1], 9, 8)}),
        1: dump([entry(1, "0", 5)], {"0": ([0, 1], 9, 4)}),
    }
    assert unfinished_ranks(read_all(dumps)) == (1,)


# -- hostile pickles


class Executable:
    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, ("1/0",))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_globals_are_refused_by_name(protocol: int) -> None:
    document = {**dump([], {"0": ([0], 0, 0)}), "more": Executable()}
    with pytest.raises(ValueError, match=r"global \w+\.eval"):
        plain_pickle.load(pickle.dumps(document, protocol))
    if protocol:
        row, records = read(pickle.dumps(document, protocol), "nccl_trace_rank_0")
        assert row.status == "unreadable"
        assert "eval" in row.note
        assert records == []


HOSTILE = {
    "huge memo": b"\x80\x02Nr\xff\xff\xff\xff.",
    "negative memo": b"p-1\n.",
    "text of a lying length": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "long of a lying length": b"\x80\x02\x8b\xff\xff\xff\x7f\x00.",
    "negative length": b"\x80\x02\x8b\xff\xff\xff\xff\x00.",
    "bytearray": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "no end": b"\x80\x02]",
    "nothing": b"",
    "empty stack": b"\x80\x02.",
    "no mark": b"\x80\x02(e.",
    "memo miss": b"\x80\x02h\x05.",
    "odd pairs": b"\x80\x02}(K\x01u.",
    "append to a number": b"\x80\x02K\x01K\x02a.",
    "persistent id": b"\x80\x02Q.",
    "extension": b"\x80\x02\x82\x01.",
    "decimal of many digits": b"L" + b"9" * 5000 + b"L\n.",
    "list as a key": b"\x80\x02}]K\x01s.",
    "tuple as a key": b"\x80\x02}K\x01\x85K\x01s.",
    "unknown opcode": b"\x80\x02\xff.",
    "object state": b"\x80\x02}}b.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_a_value_error(name: str) -> None:
    if name == "huge memo":
        assert plain_pickle.load(HOSTILE[name]) is None
        return
    with pytest.raises(ValueError, match=r"."):
        plain_pickle.load(HOSTILE[name])


def test_a_pickle_of_shared_parts_is_read_fast() -> None:
    """Sixty doublings of a tuple: no code may visit all of it."""
    bomb = b"\x80\x02K\x01" + b"q\x00h\x00\x86" * 60 + b"."
    plain_pickle.load(bomb)
    payload = b"\x80\x02}(X\x09\x00\x00\x00pg_configX\x07\x00\x00\x00entriesK\x01" + b"q\x00h\x00\x86" * 60 + b"u."
    row, _ = read(payload[:3] + payload[3:], "nccl_trace_rank_0")
    assert row.status in ("read", "unreadable")


@pytest.mark.parametrize(
    "text",
    [
        '{"pg_config": {}, "pg_status": ',
        '{"pg_config": 1, "pg_status": [], "entries": {"a": 1}, "nccl_version": {}}',
        '{"pg_config": {"0": 5}, "pg_status": {"0": []}, "entries": [1, null, {"process_group": []}, {"pg_id": {}}]}',
        '{"pg_config": ' + "[" * 200_000,
        '{"pg_status": {"0": {"last_enqueued_collective": 1e999}}, "pg_config": {"0": {"ranks": "['
        + "9," * 500
        + '"}}}',
    ],
)
def test_odd_json_never_raises(text: str) -> None:
    row, _ = read(text.encode(), "rank0.json")
    assert row.status in ("read", "unreadable")


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("folder", "missing", "unfinished"), [("lock_gil_1st", (9, 14), ()), ("gpu_error_1st", (12,), (12, 14))]
)
def test_ranks_of_injected_faults_are_found(folder: str, missing: tuple[int, ...], unfinished: tuple[int, ...]) -> None:
    data = Path(__file__).parents[4] / "shared/data/flight-recorder-dumps" / folder
    for names in ("_dump_*", "json/*"):
        sink = CollectingSink()
        for source in walk(sorted(data.glob(names))):
            assert isinstance(source, InputSource)
            assert read_source(source, sink).status == "read"
        assert missing_ranks(sink.records) == missing
        assert unfinished_ranks(sink.records) == unfinished
