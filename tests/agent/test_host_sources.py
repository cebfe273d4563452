"""What a single picture of a machine cannot show: readings one after the other, and mounts that don't answer."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from tests.agent.readings import conform, opened
from trackside.agent.node import LocalNode
from trackside.agent.pseudo_files import PseudoFile
from trackside.agent.source import Collector, Reading, Unavailable, sources
from trackside.agent.sources import cgroups, filesystems
from trackside.agent.sources.filesystems import MountChecker, Space

HOST = Path(__file__).parent / "hosts/8gpu-ib-v2"


@pytest.fixture
def node(tmp_path: Path) -> LocalNode:
    shutil.copytree(HOST, tmp_path, dirs_exist_ok=True)
    return LocalNode("n1", tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")


def collected(collector: Collector) -> dict[tuple[str, ...], float]:
    """(metric, value of each label but job, step and task) -> value"""
    reading = Reading()
    collector.collect(reading)
    aside = {"job", "step", "task"}
    return {
        (sample.metric, *(value for name, value in sample.labels if name not in aside)): sample.value
        for sample in reading.samples
    }


def test_busy_is_of_the_time_between_two_readings(node: LocalNode) -> None:
    collector = opened(sources()["cpu"], node)
    assert ("host_cpu_busy_ratio",) not in collected(collector)
    file = node.proc / "stat"
    head, _, rest = file.read_text().partition("\n")
    ticks = list(map(int, head.split()[1:]))
    ticks[0] += 60  # user
    ticks[3] += 30  # idle
    ticks[4] += 10  # iowait: nothing ran then either
    file.write_text("cpu  " + " ".join(map(str, ticks)) + "\n" + rest)
    assert collected(collector)[("host_cpu_busy_ratio",)] == pytest.approx(0.6)
    assert ("host_cpu_busy_ratio",) not in collected(collector), "no time has gone by"
    collector.close()


def test_kills_that_one_kernel_counts_for_several_nodes_are_nobodys(node: LocalNode) -> None:
    collector = opened(sources()["memory"], node)
    assert ("host_oom_kills_total",) in collected(collector)
    (node.sys / "fs/cgroup/memory/slurm_n1").mkdir(parents=True)
    told = collected(collector)
    assert ("host_oom_kills_total",) not in told
    assert ("host_major_faults_total",) in told
    collector.close()


def test_a_file_that_comes_back_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_text("1\n")
    file = PseudoFile(path)
    assert file.read(64) == b"1\n"
    file.close()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.read(64)
    path.write_text("2\n")
    assert file.read(64) == b"2\n"
    file.close()


def test_a_long_file_is_read_whole_and_not_beyond_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_bytes(b"x" * 200_000)
    file = PseudoFile(path)
    assert len(file.read()) == 200_000
    assert len(file.read(100_000)) == 100_000
    file.close()


def test_an_adapter_that_goes_and_one_that_comes(node: LocalNode) -> None:
    collector = opened(sources()["infiniband"], node)
    folder = node.sys / "class/infiniband"
    assert ("host_infiniband_state", "mlx5_0", "1") in collected(collector)
    shutil.copytree(folder / "mlx5_0", folder / "mlx5_7")
    shutil.rmtree(folder / "mlx5_0")
    for _ in range(20):
        found = collected(collector)
    assert {key[1] for key in found} == {"mlx5_2", "mlx5_7", "mlx5_10"}
    for name in os.listdir(folder):
        shutil.rmtree(folder / name)
    for _ in range(18):  # the second look comes with the fortieth reading
        collected(collector)
    with pytest.raises(Unavailable, match="no adapter"):
        collected(collector)
    collector.close()


def test_a_speed_is_asked_again_when_the_link_changes(node: LocalNode) -> None:
    collector = opened(sources()["network"], node)
    speed, state = (node.sys / "class/net/ens1f0" / name for name in ("speed", "operstate"))
    assert collected(collector)["host_network_speed_bytes_per_second", "ens1f0"] == 12.5e9
    speed.write_text("25000\n")
    assert collected(collector)["host_network_speed_bytes_per_second", "ens1f0"] == 12.5e9
    state.write_text("down\n")
    found = collected(collector)
    assert found["host_network_up", "ens1f0"] == 0
    assert found["host_network_speed_bytes_per_second", "ens1f0"] == 25e9 / 8
    collector.close()


# -- cgroups


def test_jobs_come_and_go(node: LocalNode) -> None:
    collector = opened(sources()["cgroups"], node)
    scope = node.sys / "fs/cgroup/system.slice/slurmstepd.scope"
    shutil.copytree(scope / "job_4242", scope / "job_77")
    jobs = {key[1].split("/")[0] for key in collected(collector)}
    assert jobs == {"job_4242", "job_77"}
    shutil.rmtree(scope)
    assert collected(collector) == {}
    shutil.copytree(HOST / "sys/fs/cgroup/system.slice/slurmstepd.scope", scope.parent / "n1_slurmstepd.scope")
    assert ("host_cgroup_tasks", "job_4242") in collected(collector)
    collector.close()


def test_cgroups_are_bounded_jobs_first(node: LocalNode) -> None:
    scope = node.sys / "fs/cgroup/system.slice/slurmstepd.scope"
    for number in range(5):
        shutil.copytree(scope / "job_4242", scope / f"job_{number}")
    collector = opened(sources()["cgroups"], node, options=cgroups.CgroupOptions(most=8))
    reading = Reading()
    collector.collect(reading)
    conform(reading, sources()["cgroups"])
    names = {dict(sample.labels)["cgroup"] for sample in reading.samples}
    assert len(names) == 8
    assert {name for name in names if "/" not in name} == {f"job_{n}" for n in (0, 1, 2, 3, 4, 4242)}
    assert reading.warnings == ["this node has more than 8 cgroups of jobs: raise collect.cgroups.most"]
    collector.close()


def test_tasks_may_be_left_out_and_roots_be_elsewhere(node: LocalNode) -> None:
    scope = node.sys / "fs/cgroup/system.slice/slurmstepd.scope"
    scope.rename(node.sys / "fs/cgroup/own.slice")
    collector = opened(sources()["cgroups"], node, options=cgroups.CgroupOptions(tasks=False, roots=("own.slice",)))
    names = {key[1] for key in collected(collector)}
    assert names == {"job_4242", "job_4242/step_0", "job_4242/step_extern"}
    collector.close()


def test_steps_without_a_number_have_their_names(tmp_path: Path) -> None:
    """Slurm before 20.11 wrote the number that stands for them."""
    for name in ("step_4294967294", "step_extern", "step_7"):
        (tmp_path / "uid_9/job_42" / name).mkdir(parents=True)
    steps = {dict(group.labels).get("step", "") for group in cgroups.groups_in(str(tmp_path))}
    assert steps == {"", "batch", "extern", "7"}


# -- mounts that are asked by a child


def script(folder: Path, text: str) -> str:
    path = folder / "stat"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def answered(mounts: MountChecker, path: str, at_s: float) -> tuple[Space | None, bool]:
    """What a mount says once its child has had time to end."""
    mounts.state(path, at_s)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = mounts.state(path, at_s)
        if found != (None, False):
            return found
        time.sleep(0.01)
    raise AssertionError("it never answered")


def test_a_mount_that_answers(tmp_path: Path) -> None:
    mounts = MountChecker(60.0, 10.0)
    space, failed = answered(mounts, str(tmp_path), 1.0)
    told = os.statvfs(tmp_path)
    assert space is not None
    assert (space.total, failed) == (told.f_blocks * told.f_frsize, False)
    mounts.close()


def test_a_mount_that_says_no(tmp_path: Path) -> None:
    mounts = MountChecker(60.0, 10.0)
    assert answered(mounts, str(tmp_path / "stale"), 1.0) == (None, True)
    mounts.close()


def test_a_mount_that_never_answers_costs_one_child(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    mounts = MountChecker(60.0, 10.0, script(tmp_path, f"echo >> {asked}; exec sleep 600"))
    began = time.monotonic()
    assert mounts.state("/dead", 1.0) == (None, False)
    assert mounts.state("/dead", 10.0) == (None, False)
    assert mounts.state("/dead", 12.0) == (None, True)
    for later in range(100, 10_000, 100):
        assert mounts.state("/dead", float(later)) == (None, True)
    mounts.keep(set())
    assert mounts.state("/dead", 20_000.0) == (None, True), "its child is still there"
    while not asked.exists() and time.monotonic() < began + 10:
        time.sleep(0.01)
    assert asked.read_text() == "\n"
    mounts.close()
    assert time.monotonic() - began < 8


def test_without_the_program_nothing_is_said() -> None:
    mounts = MountChecker(60.0, 10.0, "/nowhere/stat")
    assert mounts.state("/dead", 1.0) == (None, False)
    assert mounts.state("/dead", 2.0) == (None, False)
    mounts.close()


def test_remote_mounts_are_never_asked_in_the_agent_itself(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[str] = []
    real = os.statvfs

    def noted(path: str) -> os.statvfs_result:
        here.append(path)
        return real("/")

    monkeypatch.setattr(os, "statvfs", noted)
    collector = opened(sources()["filesystems"], node, options=filesystems.FilesystemOptions(remote=False))
    found = collected(collector)
    assert ("host_filesystem_read_only", "/home") not in found
    assert sorted(path.removeprefix(str(node.proc / "1/root")) for path in here) == ["/", "/dev/shm", "/scratch"]
    collector.close()


@pytest.mark.parametrize(("number", "failed"), [(116, True), (5, True), (13, False), (2, False)])
def test_what_may_not_be_seen_is_no_failure(
    number: int, failed: bool, node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "statvfs", refused)
    collector = opened(sources()["filesystems"], node, options=filesystems.FilesystemOptions(remote=False))
    assert (collected(collector).get(("host_filesystem_error", "/")) == 1.0) == failed
    collector.close()
