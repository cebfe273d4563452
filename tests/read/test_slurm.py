"""Slurm's vocabulary: what each function makes of a field, and of a field that says nothing."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from trackside.read import slurm
from trackside.read.slurm_table import align

EIGHT = dt.datetime(2026, 11, 21, 8, tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize(
    ("function", "text", "expected"),
    [
        (slurm.time_of, "2026-11-21T08:00:00", EIGHT),
        (slurm.time_of, "2026-11-21T09:00:00+01:00", EIGHT),
        (slurm.time_of, "2026-11-21 08:00:00", EIGHT),
        (slurm.time_of, str(int(EIGHT)), EIGHT),
        (slurm.time_of, "2026-13-41T08:00:00", None),
        (slurm.time_of, "4294967294", None),
        (slurm.time_of, "Unknown", None),
        (slurm.duration_of, "1-02:03:04", 93784.0),
        (slurm.duration_of, "02:03:04", 7384.0),
        (slurm.duration_of, "59:58", 3598.0),
        (slurm.duration_of, "00:00.012", 0.012),
        (slurm.duration_of, "UNLIMITED", None),
        (slurm.duration_of, "Partition_Limit", None),
        (slurm.state_of, "CANCELLED by 1001", ("CANCELLED", "1001")),
        (slurm.state_of, "OUT_OF_ME+", ("OUT_OF_MEMORY", None)),
        (slurm.state_of, "CANCELLED+", ("CANCELLED", None)),
        (slurm.state_of, "RE+", (None, None)),
        (slurm.state_of, "NF", ("NODE_FAIL", None)),
        (slurm.state_of, "", (None, None)),
        (slurm.exit_of, "0:11", (0, 11)),
        (slurm.exit_of, "", None),
        (slurm.exit_of_status, 256, (1, 0)),
        (slurm.exit_of_status, 35584, (139, 0)),
        (slurm.exit_of_status, 11, (0, 11)),
        (slurm.bytes_of, "3960K", 3960 << 10),
        (slurm.bytes_of, "62.50G", int(62.5 * (1 << 30))),
        (slurm.bytes_of, "0", 0),
        (slurm.bytes_of, "4Gn", None),
        (slurm.gpus_of, "billing=2,cpu=2,gres/gpu=8,gres/gpu:h100=8", 8),
        (slurm.gpus_of, "gres/gpu:a100=4,gres/gpu:h100=2", 6),
        (slurm.gpus_of, "cpu=2,mem=200M", None),
        (slurm.parents_of, "afterany:41:42,afterok:43_*(unfulfilled)?afternotok:9(failed)", ("41", "42", "43", "9")),
        (slurm.parents_of, "after:7,singleton,expand:8", ()),
        (slurm.parents_of, slurm.dependency_of("sbatch -d afterany:5_1 x.sh"), ("5_1",)),
        (slurm.parents_of, slurm.dependency_of('sbatch --dependency="afterok:5" x.sh'), ("5",)),
        (slurm.dependency_of, "sbatch train.sh -d data", None),
        (slurm.nodes_of, "g[2-3,07-09],login1", ("g2", "g3", "g07", "g08", "g09", "login1")),
        (slurm.nodes_of, "r[1-2]n[1-2]x", ("r1n1x", "r1n2x", "r2n1x", "r2n2x")),
        (slurm.nodes_of, "None assigned", ()),
        (slurm.nodes_of, "(Resources)", ()),
        (slurm.split_job_id, "60_3.batch", ("60_3", "60", "batch")),
        (slurm.split_job_id, "73+0", ("73+0", None, None)),
        (slurm.split_job_id, "60_[2-4%2]", ("60_[2-4%2]", "60", None)),
        (slurm.split_job_id, "train", None),
        (slurm.state_among, ["PENDING", "REQUEUED"], "REQUEUED"),
        (slurm.state_among, ["CANCELLED", "COMPLETING"], "CANCELLED"),
        (slurm.state_among, ["PENDING", "SPECIAL_EXIT"], "SPECIAL_EXIT"),
        (slurm.state_among, [], None),
        (slurm.node_state_of, "DOWN*+DRAIN", ("down", ("not_responding", "drain"))),
        (slurm.node_state_of, "drng", ("allocated", ("drain",))),
        (slurm.node_state_of, "idle~", ("idle", ("powered_down",))),
        (slurm.node_state_of, ["IDLE", "DRAIN"], ("idle", ("drain",))),
        (slurm.node_state_of, None, (None, ())),
    ],
)
def test_words(function: Any, text: Any, expected: Any) -> None:
    assert function(text) == expected


def test_node_lists_are_bounded() -> None:
    assert len(slurm.nodes_of("n[1-999999999]")) == slurm.MAX_NODES
    assert len(slurm.nodes_of("n[1-99999]x[1-99999]y[1-99999]")) == slurm.MAX_NODES


def test_forecasts_are_not_facts() -> None:
    times = {"start": 5.0, "end": 9.0, "exit_code": 0, "nodes": ("n1",)}
    assert slurm.job_fields({**times, "state": "PENDING"}) == {"state": "PENDING", "nodes": ("n1",)}
    assert "end" not in slurm.job_fields({**times, "state": "RUNNING"})
    assert slurm.job_fields({**times, "state": "FAILED"})["end"] == 9.0


def test_align_gives_the_surplus_to_the_column_that_may_hold_it() -> None:
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
def test_gpus_that_a_job_was_given(gres: str, indices: list[int]) -> None:
    assert slurm.held_gpus(("n1",), gres) == tuple(f"n1:{index}" for index in indices)
