"""``trackside agent check``: reports what works on this machine, and exits with 1 if something requested does not."""

from __future__ import annotations

import io
import json
import os
import socket
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.agent.receivers import fake_receiver
from tests.serve.receiving import RunningReceiver
from tests.services import free_port
from trackside.agent import check as checks
from trackside.agent.__main__ import main
from trackside.agent.check import CheckItem, CheckReport
from trackside.agent.delivery.scrape import MetricsServer
from trackside.agent.delivery.spool import Spool, SpoolOptions
from trackside.agent.slurm import configuration
from trackside.agent.source import Reading
from trackside.agent.sources import memory
from trackside.agent.user import CAPABILITIES, capabilities_in_words
from trackside.stores.receiver.options import ServeOptions

ALL_CAPABILITIES = {f"CAP_{name.upper()}" for name in CAPABILITIES}


def check(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, report lines by id, and what was written to stderr."""
    common = ["check", "--config", str(folder / "agent.toml"), "--spool", str(folder / "spool")]
    if "--listen" not in arguments:
        common += ["--listen", f"127.0.0.1:{free_port()}"]
    (folder / "agent.toml").touch()
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([*common, *arguments, "--json"])
    report = json.loads(out.getvalue())
    assert report["ok"] == (status == 0)
    lines = {line["id"]: line for part in ("sources", "outputs", "surroundings") for line in report[part]}
    return status, lines, err.getvalue()


def test_each_source_has_a_line(tmp_path: Path) -> None:
    status, lines, _ = check(tmp_path, "--only", "cpu", "clock")
    assert status == 0
    assert lines["cpu"]["state"] == "works"
    assert "samples" in lines["cpu"]["text"]
    assert (lines["memory"]["state"], "--only" in lines["memory"]["text"]) == ("off", True)
    assert lines["send"]["state"] == "off"
    assert lines["privileges"]["text"].startswith(f"uid {os.geteuid()}, ")


def test_slurm_conf_is_searched_in_the_same_paths_as_by_the_slurm_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "CONF_PATHS", (str(tmp_path / "absent"), str(tmp_path / "cached.conf")))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert "cached.conf" not in check(tmp_path, "--only", "cpu")[1]["slurm"]["text"]
    (tmp_path / "cached.conf").touch()
    assert "cached.conf" in check(tmp_path, "--only", "cpu")[1]["slurm"]["text"]


def test_a_node_whose_gpus_no_source_reads_is_named() -> None:
    gpu, cpu = CheckItem("gpu", "unavailable", "no NVML"), CheckItem("cpu", "works", "samples: 1")
    assert CheckReport("n", [gpu, cpu]).text().endswith("; no source reads GPUs on this node")
    exporter = CheckItem("dcgm_exporter", "works", "samples: 1")
    assert "no source reads GPUs" not in CheckReport("n", [gpu, exporter]).text()


def test_text_output_has_one_line_per_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--only", "cpu", "--listen", ""]) == 0
    out = capsys.readouterr().out
    assert next(line for line in out.splitlines() if line.startswith("  cpu ")).split()[:2] == ["cpu", "works"]
    assert out.endswith("all requested sources and outputs work\n")


def test_missing_hardware_fails_the_check_only_if_its_source_is_switched_on(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(f"[agent]\nsys = '{tmp_path}'\n")
    status, lines, _ = check(tmp_path, "--without", "cpu")
    assert lines["infiniband"]["state"] == "unavailable"
    assert lines["infiniband"]["text"]
    (tmp_path / "agent.toml").write_text(f"[agent]\nsys = '{tmp_path}'\n[collect.infiniband]\non = true\n")
    status, lines, _ = check(tmp_path, "--without", "cpu")
    assert lines["infiniband"]["asked"]
    assert status == 1


def test_the_token_is_checked_against_the_receiver(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "tokens").chmod(0o600)
    receiver = RunningReceiver(
        ServeOptions(store=str(tmp_path / "store"), write_token_files=(str(tmp_path / "tokens"),))
    )
    config = "[send.remote_write]\nurl = '{url}'\nbearer = '{token}'\n[send.loki]\nurl = '{url}'\nbearer = '{token}'\n"
    try:
        (tmp_path / "agent.toml").write_text(config.format(url=receiver.url, token="0123456789abcdef0123456789abcdef"))
        status, lines, _ = check(tmp_path, "--only", "cpu")
        assert (status, lines["remote_write"]["state"], lines["loki"]["state"]) == (0, "works", "works"), lines
        assert lines["spool"]["state"] == "works"
        (tmp_path / "agent.toml").write_text(config.format(url=receiver.url, token="another-token-0123"))
        status, lines, _ = check(tmp_path, "--only", "cpu")
        assert (status, lines["remote_write"]["state"], lines["loki"]["state"]) == (1, "unavailable", "unavailable")
        assert "answers 401" in lines["loki"]["text"]
        assert lines["loki"]["remedy"] == "check the token, the user and the tenant"
    finally:
        receiver.close()


def test_an_unreachable_receiver_fails_the_check(tmp_path: Path) -> None:
    status, lines, _ = check(tmp_path, "--only", "cpu", "--remote-write", f"http://127.0.0.1:{free_port()}")
    assert status == 1
    assert "connection refused" in lines["remote_write"]["text"]


def test_a_receiver_that_rejects_an_empty_body_counts_as_reachable(tmp_path: Path) -> None:
    with fake_receiver(lambda request: (400, "no streams", {})) as receiver:
        status, lines, _ = check(tmp_path, "--only", "cpu", "--loki", receiver.url)
    assert (status, lines["loki"]["state"]) == (0, "works")


def test_an_unwritable_spool_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with fake_receiver() as receiver:
        status, lines, _ = check(
            tmp_path, "--only", "cpu", "--remote-write", receiver.url, "--spool", str(tmp_path / "file" / "spool")
        )
    assert (status, lines["spool"]["state"]) == (1, "unavailable")
    assert "spool.path" in lines["spool"]["remedy"]


def test_a_running_agent_is_not_disturbed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool" / "remote_write", SpoolOptions(), print)
    server = MetricsServer(("127.0.0.1", 0), str, str)
    server.start()
    try:
        with fake_receiver() as receiver:
            address = f"127.0.0.1:{server.server_port}"
            status, lines, _ = check(tmp_path, "--only", "cpu", "--remote-write", receiver.url, "--listen", address)
        assert status == 0, lines
        assert "already served by an agent" in lines["/metrics"]["text"]
    finally:
        server.stop()
        spool.close()
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["remote_write"]


def test_a_port_in_use_by_another_program_fails_the_check(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        status, lines, _ = check(tmp_path, "--only", "cpu", "--listen", f"127.0.0.1:{listener.getsockname()[1]}")
    assert (status, lines["/metrics"]["state"]) == (1, "unavailable")
    assert "in use" in lines["/metrics"]["text"]


@pytest.mark.parametrize(
    ("bits", "description"),
    [
        ("0000000000000000", "no capabilities"),
        ("000001ffffffffff", "all capabilities"),
        ("0000000400080000", "CAP_SYS_PTRACE, CAP_SYSLOG"),
        ("000001fffeffffff", "all capabilities but CAP_SYS_RESOURCE"),
    ],
)
def test_capabilities_are_listed_by_name(tmp_path: Path, bits: str, description: str) -> None:
    (tmp_path / "status").write_text(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{bits}\n")
    assert capabilities_in_words(tmp_path / "status") == description


def test_without_privileges_a_source_says_whose_data_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(missing: str) -> dict[str, tuple[str, bool]]:
        monkeypatch.setattr(checks, "capabilities", lambda: ALL_CAPABILITIES - {missing})
        _, items, _ = check(tmp_path, "--only", "processes", "job_output", "cpu")
        return {
            id_: (items[id_]["state"], f"those of other users need {missing}" in items[id_]["text"])
            for id_ in ("processes", "job_output", "cpu")
        }

    assert states("none") == dict.fromkeys(("processes", "job_output", "cpu"), ("works", False))
    expected = {"processes": ("partly", True), "job_output": ("partly", True), "cpu": ("works", False)}
    assert states("CAP_SYS_PTRACE") == expected
    assert states("CAP_DAC_READ_SEARCH") == {**expected, "processes": ("works", False)}


def test_a_sources_warning_is_shown_in_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(collector: object, reading: Reading) -> None:
        reading.sample("host_memory_total_bytes", 1.0)
        reading.warnings.append("half of it may not be read")

    monkeypatch.setattr(memory._Memory, "collect", collect)
    status, lines, _ = check(tmp_path, "--only", "memory")
    assert status == 0
    assert lines["memory"]["state"] == "partly"
    assert lines["memory"]["text"].partition("; ")[2] == "half of it may not be read"
