"""BPF through the system's libbpf: objects, programs and tables; nothing of it is loaded before it is asked for."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from trackside.agent.source import Unavailable

OBJECTS = Path(__file__).parent / "objects"
"""Where the package has its compiled programs: ``NAME.MACHINE.o``."""
NAMES = ("libbpf.so.1", "libbpf.so.0")
NEEDS = "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root"
BATCH = 512
MOST_ROUNDS = 4096
_BPF = {"x86_64": 321, "aarch64": 280}
_BATCH_OPTIONS = (ctypes.c_uint64 * 3)(24, 0, 0)


@cache
def library() -> Any:
    """The system's libbpf; raises Unavailable."""
    if os.uname().machine not in _BPF:
        raise Unavailable(f"no programs are there for {os.uname().machine}", f"they are for {', '.join(_BPF)}")
    for name in NAMES:
        try:
            found = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        pointer, fd = ctypes.c_void_p, ctypes.c_int
        for call, result, given in (
            ("bpf_object__open_mem", pointer, (ctypes.c_char_p, ctypes.c_size_t, pointer)),
            ("bpf_object__load", fd, (pointer,)),
            ("bpf_object__close", None, (pointer,)),
            ("bpf_object__find_program_by_name", pointer, (pointer, ctypes.c_char_p)),
            ("bpf_object__find_map_fd_by_name", fd, (pointer, ctypes.c_char_p)),
            ("bpf_program__set_autoload", fd, (pointer, ctypes.c_bool)),
            ("bpf_program__set_expected_attach_type", fd, (pointer, fd)),
            ("bpf_program__fd", fd, (pointer,)),
            ("bpf_map_lookup_batch", fd, (fd, pointer, pointer, pointer, pointer, pointer, pointer)),
            ("bpf_map_lookup_elem", fd, (fd, pointer, pointer)),
            ("bpf_map_update_elem", fd, (fd, pointer, pointer, ctypes.c_uint64)),
            ("bpf_map_delete_elem", fd, (fd, pointer)),
            ("libbpf_num_possible_cpus", fd, ()),
            ("ring_buffer__new", pointer, (fd, pointer, pointer, pointer)),
            ("ring_buffer__consume", fd, (pointer,)),
            ("ring_buffer__free", None, (pointer,)),
            ("libbpf_set_print", pointer, (pointer,)),
        ):
            function = getattr(found, call)
            function.restype, function.argtypes = result, given
        found.libbpf_set_print(None)  # or it would write to our standard error
        return found
    raise Unavailable("libbpf is not installed", "install it: libbpf1 (Debian, Ubuntu), libbpf (Fedora, RHEL)")


def machine_code(name: str) -> bytes:
    """A compiled program of ours; raises Unavailable where the package was built without."""
    try:
        return (OBJECTS / f"{name}.{os.uname().machine}.o").read_bytes()
    except OSError:
        raise Unavailable(
            "tracing was not built into this package", "install one that was built where ziglang or clang was at hand"
        ) from None


def refused(number: int, what: str) -> Unavailable:
    """Why the kernel doesn't do what BPF needs."""
    if number in (errno.EPERM, errno.EACCES):
        return Unavailable(f"the kernel refuses {what} to this process", f"run the agent with {NEEDS}")
    if number == errno.ENOSYS:
        return Unavailable("the kernel was built without BPF", "it needs CONFIG_BPF_SYSCALL and CONFIG_UPROBE_EVENTS")
    return Unavailable(f"the kernel can't do {what}: {os.strerror(number)}", "tracing needs Linux 5.15 or later")


@dataclass(slots=True)
class Table:
    """A map of the kernel's, of which all is read at once. Keys and values are bytes of fixed sizes."""

    fd: int
    key_bytes: int
    value_bytes: int

    def rows(self) -> list[tuple[bytes, bytes]]:
        """All there is, each once or, where it changes meanwhile, perhaps not at all."""
        calls, most = library(), BATCH
        found: list[tuple[bytes, bytes]] = []
        at, out = None, ctypes.create_string_buffer(256)
        for _ in range(MOST_ROUNDS):
            keys = ctypes.create_string_buffer(most * self.key_bytes)
            values = ctypes.create_string_buffer(most * self.value_bytes)
            count = ctypes.c_uint32(most)
            failed = calls.bpf_map_lookup_batch(self.fd, at, out, keys, values, ctypes.byref(count), _BATCH_OPTIONS)
            number = ctypes.get_errno() if failed else 0
            if number == errno.ENOSPC and most < 1 << 16:  # a bucket of the kernel's table holds more
                most *= 2
                continue
            if number not in (0, errno.ENOENT):
                raise OSError(number, os.strerror(number))
            rows = zip(_split(keys.raw, self.key_bytes), _split(values.raw, self.value_bytes), strict=True)
            found += islice(rows, count.value)
            if number == errno.ENOENT:
                break
            at, out = out, ctypes.create_string_buffer(256)
        return found

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        value = ctypes.create_string_buffer(self.value_bytes)
        return None if library().bpf_map_lookup_elem(self.fd, key, value) else value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Set one; raises OSError where there is no room."""
        if library().bpf_map_update_elem(self.fd, key, value, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def drop(self, key: bytes) -> None:
        """Remove one, if it is there."""
        library().bpf_map_delete_elem(self.fd, key)


def _split(data: bytes, size: int) -> Iterator[bytes]:
    return (data[begin : begin + size] for begin in range(0, len(data), size))


class Loaded:
    """One of our objects in the kernel: those of its programs that were asked for, and its tables."""

    def __init__(
        self, name: str, programs: Sequence[str], attach_types: Sequence[int], others: Sequence[str] = ()
    ) -> None:
        """``attach_types``: of each program, 0 for the usual; ``others``: programs of the object that stay out. Raises
        Unavailable."""
        self._calls, self._code = library(), machine_code(name)
        ctypes.set_errno(0)
        self._object = self._calls.bpf_object__open_mem(self._code, len(self._code), None)
        if not self._object:
            raise refused(ctypes.get_errno() or errno.EINVAL, "our programs")
        self.programs: dict[str, int] = {}
        for other in others:
            self._calls.bpf_program__set_autoload(self._program(other), False)
        for program, kind in zip(programs, attach_types, strict=True):
            self._calls.bpf_program__set_autoload(self._program(program), True)
            if kind:
                self._calls.bpf_program__set_expected_attach_type(self._program(program), kind)
        failed = self._calls.bpf_object__load(self._object)
        if failed:
            self.close()
            raise refused(-failed, "BPF programs")
        self.programs = {program: self._calls.bpf_program__fd(self._program(program)) for program in programs}

    def _program(self, name: str) -> Any:
        found = self._calls.bpf_object__find_program_by_name(self._object, name.encode())
        if not found:
            raise Unavailable(f"the package's program {name} is missing", "install the package anew")
        return found

    def fd_of(self, table: str) -> int:
        """A table's descriptor, which ends with the object."""
        fd = int(self._calls.bpf_object__find_map_fd_by_name(self._object, table.encode()))
        if fd < 0:
            raise Unavailable(f"the package's table {table} is missing", "install the package anew")
        return fd

    def table(self, name: str, key_bytes: int, value_bytes: int) -> Table:
        """A table by its name."""
        return Table(self.fd_of(name), key_bytes, value_bytes)

    def lost(self) -> int:
        """What its programs could not keep since it was loaded: the sum over the CPUs of the table ``lost``."""
        cpus = self._calls.libbpf_num_possible_cpus()
        value = Table(self.fd_of("lost"), 4, 8 * max(1, cpus)).get(bytes(4)) or b""
        return sum(int.from_bytes(value[at : at + 8], "little") for at in range(0, len(value), 8))

    def close(self) -> None:
        """Out of the kernel; links that were made are closed on their own."""
        if self._object:
            self._calls.bpf_object__close(self._object)
            self._object = None


def bpf(command: int, attributes: bytes) -> int:
    """The system call itself, for what libbpf of this age doesn't know. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(_BPF[os.uname().machine], command, attributes, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
