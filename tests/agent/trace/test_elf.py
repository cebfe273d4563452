"""Function offsets out of shared libraries, and out of files that only look like some."""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.agent.trace import elf

NAMES = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaNoSuchThing")


def read(path: Path, names: tuple[str, ...] = NAMES) -> dict[str, int]:
    with path.open("rb") as file:
        return elf.offsets(file.fileno(), names)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "lib.so"
    path.write_bytes(data)
    return path


def test_offsets_are_where_the_loader_finds_the_functions(stubs: dict[str, Path]) -> None:
    library = ctypes.CDLL(str(stubs["cudart"]))
    spans = [
        line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(stubs["cudart"]))
    ]
    for name, offset in read(stubs["cudart"]).items():
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        begin, file_offset = next(
            (int(low, 16), int(span[2], 16))
            for span in spans
            for low, high in [span[0].split("-")]
            if int(low, 16) <= address < int(high, 16)
        )
        assert offset == address - begin + file_offset, name


def test_what_a_library_lacks_is_left_out(stubs: dict[str, Path]) -> None:
    assert set(read(stubs["cudart"])) == set(NAMES) - {"cudaNoSuchThing"}


def test_another_machine_is_named(stubs: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(stubs["cudart"].read_bytes())
    struct.pack_into("<H", data, 18, 8)
    with pytest.raises(elf.NotReadable, match="another machine"):
        read(written(tmp_path, bytes(data)))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, bytes(64), b"\x7fELF\x01\x01" + bytes(100)])
def test_no_library_is_said_to_be_none(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(elf.NotReadable):
        read(written(tmp_path, data))


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_library_gives_symbols_inside_it_or_an_error(stubs: dict[str, Path], data: st.DataObject) -> None:
    whole = bytearray(stubs["cudart"].read_bytes())
    sections_at = struct.unpack_from("<Q", whole, 40)[0]
    places = st.one_of(
        st.integers(0, 63),
        st.integers(64, 64 + 56 * 12),
        st.integers(sections_at, len(whole) - 1),
        st.integers(0, len(whole) - 1),
    )
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(places)] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    with tempfile.TemporaryFile() as file:
        file.write(whole[:cut])
        file.flush()
        try:
            found = elf.offsets(file.fileno(), NAMES)
        except elf.NotReadable:
            return
    assert all(0 <= offset < cut for offset in found.values())


def test_a_table_that_claims_millions_of_symbols_is_read_in_bounds(
    stubs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf, "MAX_SYMBOLS", 3)
    assert len(read(stubs["cudart"])) <= 3


def test_the_machine_is_this_ones_unless_another_is_asked_for(stubs: dict[str, Path]) -> None:
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    with stubs["cudart"].open("rb") as file, pytest.raises(elf.NotReadable, match=other):
        elf.offsets(file.fileno(), NAMES, other)
