"""Parsers of kernel files: no input breaks them, and no number is made up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trackside.agent.kernel.journal import parse_entry
from trackside.agent.kernel.ring import parse_records
from trackside.agent.pseudo_files import key_values, mount_point, number, parse_pressure
from trackside.agent.sources.block import parse_diskstats
from trackside.agent.sources.cpu import parse_load, parse_stat
from trackside.agent.sources.filesystems import parse_mounts, parse_space
from trackside.agent.sources.network import parse_devices, parse_retransmissions
from trackside.agent.sources.nfs import parse_mountstats, parse_rpc

HOST = Path(__file__).parent / "hosts/8gpu-ib-v2"
MEMINFO = (b"MemTotal", b"MemFree", b"Shmem")
PARSERS: dict[str, tuple[Callable[[bytes], Any], str]] = {
    "stat": (parse_stat, "proc/stat"),
    "loadavg": (parse_load, "proc/loadavg"),
    "meminfo": (lambda data: key_values(data, MEMINFO), "proc/meminfo"),
    "pressure": (parse_pressure, "proc/pressure/io"),
    "diskstats": (lambda data: list(parse_diskstats(data)), "proc/diskstats"),
    "net-dev": (lambda data: list(parse_devices(data)), "proc/1/net/dev"),
    "net-snmp": (parse_retransmissions, "proc/1/net/snmp"),
    "mountstats": (parse_mountstats, "proc/1/mountstats"),
    "rpc": (parse_rpc, "proc/1/net/rpc/nfs"),
    "mounts": (parse_mounts, "proc/1/mounts"),
    "kmsg": (lambda data: list(parse_records(data)), "dev/kmsg"),
    "space": (parse_space, "proc/loadavg"),
    "journal": (parse_entry, "proc/loadavg"),
}
ODD_FIELDS = st.sampled_from(
    [b"-1", b"99999999999999999999999", b"\xff\xfe", b"\0", b"", b"nan", b"1e9", b"\n", b" ", b":", b"x" * 300]
)


def numbers(parsed: Any) -> Iterable[float]:
    """All numbers in a parser's result, at any depth."""
    if isinstance(parsed, bool) or parsed is None or isinstance(parsed, (str, bytes)):
        return
    if isinstance(parsed, (int, float)):
        yield parsed
    elif isinstance(parsed, dict):
        yield from numbers(list(parsed.values()))
    elif isinstance(parsed, (list, tuple)):
        for item in parsed:
            yield from numbers(item)
    else:
        yield from numbers([getattr(parsed, name) for name in parsed.__slots__])


def assert_plausible(name: str, data: bytes) -> None:
    for value in numbers(PARSERS[name][0](data)):
        assert math.isfinite(value)
        assert value >= 0 or name == "cpu"


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.binary(max_size=400))
@example(data=b"")
@example(data=b"\n\n\n")
def test_any_bytes_are_parsed_without_an_error(name: str, data: bytes) -> None:
    assert_plausible(name, data)


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_a_damaged_text_is_parsed_without_an_error(name: str, data: st.DataObject) -> None:
    text = (HOST / PARSERS[name][1]).read_bytes()
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(text)))
        text = text[:position] + data.draw(ODD_FIELDS) + text[position + data.draw(st.integers(0, 12)) :]
    assert_plausible(name, text[: data.draw(st.integers(0, len(text)))])


@pytest.mark.parametrize(
    ("field", "value"), [(b"0", 0), (b"18446744073709551615", 2**64 - 1), (b"-1", None), (b"", None)]
)
def test_a_field_is_a_number_or_none(field: bytes, value: int | None) -> None:
    assert number(field) == value


def test_the_first_value_of_a_key_counts_and_kilobytes_become_bytes() -> None:
    text = b"MemTotal:       12 kB\nMemTotal: 13 kB\nHugePages_Total: 4\nMemFree: x kB\n"
    assert key_values(text, (b"MemTotal", b"HugePages_Total", b"MemFree")) == {
        b"MemTotal": 12288,
        b"HugePages_Total": 4,
    }


def test_blanks_in_mount_points_are_unescaped() -> None:
    assert mount_point(rb"/data\040sets\011\134") == "/data sets\t\\"


def test_later_mounts_hide_earlier_ones_and_bind_mounts_are_listed_once() -> None:
    text = b"/dev/a / xfs ro 0 0\n/dev/b / xfs rw 0 0\n/dev/b /bound xfs rw 0 0\nx:/e /e nfs rw 0 0\n"
    assert [(mount.device, mount.path, mount.remote) for mount in parse_mounts(text)] == [
        ("/dev/b", "/", False),
        ("x:/e", "/e", True),
    ]


def test_nfs_waits_are_summed_over_connections() -> None:
    (data, home) = parse_mountstats((HOST / "proc/1/mountstats").read_bytes())
    assert (data.path, home.path) == ("/data sets", "/home")
    assert home.backlog == 20
    assert home.ops["write"].timeouts == 2
    assert home.ops["write"].transmissions - home.ops["write"].calls == 2
