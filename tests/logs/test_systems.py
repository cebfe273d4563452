"""Roles of events in several lines: root cause, teardown, noise.

A file in systems/, NAME.PLANE.txt, holds the expected events (JSON, one line), then the log.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from trackside.catalog.hostlist import expand
from trackside.catalog.signals import read_code, signal_number
from trackside.catalog.xid import XIDS, is_mild, recovery_action, sxid_fatal, xid
from trackside.logs.line import FileContext
from trackside.logs.scan import scan, scan_text
from trackside.model import Event

CASES = sorted((Path(__file__).parent / "systems").glob("*.txt"))
SYSTEMS = frozenset(
    [
        "torchrun",
        "spawn",
        "accelerate",
        "deepspeed-launcher",
        "slurm",
        "shell",
        "mpirun",
        "ray",
        "c10d",
        "gloo",
        "nccl",
        "rendezvous",
        "process-group",
        "python-fatal",
        "self-signal",
        "environment",
        "kernel",
        "kernel-node",
        "nvidia-driver",
        "slurmctld",
        "lsf",
        "pbs",
        "grid-engine",
        "htcondor",
        "flux",
        "kubernetes",
        "sagemaker",
        "cloud",
        "slurm-summary",
    ]
)


def read(case: Path) -> tuple[list[dict[str, Any]], str, str]:
    """(expected events, log, plane)"""
    first, log = case.read_text().split("\n", 1)
    return json.loads(first), log, case.stem.rsplit(".", 1)[1]


def events(text: str | bytes, plane: str) -> list[Event]:
    return [event for event in scan_text(text, plane=plane) if event.parser in SYSTEMS and event.kind != "host"]


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_events_and_roles_of_a_log(case: Path, ending: str) -> None:
    expected_events, log, plane = read(case)
    actual = sorted(events(log.replace("\n", ending), plane), key=lambda event: event.at.offset)
    assert [(event.kind, event.role.value) for event in actual] == [
        (row["kind"], row["role"]) for row in expected_events
    ]
    for event, expected in zip(actual, expected_events, strict=True):
        assert {name: event.get(name) for name in expected} == expected


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_damaged_logs_cause_no_defect(case: Path) -> None:
    _, log, plane = read(case)
    data = log.encode()
    digits = re.compile(rb"\d")
    pieces = [data[::-1], digits.sub(b"\xff", data), digits.sub(b"99999", data), data.replace(b" ", b"")]
    for cut in range(0, len(data), 61):
        pieces += [data[:cut], data[cut:]]
    for piece in pieces:
        result = scan(io.BytesIO(piece), lambda event: None, FileContext("log", plane=plane))
        assert not result.defects.keys() & SYSTEMS


def test_the_xid_table_is_complete() -> None:
    assert set(XIDS) == set(range(1, 173))
    assert all(entry.action and entry.mnemonic for entry in XIDS.values())
    assert xid(79).blame == "hardware"
    assert {xid(n).blame for n in (13, 31, 43)} == {"application"}
    assert xid(45).blame == "informational"
    assert xid(9999).blame == "either"


def test_severity_of_nvlink5_xids() -> None:
    assert not is_mild(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000)")
    assert is_mild(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000)")
    assert not is_mild(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000031 0x00000000)")
    assert is_mild(149, "NETIR_LINK_EVT  Nonfatal XC0 i0 Link 08 (0x004505c6 0x00000001)")
    assert not is_mild(79, "GPU has fallen off the bus")
    assert not is_mild(149, "something else")


def test_recovery_action_and_sxid() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    assert recovery_action(text) == "Node Reboot Required"
    assert recovery_action("") is None
    assert sxid_fatal(28006, "Non-fatal, Link 46") is False
    assert sxid_fatal(19047, "Fatal, Link 32") is True
    assert sxid_fatal(23005, "") is True
    assert sxid_fatal(11012, "") is False
    assert sxid_fatal(99999, "") is None


@pytest.mark.parametrize(
    ("code", "signal"),
    [(0, None), (1, None), (-9, 9), (137, 9), (139, 11), (134, 6), (143, 15), (255, None), (128, None)],
)
def test_exit_codes(code: int, signal: int | None) -> None:
    assert read_code(code).signal == signal


def test_signal_names_and_host_lists() -> None:
    assert signal_number("Segmentation fault") == 11
    assert signal_number("Signals.SIGTERM") == signal_number("TERM") == signal_number("15") == 15
    assert signal_number("nonsense") is None
    assert expand("n[1-3,7],login", 9) == ("n1", "n2", "n3", "n7", "login")
    assert expand("g[08-10]-ib", 9) == ("g08-ib", "g09-ib", "g10-ib")
    assert len(expand("n[1-999999]", 256)) == 256
