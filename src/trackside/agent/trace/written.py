"""Data written by selected processes, from a BPF ring buffer (programs/written.bpf.c)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from dataclasses import dataclass

from trackside.agent.trace.libbpf import BpfObject, bpf, kernel_refusal, library

RECORD = struct.Struct("<QIIII")
OPEN_TRACEPOINT = 17
MAX_RECORDS = 1 << 16
"""Maximum records per reading; the rest waits in the ring."""


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Data of one write. ``time_ns``: monotonic. ``stream``: 1 or 2."""

    time_ns: int
    pid: int
    stream: int
    data: bytes


class Writes:
    """The two BPF programs and the ring buffer that they fill."""

    def __init__(self) -> None:
        """Raises AgentSourceUnavailable."""
        self._calls = library()
        self._loaded = BpfObject("written", ("writes", "forks"), (0, 0))
        self._links: list[int] = []
        self._records: list[WriteRecord] = []
        try:
            for fd in self._loaded.programs.values():
                self._links.append(bpf(OPEN_TRACEPOINT, struct.pack("<QI", 0, fd).ljust(64, b"\0")))
        except OSError as error:
            self.close()
            raise kernel_refusal(error.errno or 0, "use tracepoints") from error
        self._streams_table = self._loaded.table("chosen", 4, 4)
        self._take = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(self._on_record)
        self._ring = self._calls.ring_buffer__new(self._loaded.fd_of("ring"), self._take, None, None)

    def select_streams(self, streams: dict[int, int]) -> None:
        """Set the streams to copy: pid -> bit mask (2 for stdout, 4 for stderr); child processes are included."""
        for pid, bits in streams.items():
            with contextlib.suppress(OSError):
                self._streams_table.put(struct.pack("<I", pid), struct.pack("<I", bits))
        for key, _ in self._streams_table.rows():
            pid = struct.unpack("<I", key)[0]
            if pid not in streams and not os.path.exists(f"/proc/{pid}"):
                self._streams_table.drop(key)

    def copied_pids(self) -> set[int]:
        """Processes whose output is copied, including child processes."""
        return {int(struct.unpack("<I", key)[0]) for key, _ in self._streams_table.rows()}

    def records(self) -> list[WriteRecord]:
        """The records since the last call, in order."""
        self._records = []
        self._calls.ring_buffer__consume(self._ring)
        records, self._records = self._records, []
        return records

    def lost(self) -> int:
        """Bytes that could not be stored since the start."""
        return self._loaded.lost()

    def _on_record(self, context: int | None, data: int, size: int) -> int:
        raw = ctypes.string_at(data, size)
        time_ns, pid, stream, length, _ = RECORD.unpack_from(raw)
        self._records.append(WriteRecord(time_ns, pid, stream, raw[RECORD.size : RECORD.size + length]))
        return -1 if len(self._records) >= MAX_RECORDS else 0  # a negative result ends the reading

    def close(self) -> None:
        """Unload the programs."""
        for link in self._links:
            os.close(link)
        self._links.clear()
        if getattr(self, "_ring", None):
            self._calls.ring_buffer__free(self._ring)
            self._ring = None
        self._loaded.close()
