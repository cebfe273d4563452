"""Whole machines as their kernels show them: what each source makes of one, and that none breaks on the odd one.

``pytest tests/agent/test_hosts.py --rewrite`` writes ``expected.txt`` of each host anew: look at what changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.agent.readings import conform, exposition, held_against, opened
from trackside.agent.node import LocalNode
from trackside.agent.source import Collector, Reading, Source, Unavailable, sources
from trackside.agent.sources.filesystems import Space

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.name for path in HOSTS.iterdir())
OF_HOST = ("block", "cgroups", "clock", "cpu", "filesystems", "infiniband", "memory", "network", "nfs", "pressure")
AT_NS = 1_772_438_400_000_000_000


def node(host: str) -> LocalNode:
    top = HOSTS / host
    return LocalNode("n1", top / "proc", top / "sys", top / "dev")


@pytest.fixture(autouse=True)
def no_real_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no file is as on a machine of a terabyte, whose clock is half a millisecond off."""
    told = SimpleNamespace(f_blocks=250_000_000, f_frsize=4096, f_bavail=100_000_000, f_ffree=60_000_000)
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    monkeypatch.setattr(
        "trackside.agent.sources.filesystems.MountChecker.state", lambda self, path: (Space(10, 4, 2), False)
    )
    monkeypatch.setattr("trackside.agent.sources.clock.offset_s", lambda: -0.0005)


@pytest.fixture
def held() -> Iterator[list[Collector]]:
    collectors: list[Collector] = []
    yield collectors
    for collector in collectors:
        collector.close()


def read(source: Source, host: str, held: list[Collector]) -> Reading | Unavailable:
    try:
        collector = opened(source, node(host))
        held.append(collector)
        reading = Reading(AT_NS)
        collector.collect(reading)
    except Unavailable as error:
        return error
    return reading


@pytest.mark.parametrize("host", NAMES)
def test_golden(host: str, rewrite: bool, held: list[Collector]) -> None:
    parts = []
    for name in OF_HOST:
        content = read(sources()[name], host, held)
        if isinstance(content, Unavailable):
            text = f"# unavailable: {content.reason}\n" + (f"# remedy: {content.remedy}\n" if content.remedy else "")
        else:
            text = exposition(content)
        parts.append(f"== {name}\n{text}".replace(str(HOSTS / host), ""))
    held_against(HOSTS / host / "expected.txt", "\n".join(parts), rewrite)


@pytest.mark.parametrize("host", NAMES)
def test_samples_are_as_the_catalog_has_them(host: str, held: list[Collector]) -> None:
    readings = {name: read(sources()[name], host, held) for name in OF_HOST}
    available = {name: reading for name, reading in readings.items() if isinstance(reading, Reading)}
    assert available
    for name, reading in available.items():
        conform(reading, sources()[name], bounds=host != "odd")


@pytest.mark.parametrize("name", OF_HOST)
def test_each_source_reads_this_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that its hardware hasn't got is unavailable."""
    monkeypatch.undo()
    if name in ("infiniband", "pressure", "cgroups"):
        try:
            opened(sources()[name], LocalNode("n1")).close()
        except Unavailable as error:
            pytest.skip(f"this machine hasn't got it: {error.reason}")
    collector = opened(sources()[name], LocalNode("n1"))
    try:
        for _ in range(2):
            reading = Reading()
            collector.collect(reading)
            conform(reading, sources()[name])
        assert reading.samples or name in ("nfs", "cgroups", "filesystems")
    finally:
        collector.close()


@pytest.mark.parametrize("name", [name for name in OF_HOST if name != "clock"])
def test_a_machine_of_which_nothing_can_be_read(name: str, tmp_path: Path) -> None:
    """It says what is missing; the clock needs none of it."""
    with pytest.raises(Unavailable) as caught:
        opened(sources()[name], LocalNode("n1", tmp_path, tmp_path, tmp_path))
    assert str(tmp_path) in caught.value.reason or caught.value.remedy


def test_files_that_may_not_be_read_cost_only_themselves(
    monkeypatch: pytest.MonkeyPatch, held: list[Collector]
) -> None:
    opens = os.open

    def refusing(path: str, flags: int, *more: int) -> int:
        if str(path).endswith(("/vmstat", "/loadavg", "/snmp", "pressure/io", "/symbol_error", "/memory.stat")):
            raise PermissionError(13, "Permission denied", path)
        return opens(path, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    for name in ("cpu", "memory", "network", "pressure"):
        content = read(sources()[name], "8gpu-ib-v2", held)
        assert isinstance(content, Reading), content
        assert content.samples
        assert [text for text in content.warnings if "Permission denied" in text]
    for name in ("infiniband", "cgroups"):
        content = read(sources()[name], "8gpu-ib-v2", held)
        assert isinstance(content, Reading), content
        assert content.samples


def test_a_host_of_two_hundred_cores_costs_little(tmp_path: Path, held: list[Collector]) -> None:
    """All sources of the host together; bench/agent.py measures the whole agent. The bound has room for a machine
    under load: what is measured is this process's own CPU time."""
    big = big_host(tmp_path)
    collectors = [opened(sources()[name], big) for name in OF_HOST]
    held += collectors
    spent = []
    for _ in range(7):
        before = time.thread_time()
        for collector in collectors:
            collector.collect(Reading(AT_NS))
        spent.append(time.thread_time() - before)
    assert min(spent) < 0.015, spent


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
