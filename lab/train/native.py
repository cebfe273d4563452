"""Native crashes, each the real thing: the kernel or libc sends the signal."""

from __future__ import annotations

import ctypes
import mmap
import tempfile


def segfault() -> None:
    """Read address 0."""
    ctypes.string_at(0)


def double_free() -> None:
    """Free one block twice: libc prints a line and aborts."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    block = ctypes.c_void_p(libc.malloc(64))
    libc.free(block)
    libc.free(block)


def bus_error() -> None:
    """Touch a mapped page whose file has been cut short."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        view[0] = 1


def stray_exit() -> None:
    """Leave at once with status 3, as a library that calls exit() does."""
    ctypes.CDLL(None)._exit(3)


CRASHES = {"segv": segfault, "abrt": double_free, "bus": bus_error, "exit": stray_exit}
