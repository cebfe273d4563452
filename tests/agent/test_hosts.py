"""Recorded machines: what each source reads from one, and that none breaks on the odd one.

``pytest tests/agent/test_hosts.py --rewrite`` renews ``expected.txt`` of each host: read the diff.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.agent.readings import assert_conforms, assert_golden, exposition, open_source
from trackside.agent.node import LocalNode
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Reading, sources
from trackside.agent.sources.filesystems import Space

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.name for path in HOSTS.iterdir())
HOST_SOURCES = ("block", "cgroups", "clock", "cpu", "filesystems", "infiniband", "memory", "network", "nfs", "pressure")
AT_NS = 1_772_438_400_000_000_000


def node(host: str) -> LocalNode:
    root = HOSTS / host
    return LocalNode("n1", root / "proc", root / "sys", root / "dev")


@pytest.fixture(autouse=True)
def fixed_system_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """System calls answer as on a machine with a terabyte of disk and a clock offset of half a millisecond."""
    disk = SimpleNamespace(f_blocks=250_000_000, f_frsize=4096, f_bavail=100_000_000, f_ffree=60_000_000)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    monkeypatch.setattr(
        "trackside.agent.sources.filesystems.MountChecker.state", lambda self, path: (Space(10, 4, 2), False)
    )
    monkeypatch.setattr("trackside.agent.sources.clock.offset_s", lambda: -0.0005)


@pytest.fixture
def open_collectors() -> Iterator[list[Collector]]:
    collectors: list[Collector] = []
    yield collectors
    for collector in collectors:
        collector.close()


def read(source: AgentSource, host: str, open_collectors: list[Collector]) -> Reading | AgentSourceUnavailable:
    try:
        collector = open_source(source, node(host))
        open_collectors.append(collector)
        reading = Reading(AT_NS)
        collector.collect(reading)
    except AgentSourceUnavailable as error:
        return error
    return reading


@pytest.mark.parametrize("host", NAMES)
def test_readings_of_a_host_match_the_golden(host: str, rewrite: bool, open_collectors: list[Collector]) -> None:
    parts = []
    for name in HOST_SOURCES:
        content = read(sources()[name], host, open_collectors)
        if isinstance(content, AgentSourceUnavailable):
            text = f"# unavailable: {content.reason}\n" + (f"# remedy: {content.remedy}\n" if content.remedy else "")
        else:
            text = exposition(content)
        parts.append(f"== {name}\n{text}".replace(str(HOSTS / host), ""))
    assert_golden(HOSTS / host / "expected.txt", "\n".join(parts), rewrite)


@pytest.mark.parametrize("host", NAMES)
def test_samples_conform_to_the_catalog(host: str, open_collectors: list[Collector]) -> None:
    readings = {name: read(sources()[name], host, open_collectors) for name in HOST_SOURCES}
    available = {name: reading for name, reading in readings.items() if isinstance(reading, Reading)}
    assert available
    for name, reading in available.items():
        assert_conforms(reading, sources()[name], bounds=host != "odd")


@pytest.mark.parametrize("name", HOST_SOURCES)
def test_each_source_reads_this_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is unavailable only without its hardware."""
    monkeypatch.undo()
    if name in ("infiniband", "pressure", "cgroups"):
        try:
            open_source(sources()[name], LocalNode("n1")).close()
        except AgentSourceUnavailable as error:
            pytest.skip(f"this machine lacks it: {error.reason}")
    collector = open_source(sources()[name], LocalNode("n1"))
    try:
        for _ in range(2):
            reading = Reading()
            collector.collect(reading)
            assert_conforms(reading, sources()[name])
        assert reading.samples or name in ("nfs", "cgroups", "filesystems")
    finally:
        collector.close()


@pytest.mark.parametrize("name", [name for name in HOST_SOURCES if name != "clock"])
def test_an_unreadable_machine_makes_sources_unavailable(name: str, tmp_path: Path) -> None:
    """The reason names what is missing. The clock needs no file."""
    with pytest.raises(AgentSourceUnavailable) as error:
        open_source(sources()[name], LocalNode("n1", tmp_path, tmp_path, tmp_path))
    assert str(tmp_path) in error.value.reason or error.value.remedy


def test_an_unreadable_file_costs_only_its_own_metrics(
    monkeypatch: pytest.MonkeyPatch, open_collectors: list[Collector]
) -> None:
    real_open = os.open

    def restricted_open(path: str, flags: int, *mode: int) -> int:
        if str(path).endswith(("/vmstat", "/loadavg", "/snmp", "pressure/io", "/symbol_error", "/memory.stat")):
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", restricted_open)
    for name in ("cpu", "memory", "network", "pressure"):
        content = read(sources()[name], "8gpu-ib-v2", open_collectors)
        assert isinstance(content, Reading), content
        assert content.samples
        assert [text for text in content.warnings if "Permission denied" in text]
    for name in ("infiniband", "cgroups"):
        content = read(sources()[name], "8gpu-ib-v2", open_collectors)
        assert isinstance(content, Reading), content
        assert content.samples


def test_reading_a_host_with_two_hundred_cores_takes_little_cpu_time(
    tmp_path: Path, open_collectors: list[Collector]
) -> None:
    """All sources of the host together; bench/agent.py measures the whole agent.

    The test measures CPU time of this process, so that the bound holds on a machine under load.
    """
    big = big_host(tmp_path)
    collectors = [open_source(sources()[name], big) for name in HOST_SOURCES]
    open_collectors += collectors
    cpu_times_s = []
    for _ in range(7):
        before = time.thread_time()
        for collector in collectors:
            collector.collect(Reading(AT_NS))
        cpu_times_s.append(time.thread_time() - before)
    assert min(cpu_times_s) < 0.015, cpu_times_s


def big_host(folder: Path, cores: int = 200) -> LocalNode:
    """The 8-GPU host with many cores and eight adapters."""
    import shutil

    shutil.copytree(HOSTS / "8gpu-ib-v2", folder, dirs_exist_ok=True)
    line = "812003 12 40122 9120033 312 0 120 0 0 0"
    stat = folder / "proc/stat"
    rest = stat.read_text().split("\nintr ", 1)[1]
    head = "\n".join([f"cpu  {line}", *(f"cpu{core} {line}" for core in range(cores))])
    stat.write_text(f"{head}\nintr {'0 ' * 4000}{rest}")
    for number in range(3, 8):
        shutil.copytree(folder / "sys/class/infiniband/mlx5_0", folder / f"sys/class/infiniband/mlx5_{number}")
    return LocalNode("n1", folder / "proc", folder / "sys", folder / "dev")
