"""Probes on functions of a library, in the best of the ways that the kernel has.

- ``session`` (Linux 6.13): one program stands at entry and return, and says at the entry whether the return matters.
- ``multi`` (Linux 6.6): one system call a library, but the return is always trapped where any call of it is timed.
- ``perf`` (Linux 5.15): one descriptor a function and direction.
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

from trackside.agent.source import Unavailable
from trackside.agent.trace import elf
from trackside.agent.trace.libbpf import Loaded, bpf, library, refused

LINK_CREATE = 28
PERF_EVENT, MULTI, SESSION = 41, 48, 57
RETURNS = 1
WAYS = ("session", "multi", "perf")
_PROGRAMS = ("session", "entry", "leave")
_PERF_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")
_PERF_FLAGS = 8
"""Close on exec."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A function of a library: where it is in the file, what the program is told, whether any return matters."""

    offset: int
    cookie: int
    returns: bool


class Probes:
    """An object of ours, whose programs ``session``, or ``entry`` and ``leave``, stand in libraries."""

    def __init__(self, name: str) -> None:
        """Raises Unavailable where the kernel knows none of the ways."""
        why: Unavailable | None = None
        for way in WAYS:
            programs = ("session",) if way == "session" else ("entry", "leave")
            kinds = {"session": (SESSION,), "multi": (MULTI, MULTI), "perf": (0, 0)}[way]
            try:
                self.loaded = Loaded(name, programs, kinds, [each for each in _PROGRAMS if each not in programs])
            except Unavailable as error:
                why = error
                continue
            self.way = way
            try:
                self._try()
            except OSError as error:
                self.loaded.close()
                why = refused(error.errno or errno.EINVAL, "uprobes")
                continue
            return
        raise why or Unavailable("no way to attach was asked for")

    def _try(self) -> None:
        """Stand in a library of our own for a moment."""
        probe = elf_of_own()
        with open(probe[0], "rb") as file:
            for link in self.attach(file.fileno(), [Probe(probe[1], 0, True)], os.getpid()):
                os.close(link)

    def attach(self, fd: int, probes: Sequence[Probe], pid: int = 0) -> list[int]:
        """Links, each closed with ``os.close`` to detach; in every process that maps the open file, now and later,
        unless ``pid`` is given. Raises OSError, and none is left."""
        path = f"/proc/self/fd/{fd}".encode()
        programs, links = self.loaded.programs, list[int]()
        returning = [probe for probe in probes if probe.returns]
        try:
            if self.way == "session":
                links.append(_multi(programs["session"], SESSION, path, probes, 0, pid))
            elif self.way == "multi":
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
        """Out of the kernel, where no link is left."""
        self.loaded.close()


def elf_of_own() -> tuple[str, int]:
    """A library that this process maps, and the offset of a function of it."""
    library()
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libbpf.so" in path:
            with open(path, "rb") as file, contextlib.suppress(elf.NotReadable):
                for offset in elf.offsets(file.fileno(), ["libbpf_num_possible_cpus"]).values():
                    return path, offset
    raise Unavailable("libbpf can't be found among this process's own libraries")


def _multi(program: int, kind: int, path: bytes, probes: Sequence[Probe], flags: int, pid: int) -> int:
    where = ctypes.create_string_buffer(path)
    offsets = (ctypes.c_uint64 * len(probes))(*(probe.offset for probe in probes))
    cookies = (ctypes.c_uint64 * len(probes))(*(probe.cookie for probe in probes))
    at = ctypes.addressof
    packed = struct.pack(
        "<IIIIQQQQIII", program, 0, kind, 0, at(where), at(offsets), 0, at(cookies), len(probes), flags, pid
    )
    return bpf(LINK_CREATE, packed.ljust(128, b"\0"))


def _perf(program: int, path: bytes, probe: Probe, at_return: bool, pid: int) -> list[int]:
    """A perf event and the link to it."""
    where = ctypes.create_string_buffer(path)
    try:
        kind = int(_PERF_TYPE.read_text())
    except (OSError, ValueError):
        raise OSError(errno.ENOSYS, "the kernel has no uprobe events") from None
    attributes = struct.pack(
        "<IIQQQQQIIQQ", kind, 128, int(at_return), 0, 0, 0, 0, 0, 0, ctypes.addressof(where), probe.offset
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
