"""Probes on library functions, by the best method that the kernel supports.

- ``session`` (Linux 6.13): one program runs at entry and return, and decides at entry whether the return matters.
- ``multi`` (Linux 6.6): one system call per library, but every return is trapped if any call of the function is timed.
- ``perf`` (Linux 5.15): one descriptor per function and direction.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.source import AgentSourceUnavailable
from trackside.agent.trace import elf
from trackside.agent.trace.libbpf import BpfObject, bpf, kernel_refusal, library

LINK_CREATE = 28
PERF_EVENT, MULTI, SESSION = 41, 48, 57
RETURNS = 1
METHODS = ("session", "multi", "perf")
_PROGRAMS = ("session", "entry", "leave")
_PERF_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")
_PERF_FLAGS = 8
"""PERF_FLAG_FD_CLOEXEC."""


@dataclass(frozen=True, slots=True)
class CallProbe:
    """A function of a library: its file offset, the cookie for the program, and whether any return matters."""

    offset: int
    cookie: int
    returns: bool


class Probes:
    """A BPF object whose programs, ``session`` or ``entry`` and ``leave``, are attached to libraries."""

    def __init__(self, name: str) -> None:
        """Raises AgentSourceUnavailable if the kernel supports none of the methods."""
        reason: AgentSourceUnavailable | None = None
        for method in METHODS:
            programs = ("session",) if method == "session" else ("entry", "leave")
            kinds = {"session": (SESSION,), "multi": (MULTI, MULTI), "perf": (0, 0)}[method]
            try:
                unused = [program for program in _PROGRAMS if program not in programs]
                self.loaded = BpfObject(name, programs, kinds, unused)
            except AgentSourceUnavailable as error:
                reason = error
                continue
            self.method = method
            try:
                self._test_attach()
            except OSError as error:
                self.loaded.close()
                reason = kernel_refusal(error.errno or errno.EINVAL, "set uprobes")
                continue
            return
        raise reason or AgentSourceUnavailable("no method of attaching probes is known")

    def _test_attach(self) -> None:
        """Attach to a library of this process for a moment."""
        probe = own_library()
        with open(probe[0], "rb") as file:
            for link in self.attach(file.fileno(), [CallProbe(probe[1], 0, True)], os.getpid()):
                os.close(link)

    def attach(self, fd: int, probes: Sequence[CallProbe], pid: int = 0) -> list[int]:
        """Attach to an open file in every process that maps it, now and later, or only in ``pid``. Returns links, each
        closed by ``os.close`` to detach. Raises OSError, with nothing attached."""
        path = f"/proc/self/fd/{fd}".encode()
        programs, links = self.loaded.programs, list[int]()
        returning = [probe for probe in probes if probe.returns]
        try:
            if self.method == "session":
                links.append(_multi(programs["session"], SESSION, path, probes, 0, pid))
            elif self.method == "multi":
                links.append(_multi(programs["entry"], MULTI, path, probes, 0, pid))
                if returning:
                    links.append(_multi(programs["leave"], MULTI, path, returning, RETURNS, pid))
            else:
                for probe in probes:
                    links += _perf(programs["entry"], path, probe, False, pid)
                for probe in returning:
                    links += _perf(programs["leave"], path, probe, True, pid)
        except OSError:
            for link in links:
                os.close(link)
            raise
        return links

    def close(self) -> None:
        """Unload the object."""
        self.loaded.close()


def own_library() -> tuple[str, int]:
    """A library that this process has mapped, and the offset of one of its functions."""
    library()
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libbpf.so" in path:
            with open(path, "rb") as file, contextlib.suppress(elf.ElfUnreadable):
                for offset in elf.offsets(file.fileno(), ["libbpf_num_possible_cpus"]).values():
                    return path, offset
    raise AgentSourceUnavailable("libbpf was not found among the libraries of this process")


def _multi(program: int, kind: int, path: bytes, probes: Sequence[CallProbe], flags: int, pid: int) -> int:
    path_buffer = ctypes.create_string_buffer(path)
    offsets = (ctypes.c_uint64 * len(probes))(*(probe.offset for probe in probes))
    cookies = (ctypes.c_uint64 * len(probes))(*(probe.cookie for probe in probes))
    address = ctypes.addressof
    packed = struct.pack(
        "<IIIIQQQQIII",
        program,
        0,
        kind,
        0,
        address(path_buffer),
        address(offsets),
        0,
        address(cookies),
        len(probes),
        flags,
        pid,
    )
    return bpf(LINK_CREATE, packed.ljust(128, b"\0"))


def _perf(program: int, path: bytes, probe: CallProbe, at_return: bool, pid: int) -> list[int]:
    """[link, perf event] of a probe."""
    path_buffer = ctypes.create_string_buffer(path)
    try:
        kind = int(_PERF_TYPE.read_text())
    except (OSError, ValueError):
        raise OSError(errno.ENOSYS, "the kernel has no uprobe events") from None
    attributes = struct.pack(
        "<IIQQQQQIIQQ", kind, 128, int(at_return), 0, 0, 0, 0, 0, 0, ctypes.addressof(path_buffer), probe.offset
    )
    libc = ctypes.CDLL(None, use_errno=True)
    event = int(
        libc.syscall(
            _PERF_OPEN[os.uname().machine], attributes.ljust(128, b"\0"), pid or -1, -1 if pid else 0, -1, _PERF_FLAGS
        )
    )
    if event < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        link = bpf(LINK_CREATE, struct.pack("<IIIIQ", program, event, PERF_EVENT, 0, probe.cookie).ljust(128, b"\0"))
    except OSError:
        os.close(event)
        raise
    return [link, event]
