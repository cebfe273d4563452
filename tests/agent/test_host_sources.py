"""Sources of the host over several readings, and mounts that do not answer."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from tests.agent.readings import assert_conforms, open_source
from trackside.agent.node import LocalNode
from trackside.agent.pseudo_files import PseudoFile
from trackside.agent.source import AgentSourceUnavailable, Collector, Reading, sources
from trackside.agent.sources import cgroups, filesystems
from trackside.agent.sources.filesystems import MountChecker, Space

HOST = Path(__file__).parent / "hosts/8gpu-ib-v2"


@pytest.fixture
def node(tmp_path: Path) -> LocalNode:
    shutil.copytree(HOST, tmp_path, dirs_exist_ok=True)
    return LocalNode("n1", tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")


def collect(collector: Collector) -> dict[tuple[str, ...], float]:
    """(metric, value of each label but job, step and task) -> value"""
    reading = Reading()
    collector.collect(reading)
    job_labels = {"job", "step", "task"}
    return {
        (sample.metric, *(value for name, value in sample.labels if name not in job_labels)): sample.value
        for sample in reading.samples
    }


def test_the_busy_ratio_covers_the_time_between_two_readings(node: LocalNode) -> None:
    collector = open_source(sources()["cpu"], node)
    assert ("host_cpu_busy_ratio",) not in collect(collector)
    file = node.proc / "stat"
    head, _, rest = file.read_text().partition("\n")
    ticks = list(map(int, head.split()[1:]))
    ticks[0] += 60  # user
    ticks[3] += 30  # idle
    ticks[4] += 10  # iowait: nothing ran then either
    file.write_text("cpu  " + " ".join(map(str, ticks)) + "\n" + rest)
    assert collect(collector)[("host_cpu_busy_ratio",)] == pytest.approx(0.6)
    assert ("host_cpu_busy_ratio",) not in collect(collector), "no time has passed"
    collector.close()


def test_oom_kills_are_not_reported_if_several_nodes_share_a_kernel(node: LocalNode) -> None:
    collector = open_source(sources()["memory"], node)
    assert ("host_oom_kills_total",) in collect(collector)
    (node.sys / "fs/cgroup/memory/slurm_n1").mkdir(parents=True)
    metrics = collect(collector)
    assert ("host_oom_kills_total",) not in metrics
    assert ("host_major_faults_total",) in metrics
    collector.close()


def test_a_recreated_file_is_read_again(tmp_path: Path) -> None:
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


def test_a_long_file_is_read_completely_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_bytes(b"x" * 200_000)
    file = PseudoFile(path)
    assert len(file.read()) == 200_000
    assert len(file.read(100_000)) == 100_000
    file.close()


def test_removed_and_added_adapters_are_noticed(node: LocalNode) -> None:
    collector = open_source(sources()["infiniband"], node)
    folder = node.sys / "class/infiniband"
    assert ("host_infiniband_state", "mlx5_0", "1") in collect(collector)
    shutil.copytree(folder / "mlx5_0", folder / "mlx5_7")
    shutil.rmtree(folder / "mlx5_0")
    for _ in range(20):
        metrics = collect(collector)
    assert {key[1] for key in metrics} == {"mlx5_2", "mlx5_7", "mlx5_10"}
    for name in os.listdir(folder):
        shutil.rmtree(folder / name)
    for _ in range(18):  # adapters are listed again at the fortieth reading
        collect(collector)
    with pytest.raises(AgentSourceUnavailable, match="no adapter"):
        collect(collector)
    collector.close()


def test_the_speed_is_read_again_when_the_link_changes(node: LocalNode) -> None:
    collector = open_source(sources()["network"], node)
    speed, state = (node.sys / "class/net/ens1f0" / name for name in ("speed", "operstate"))
    assert collect(collector)["host_network_speed_bytes_per_second", "ens1f0"] == 12.5e9
    speed.write_text("25000\n")
    assert collect(collector)["host_network_speed_bytes_per_second", "ens1f0"] == 12.5e9
    state.write_text("down\n")
    metrics = collect(collector)
    assert metrics["host_network_up", "ens1f0"] == 0
    assert metrics["host_network_speed_bytes_per_second", "ens1f0"] == 25e9 / 8
    collector.close()


# -- cgroups


def test_cgroups_of_started_and_ended_jobs_are_noticed(node: LocalNode) -> None:
    collector = open_source(sources()["cgroups"], node)
    scope = node.sys / "fs/cgroup/system.slice/slurmstepd.scope"
    shutil.copytree(scope / "job_4242", scope / "job_77")
    jobs = {key[1].split("/")[0] for key in collect(collector)}
    assert jobs == {"job_4242", "job_77"}
    shutil.rmtree(scope)
    assert collect(collector) == {}
    shutil.copytree(HOST / "sys/fs/cgroup/system.slice/slurmstepd.scope", scope.parent / "n1_slurmstepd.scope")
    assert ("host_cgroup_tasks", "job_4242") in collect(collector)
    collector.close()


def test_beyond_the_limit_cgroups_of_jobs_come_before_those_of_steps(node: LocalNode) -> None:
    scope = node.sys / "fs/cgroup/system.slice/slurmstepd.scope"
    for number in range(5):
        shutil.copytree(scope / "job_4242", scope / f"job_{number}")
    collector = open_source(sources()["cgroups"], node, options=cgroups.CgroupOptions(max_cgroups=8))
    reading = Reading()
    collector.collect(reading)
    assert_conforms(reading, sources()["cgroups"])
    names = {dict(sample.labels)["cgroup"] for sample in reading.samples}
    assert len(names) == 8
    assert {name for name in names if "/" not in name} == {f"job_{n}" for n in (0, 1, 2, 3, 4, 4242)}
    assert reading.warnings == ["this node has more than 8 cgroups of jobs: raise collect.cgroups.max_cgroups"]
    collector.close()


def test_tasks_may_be_excluded_and_roots_configured(node: LocalNode) -> None:
    scope = node.sys / "fs/cgroup/system.slice/slurmstepd.scope"
    scope.rename(node.sys / "fs/cgroup/own.slice")
    collector = open_source(
        sources()["cgroups"], node, options=cgroups.CgroupOptions(tasks=False, roots=("own.slice",))
    )
    names = {key[1] for key in collect(collector)}
    assert names == {"job_4242", "job_4242/step_0", "job_4242/step_extern"}
    collector.close()


def test_special_steps_have_names(tmp_path: Path) -> None:
    """Slurm before 20.11 wrote a number for each special step."""
    for name in ("step_4294967294", "step_extern", "step_7"):
        (tmp_path / "uid_9/job_42" / name).mkdir(parents=True)
    steps = {dict(group.labels).get("step", "") for group in cgroups.groups_in(str(tmp_path))}
    assert steps == {"", "batch", "extern", "7"}


# -- mounts that are checked by a child process


def script(folder: Path, text: str) -> str:
    path = folder / "stat"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def wait_for_state(mounts: MountChecker, path: str, at_s: float) -> tuple[Space | None, bool]:
    """The state of a mount once its child process has ended."""
    mounts.state(path, at_s)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        state = mounts.state(path, at_s)
        if state != (None, False):
            return state
        time.sleep(0.01)
    raise AssertionError("the mount did not answer")


def test_space_of_a_mount_that_answers(tmp_path: Path) -> None:
    mounts = MountChecker(60.0, 10.0)
    space, failed = wait_for_state(mounts, str(tmp_path), 1.0)
    expected = os.statvfs(tmp_path)
    assert space is not None
    assert (space.total, failed) == (expected.f_blocks * expected.f_frsize, False)
    mounts.close()


def test_a_mount_with_an_error_has_failed(tmp_path: Path) -> None:
    mounts = MountChecker(60.0, 10.0)
    assert wait_for_state(mounts, str(tmp_path / "stale"), 1.0) == (None, True)
    mounts.close()


def test_a_mount_that_never_answers_blocks_only_one_child(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    mounts = MountChecker(60.0, 10.0, script(tmp_path, f"echo >> {calls}; exec sleep 600"))
    begin = time.monotonic()
    assert mounts.state("/dead", 1.0) == (None, False)
    assert mounts.state("/dead", 10.0) == (None, False)
    assert mounts.state("/dead", 12.0) == (None, True)
    for time_s in range(100, 10_000, 100):
        assert mounts.state("/dead", float(time_s)) == (None, True)
    mounts.keep(set())
    assert mounts.state("/dead", 20_000.0) == (None, True), "its child still runs"
    while not calls.exists() and time.monotonic() < begin + 10:
        time.sleep(0.01)
    assert calls.read_text() == "\n"
    mounts.close()
    assert time.monotonic() - begin < 8


def test_without_the_stat_program_mounts_have_no_state() -> None:
    mounts = MountChecker(60.0, 10.0, "/nowhere/stat")
    assert mounts.state("/dead", 1.0) == (None, False)
    assert mounts.state("/dead", 2.0) == (None, False)
    mounts.close()


def test_remote_mounts_are_never_checked_in_the_agent_process(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    real = os.statvfs

    def recording_statvfs(path: str) -> os.statvfs_result:
        paths.append(path)
        return real("/")

    monkeypatch.setattr(os, "statvfs", recording_statvfs)
    collector = open_source(sources()["filesystems"], node, options=filesystems.FilesystemOptions(remote=False))
    metrics = collect(collector)
    assert ("host_filesystem_read_only", "/home") not in metrics
    assert sorted(path.removeprefix(str(node.proc / "1/root")) for path in paths) == ["/", "/dev/shm", "/scratch"]
    collector.close()


@pytest.mark.parametrize(("number", "failed"), [(116, True), (5, True), (13, False), (2, False)])
def test_only_io_errors_count_as_a_failed_mount(
    number: int, failed: bool, node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_statvfs(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "statvfs", failing_statvfs)
    collector = open_source(sources()["filesystems"], node, options=filesystems.FilesystemOptions(remote=False))
    assert (collect(collector).get(("host_filesystem_error", "/")) == 1.0) == failed
    collector.close()
