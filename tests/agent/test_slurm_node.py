"""The source ``slurm_node``: whether slurmd runs, and its log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.agent.readings import assert_conforms, exposition, open_source
from trackside.agent.node import LocalNode
from trackside.agent.slurm import daemon_log
from trackside.agent.slurm.configuration import find_conf, setting
from trackside.agent.slurm.daemon_log import DaemonLog
from trackside.agent.source import AgentSourceUnavailable, Reading
from trackside.agent.sources.slurm_node import SOURCE, SlurmNodeOptions

CONF = """# a cluster
ClusterName=lab
#SlurmdLogFile=/not/this
slurmdlogfile = "{0}/slurmd.%n.log"   # one per node
SlurmdPidFile={0}/slurmd.%n.pid
SlurmctldLogFile={0}/%h.log
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF.format(tmp_path))
    return path


def read(collector: object) -> Reading:
    reading = Reading()
    collector.collect(reading)  # type: ignore[attr-defined]
    assert_conforms(reading, SOURCE)
    return reading


def test_slurm_conf_is_found_and_read(conf: Path, tmp_path: Path) -> None:
    assert find_conf(str(conf)) == conf
    assert find_conf("", {"SLURM_CONF": str(conf)}) == conf
    assert find_conf(str(tmp_path / "nowhere")) is None
    assert setting(conf, "SlurmdLogFile", "n1") == f"{tmp_path}/slurmd.n1.log"
    assert setting(conf, "SlurmctldLogFile", "n1") == f"{tmp_path}/{os.uname().nodename}.log"
    assert setting(conf, "SlurmSchedLogFile", "n1") is None


def test_the_state_and_log_of_slurmd_are_read(conf: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, comm in ((70, "slurmd"), (71, "sshd")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "comm").write_text(f"{comm}\n")
    log, pid_file = tmp_path / "slurmd.n1.log", tmp_path / "slurmd.n1.pid"
    collector = open_source(SOURCE, LocalNode("n1", proc=proc), options=SlurmNodeOptions(conf=str(conf)))
    reading = read(collector)
    warning = f"{log} cannot be read now (No such file or directory); every reading tries again"
    # under systemd it writes no pid file
    assert exposition(reading) == f'slurm_daemon_up{{daemon="slurmd"}} 1\n# warning {warning}\n'
    (proc / "70" / "comm").write_text("bash\n")
    assert [sample.value for sample in read(collector).samples] == [0.0]
    (proc / "70" / "comm").write_text("slurmd\n")
    pid_file.write_text("70\n")
    log.write_text("[2026-11-22T02:00:01.250] [7.batch] done with job\n")
    reading = read(collector)
    assert [(dict(line.labels), line.text) for line in reading.lines] == [
        ({"unit": "slurmd"}, "[2026-11-22T02:00:01.250] [7.batch] done with job")
    ]
    written = time.mktime((2026, 11, 22, 2, 0, 1, 0, 0, -1))
    assert reading.lines[0].time_ns == min(int(written) * 1_000_000_000 + 250_000_000, reading.time_ns)
    assert [sample.value for sample in reading.samples] == [1.0]
    for text in ("71\n", "99\n", "../70", "", "70\0"):  # another process, no process, not a number
        pid_file.write_text(text)
        assert [sample.value for sample in read(collector).samples] == [0.0], text
    collector.close()


def test_without_a_list_of_processes_nothing_is_said(conf: Path, tmp_path: Path) -> None:
    collector = open_source(SOURCE, LocalNode("n1", proc=tmp_path / "gone"), options=SlurmNodeOptions(conf=str(conf)))
    assert read(collector).samples == []
    collector.close()


def test_a_slurmd_without_log_file_gives_no_lines(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=lab\n")
    assert (
        read(open_source(SOURCE, LocalNode("n1", proc=tmp_path), options=SlurmNodeOptions(conf=str(conf)))).lines == []
    )


def test_without_slurm_conf_the_source_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(AgentSourceUnavailable, match=r"no slurm\.conf"):
        open_source(SOURCE, options=SlurmNodeOptions(conf=str(tmp_path / "nowhere")))


def test_a_large_log_is_read_over_several_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_log, "MAX_BYTES", 1000)
    monkeypatch.setattr(daemon_log, "BACKLOG_BYTES", 300)
    path = tmp_path / "slurmd.log"
    path.write_text("".join(f"line {number:04}\n" for number in range(1000)))
    log = DaemonLog(path, "slurmd")
    reading = Reading()
    log.collect(reading)
    assert [line.text for line in reading.lines] == [f"line {number:04}" for number in range(971, 1000)]
    with path.open("a") as file:
        file.write("".join(f"more {number:04}\n" for number in range(300)) + "x" * 40_000 + "\nlast\n")
    texts: list[str] = []
    for _ in range(60):
        reading = Reading()
        log.collect(reading)
        assert sum(len(line.text) for line in reading.lines) <= 20_000
        texts += [line.text for line in reading.lines]
    assert texts[:300] == [f"more {number:04}" for number in range(300)]
    assert "".join(texts[300:-1]) == "x" * 40_000
    assert texts[-1] == "last"
    log.close()
