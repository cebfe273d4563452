"""Records of what chosen processes write, as the kernel's ring gives them (programs/written.bpf.c)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from dataclasses import dataclass

from trackside.agent.trace.libbpf import Loaded, bpf, library, refused

RECORD = struct.Struct("<QIIII")
OPEN_TRACEPOINT = 17
MOST_RECORDS = 1 << 16
"""Of one reading; what is left waits in the ring."""


@dataclass(frozen=True, slots=True)
class Record:
    """``at``: monotonic ns. ``stream``: 1 or 2."""

    at: int
    pid: int
    stream: int
    data: bytes


class Writes:
    """The two programs in the kernel, and the ring that they fill."""

    def __init__(self) -> None:
        """Raises Unavailable."""
        self._calls = library()
        self._loaded = Loaded("written", ("writes", "forks"), (0, 0))
        self._links: list[int] = []
        self._records: list[Record] = []
        try:
            for fd in self._loaded.programs.values():
                self._links.append(bpf(OPEN_TRACEPOINT, struct.pack("<QI", 0, fd).ljust(64, b"\0")))
        except OSError as error:
            self.close()
            raise refused(error.errno or 0, "tracepoints") from error
        self._chosen = self._loaded.table("chosen", 4, 4)
        self._take = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(self._taken)
        self._ring = self._calls.ring_buffer__new(self._loaded.fd_of("ring"), self._take, None, None)

    def choose(self, streams: dict[int, int]) -> None:
        """Process -> bits of the streams that are copied (2 for output, 4 for error); their children's follow."""
        for pid, bits in streams.items():
            with contextlib.suppress(OSError):
                self._chosen.put(struct.pack("<I", pid), struct.pack("<I", bits))
        for key, _ in self._chosen.rows():
            pid = struct.unpack("<I", key)[0]
            if pid not in streams and not os.path.exists(f"/proc/{pid}"):
                self._chosen.drop(key)

    def pids(self) -> set[int]:
        """Those that are copied, children that were born since included."""
        return {int(struct.unpack("<I", key)[0]) for key, _ in self._chosen.rows()}

    def records(self) -> list[Record]:
        """What was written since, in order."""
        self._records = []
        self._calls.ring_buffer__consume(self._ring)
        found, self._records = self._records, []
        return found

    def lost(self) -> int:
        """Bytes that could not be kept since the start."""
        return self._loaded.lost()

    def _taken(self, given: int | None, data: int, size: int) -> int:
        raw = ctypes.string_at(data, size)
        at, pid, stream, length, _ = RECORD.unpack_from(raw)
        self._records.append(Record(at, pid, stream, raw[RECORD.size : RECORD.size + length]))
        return -1 if len(self._records) >= MOST_RECORDS else 0  # what is below 0 ends the reading

    def close(self) -> None:
        """Out of the kernel."""
        for link in self._links:
            os.close(link)
        self._links.clear()
        if getattr(self, "_ring", None):
            self._calls.ring_buffer__free(self._ring)
            self._ring = None
        self._loaded.close()
