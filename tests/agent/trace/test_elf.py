"""Function offsets from shared libraries, and from files that only look like them."""

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


def write_library(folder: Path, data: bytes) -> Path:
    path = folder / "lib.so"
    path.write_bytes(data)
    return path


def test_offsets_match_the_addresses_of_the_loader(stubs: dict[str, Path]) -> None:
    library = ctypes.CDLL(str(stubs["cudart"]))
    mappings = [
        line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(stubs["cudart"]))
    ]
    for name, offset in read(stubs["cudart"]).items():
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        begin, file_offset = next(
            (int(low, 16), int(mapping[2], 16))
            for mapping in mappings
            for low, high in [mapping[0].split("-")]
            if int(low, 16) <= address < int(high, 16)
        )
        assert offset == address - begin + file_offset, name


def test_missing_functions_are_left_out(stubs: dict[str, Path]) -> None:
    assert set(read(stubs["cudart"])) == set(NAMES) - {"cudaNoSuchThing"}


def test_a_library_for_another_machine_is_refused(stubs: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(stubs["cudart"].read_bytes())
    struct.pack_into("<H", data, 18, 8)
    with pytest.raises(elf.ElfUnreadable, match="another machine"):
        read(write_library(tmp_path, bytes(data)))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, bytes(64), b"\x7fELF\x01\x01" + bytes(100)])
def test_a_file_that_is_not_a_library_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(elf.ElfUnreadable):
        read(write_library(tmp_path, data))


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_library_gives_valid_offsets_or_an_error(stubs: dict[str, Path], data: st.DataObject) -> None:
    library = bytearray(stubs["cudart"].read_bytes())
    sections_at = struct.unpack_from("<Q", library, 40)[0]
    positions = st.one_of(
        st.integers(0, 63),
        st.integers(64, 64 + 56 * 12),
        st.integers(sections_at, len(library) - 1),
        st.integers(0, len(library) - 1),
    )
    for _ in range(data.draw(st.integers(1, 8))):
        library[data.draw(positions)] = data.draw(st.integers(0, 255))
    size = data.draw(st.one_of(st.just(len(library)), st.integers(0, len(library))))
    with tempfile.TemporaryFile() as file:
        file.write(library[:size])
        file.flush()
        try:
            offsets = elf.offsets(file.fileno(), NAMES)
        except elf.ElfUnreadable:
            return
    assert all(0 <= offset < size for offset in offsets.values())


def test_a_symbol_table_is_read_up_to_a_limit(stubs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "MAX_SYMBOLS", 3)
    assert len(read(stubs["cudart"])) <= 3


def test_the_machine_of_the_library_is_checked(stubs: dict[str, Path]) -> None:
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    with stubs["cudart"].open("rb") as file, pytest.raises(elf.ElfUnreadable, match=other):
        elf.offsets(file.fileno(), NAMES, other)
