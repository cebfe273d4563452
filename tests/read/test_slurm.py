"""Slurm's values: what each function returns for a value and for a placeholder."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args

import pytest

from trackside.catalog.records import RECORDS
from trackside.catalog.slurm import commands, fields, values
from trackside.read.slurm_table import align

EIGHT = dt.datetime(2026, 11, 21, 8, tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize(
    ("function", "text", "expected"),
    [
        (values.time, "2026-11-21T08:00:00", EIGHT),
        (values.time, "2026-11-21T09:00:00+01:00", EIGHT),
        (values.time, "2026-11-21 08:00:00", EIGHT),
        (values.time, str(int(EIGHT)), EIGHT),
        (values.time, "2026-13-41T08:00:00", None),
        (values.zoned, "2026-11-21T09:00:00+01:00", True),
        (values.zoned, str(int(EIGHT)), True),
        (values.zoned, {"set": True, "infinite": False, "number": int(EIGHT)}, True),
        (values.zoned, "2026-11-21T08:00:00", None),
        (values.zoned, "Unknown", None),
        (values.time, "4294967294", None),
        (values.time, "Unknown", None),
        (values.duration, "1-02:03:04", 93784.0),
        (values.duration, "02:03:04", 7384.0),
        (values.duration, "59:58", 3598.0),
        (values.duration, "00:00.012", 0.012),
        (values.duration, "UNLIMITED", None),
        (values.duration, "Partition_Limit", None),
        (values.duration, "75", 75.0),
        (values.time_limit, "75", 4500.0),
        (values.time_limit, "01:15:00", 4500.0),
        (values.time_limit, {"set": True, "infinite": True, "number": 0}, None),
        (values.time, {"set": True, "infinite": False, "number": int(EIGHT)}, EIGHT),
        (values.number, "2K", 2000),
        (values.number, {"set": False, "number": 3}, None),
        (values.gpus, [{"type": "gres", "name": "gpu", "count": 8}, {"type": "cpu", "name": "", "count": 2}], 8),
        (values.exit_status, {"return_code": 0, "signal": {"signal_id": 9}}, (0, 9)),
        (values.user, "alice(1001)", ("alice", 1001)),
        (values.user, "(null)", (None, None)),
        (values.signed_reason, "bad fan [root@1795312000]", ("bad fan", "root", 1795312000.0)),
        (values.waiting_reason, "(Resources)", "Resources"),
        (values.waiting_reason, "n[1-2]", None),
        (values.state_of, "CANCELLED by 1001", ("CANCELLED", "1001")),
        (values.state_of, "OUT_OF_ME+", ("OUT_OF_MEMORY", None)),
        (values.state_of, "CANCELLED+", ("CANCELLED", None)),
        (values.state_of, "RE+", (None, None)),
        (values.state_of, "NF", ("NODE_FAIL", None)),
        (values.state_of, "", (None, None)),
        (values.exit_status, "0:11", (0, 11)),
        (values.exit_status, "", (None, None)),
        (values.wait_status, 256, (1, 0)),
        (values.wait_status, 35584, (139, 0)),
        (values.wait_status, 11, (0, 11)),
        (values.size, "3960K", 3960 << 10),
        (values.size, "62.50G", int(62.5 * (1 << 30))),
        (values.size, "0", 0),
        (values.size, "4Gn", None),
        (values.gpus, "billing=2,cpu=2,gres/gpu=8,gres/gpu:h100=8", 8),
        (values.gpus, "gres/gpu:a100=4,gres/gpu:h100=2", 6),
        (values.gpus, "cpu=2,mem=200M", None),
        (values.parents_of, "afterany:41:42,afterok:43_*(unfulfilled)?afternotok:9(failed)", ("41", "42", "43", "9")),
        (values.parents_of, "after:7,singleton,expand:8", ()),
        (values.parents_of, values.dependency_of("sbatch -d afterany:5_1 x.sh"), ("5_1",)),
        (values.parents_of, values.dependency_of('sbatch --dependency="afterok:5" x.sh'), ("5",)),
        (values.dependency_of, "sbatch train.sh -d data", None),
        (values.nodes, "g[2-3,07-09],login1", ("g2", "g3", "g07", "g08", "g09", "login1")),
        (values.nodes, "r[1-2]n[1-2]x", ("r1n1x", "r1n2x", "r2n1x", "r2n2x")),
        (values.nodes, "None assigned", ()),
        (values.nodes, "(Resources)", ()),
        (values.split_job_id, "60_3.batch", ("60_3", "60", "batch")),
        (values.split_job_id, "73+0", ("73+0", None, None)),
        (values.split_job_id, "60_[2-4%2]", ("60_[2-4%2]", "60", None)),
        (values.split_job_id, "train", None),
        (values.state_among, ["PENDING", "REQUEUED"], "REQUEUED"),
        (values.state_among, ["CANCELLED", "COMPLETING"], "CANCELLED"),
        (values.state_among, ["PENDING", "SPECIAL_EXIT"], "SPECIAL_EXIT"),
        (values.state_among, [], None),
        (values.node_state_of, "DOWN*+DRAIN", ("down", ("not_responding", "drain"))),
        (values.node_state_of, "drng", ("allocated", ("drain",))),
        (values.node_state_of, "idle~", ("idle", ("powered_down",))),
        (values.node_state_of, ["IDLE", "DRAIN"], ("idle", ("drain",))),
        (values.node_state_of, None, (None, ())),
    ],
)
def test_values_are_parsed(function: Any, text: Any, expected: Any) -> None:
    assert function(text) == expected


def test_field_tables_use_known_names_and_tools() -> None:
    for kind, rows in (("job", fields.JOB), ("step", fields.STEP), ("node", fields.NODE)):
        for row in rows:
            assert {name for name in row.names if name != "-"} <= set(RECORDS[kind].fields)
            assert set(row.spellings) <= set(get_args(fields.Tool))


def test_the_best_field_with_a_value_is_used() -> None:
    row = {"elapsedraw": "", "elapsed": "01:00", "timelimitraw": "UNLIMITED", "timelimit": "02:00", "state": "F"}
    assert fields.read("job", "sacct", row.get) == {"elapsed_s": 60.0, "time_limit_s": 120.0, "state": "FAILED"}
    assert "cancelled_by" not in fields.read("step", "sacct", {"state": "CANCELLED by 7"}.get)


def test_only_columns_that_sacct_has_are_requested() -> None:
    assert commands.accounting_columns("Elapsed\njobid JobIDRaw  State") == ["JobID", "JobIDRaw", "State"]
    assert {"ElapsedRaw", "AllocTRES", "ReqTRES", "SubmitLine", "StdErr"} <= set(commands.ACCOUNTING_COLUMNS)
    assert "Elapsed" not in commands.ACCOUNTING_COLUMNS


@pytest.mark.parametrize(("task", "id_"), [("3", "60_3"), ("4-9%2", "60_[4-9%2]"), ("", "64"), ("N/A", "64")])
def test_ids_of_array_tasks(task: str, id_: str) -> None:
    block = {"JobId": "64", "ArrayJobId": "60", "ArrayTaskId": task}
    assert fields.job_ids("scontrol", block.get)["id"] == id_


def test_node_lists_are_bounded() -> None:
    assert len(values.nodes("n[1-999999999]")) == values.MAX_NODES
    assert len(values.nodes("n[1-99999]x[1-99999]y[1-99999]")) == values.MAX_NODES


def test_forecasts_of_pending_and_running_jobs_are_dropped() -> None:
    times = {"start": 5.0, "end": 9.0, "exit_code": 0, "nodes": ("n1",)}
    assert fields.without_forecasts({**times, "state": "PENDING"}) == {"state": "PENDING", "nodes": ("n1",)}
    assert "end" not in fields.without_forecasts({**times, "state": "RUNNING"})
    assert fields.without_forecasts({**times, "state": "FAILED"})["end"] == 9.0


def test_align_gives_extra_cells_to_a_column_that_may_hold_separators() -> None:
    columns = ("jobid", "jobname", "state", "comment")
    assert align(["5", "a", "b", "FAILED", "x"], columns, frozenset({"jobname", "comment"}), "|") == [
        "5",
        "a|b",
        "FAILED",
        "x",
    ]
    assert align(["5", "a", "FAILED", "x", "y"], columns, frozenset({"jobname", "comment"}), "|") == [
        "5",
        "a",
        "FAILED",
        "x|y",
    ]
    assert align(["5"] * 99, columns, frozenset({"jobname"}), "|") is None


@pytest.mark.parametrize(
    ("gres", "indices"),
    [
        ("gpu:h100:3(IDX:0-1,3),nic:1(IDX:0)", [0, 1, 3]),
        ("gpu(IDX:0,2-3,5)", [0, 2, 3, 5]),
        ("gpu:(null):2(IDX:0-1)", [0, 1]),
        ("gpu:a:1(IDX:2),gpu:b:2(IDX:4-5)", [2, 4, 5]),
        ("gpu:8(IDX:0-7)", list(range(8))),
        ("gpu:0(IDX:)", []),
        ("gpu:(null):0(IDX:N/A)", []),
        ("shard:4(IDX:0)", []),
        ("gpu(IDX:0-99999999)", list(range(64))),
        ("gpu(IDX:3-1,-)", []),
    ],
)
def test_gpu_indices_of_an_allocation(gres: str, indices: list[int]) -> None:
    assert values.gpus_on(("n1",), gres) == tuple(f"n1:{index}" for index in indices)
