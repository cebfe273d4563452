"""BPF by the system's libbpf: objects, programs and tables; libbpf is loaded only when it is used."""

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

from trackside.agent.source import AgentSourceUnavailable

OBJECTS = Path(__file__).parent / "objects"
"""Folder of the compiled programs in the package: ``NAME.MACHINE.o``."""
NAMES = ("libbpf.so.1", "libbpf.so.0")
NEEDS = "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root"
BATCH_ENTRIES = 512
"""Entries of a map that are read at once; doubled if the kernel says that it is too few."""
MAX_BATCHES = 4096
"""A map that others fill while it is read is read no further."""
_BPF_SYSCALLS = {"x86_64": 321, "aarch64": 280}
"""Machine -> number of the system call bpf()."""
_BATCH_OPTIONS = (ctypes.c_uint64 * 3)(24, 0, 0)
"""struct bpf_map_batch_opts: its size, no flags."""


@cache
def library() -> Any:
    """The system's libbpf. Raises AgentSourceUnavailable."""
    if os.uname().machine not in _BPF_SYSCALLS:
        raise AgentSourceUnavailable(
            f"tracing is not supported on {os.uname().machine}", f"use {' or '.join(_BPF_SYSCALLS)}"
        )
    for name in NAMES:
        try:
            libbpf = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        pointer, fd = ctypes.c_void_p, ctypes.c_int
        for call, result, arguments in (
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
            function = getattr(libbpf, call)
            function.restype, function.argtypes = result, arguments
        libbpf.libbpf_set_print(None)  # otherwise libbpf writes to our standard error
        return libbpf
    raise AgentSourceUnavailable(
        "libbpf is not installed", "install it: libbpf1 (Debian, Ubuntu), libbpf (Fedora, RHEL)"
    )


def machine_code(name: str) -> bytes:
    """One of our compiled programs. Raises AgentSourceUnavailable if the package was built without them."""
    try:
        return (OBJECTS / f"{name}.{os.uname().machine}.o").read_bytes()
    except OSError:
        raise AgentSourceUnavailable(
            "this package was built without tracing", "install a package that was built with ziglang or clang"
        ) from None


def kernel_refusal(number: int, operation: str) -> AgentSourceUnavailable:
    """The exception for an error of a BPF system call."""
    if number in (errno.EPERM, errno.EACCES):
        return AgentSourceUnavailable(
            f"the kernel does not let this process {operation}", f"run the agent with {NEEDS}"
        )
    if number == errno.ENOSYS:
        return AgentSourceUnavailable(
            "the kernel was built without BPF", "use a kernel with CONFIG_BPF_SYSCALL and CONFIG_UPROBE_EVENTS"
        )
    return AgentSourceUnavailable(
        f"the kernel cannot {operation}: {os.strerror(number)}", "tracing needs Linux 5.15 or later"
    )


@dataclass(slots=True)
class BpfMap:
    """A BPF map that is read as a whole. Keys and values are bytes of fixed sizes."""

    fd: int
    key_bytes: int
    value_bytes: int

    def rows(self) -> list[tuple[bytes, bytes]]:
        """All entries, each at most once; an entry that changes during the read may be missing."""
        calls, batch_size = library(), BATCH_ENTRIES
        entries: list[tuple[bytes, bytes]] = []
        position, next_position = None, ctypes.create_string_buffer(256)
        for _ in range(MAX_BATCHES):
            keys = ctypes.create_string_buffer(batch_size * self.key_bytes)
            values = ctypes.create_string_buffer(batch_size * self.value_bytes)
            count = ctypes.c_uint32(batch_size)
            result = calls.bpf_map_lookup_batch(
                self.fd, position, next_position, keys, values, ctypes.byref(count), _BATCH_OPTIONS
            )
            number = ctypes.get_errno() if result else 0
            if number == errno.ENOSPC and batch_size < 1 << 16:  # a bucket of the kernel's hash table has more entries
                batch_size *= 2
                continue
            if number not in (0, errno.ENOENT):
                raise OSError(number, os.strerror(number))
            rows = zip(_split(keys.raw, self.key_bytes), _split(values.raw, self.value_bytes), strict=True)
            entries += islice(rows, count.value)
            if number == errno.ENOENT:
                break
            position, next_position = next_position, ctypes.create_string_buffer(256)
        return entries

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it is missing."""
        value = ctypes.create_string_buffer(self.value_bytes)
        return None if library().bpf_map_lookup_elem(self.fd, key, value) else value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value. Raises OSError if the table is full."""
        if library().bpf_map_update_elem(self.fd, key, value, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def drop(self, key: bytes) -> None:
        """Remove a key, if it exists."""
        library().bpf_map_delete_elem(self.fd, key)


def _split(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


class BpfObject:
    """One of our BPF objects loaded in the kernel: its selected programs and its tables."""

    def __init__(
        self, name: str, programs: Sequence[str], attach_types: Sequence[int], unused: Sequence[str] = ()
    ) -> None:
        """``attach_types``: of each program, 0 for the default. ``unused``: programs of the object that are not loaded.
        Raises AgentSourceUnavailable."""
        self._calls, self._code = library(), machine_code(name)
        ctypes.set_errno(0)
        self._object = self._calls.bpf_object__open_mem(self._code, len(self._code), None)
        if not self._object:
            raise kernel_refusal(ctypes.get_errno() or errno.EINVAL, "load BPF programs")
        self.programs: dict[str, int] = {}
        for program in unused:
            self._calls.bpf_program__set_autoload(self._program(program), False)
        for program, kind in zip(programs, attach_types, strict=True):
            self._calls.bpf_program__set_autoload(self._program(program), True)
            if kind:
                self._calls.bpf_program__set_expected_attach_type(self._program(program), kind)
        error = self._calls.bpf_object__load(self._object)
        if error:
            self.close()
            raise kernel_refusal(-error, "load BPF programs")
        self.programs = {program: self._calls.bpf_program__fd(self._program(program)) for program in programs}

    def _program(self, name: str) -> Any:
        program = self._calls.bpf_object__find_program_by_name(self._object, name.encode())
        if not program:
            raise AgentSourceUnavailable(f"program {name} is missing in the package", "reinstall the package")
        return program

    def fd_of(self, table: str) -> int:
        """A table's descriptor, valid while the object is loaded."""
        fd = int(self._calls.bpf_object__find_map_fd_by_name(self._object, table.encode()))
        if fd < 0:
            raise AgentSourceUnavailable(f"table {table} is missing in the package", "reinstall the package")
        return fd

    def table(self, name: str, key_bytes: int, value_bytes: int) -> BpfMap:
        """The table with a name."""
        return BpfMap(self.fd_of(name), key_bytes, value_bytes)

    def lost(self) -> int:
        """Events that the programs could not store since loading: the sum of table ``lost`` over all CPUs."""
        cpus = self._calls.libbpf_num_possible_cpus()
        value = BpfMap(self.fd_of("lost"), 4, 8 * max(1, cpus)).get(bytes(4)) or b""
        return sum(int.from_bytes(value[offset : offset + 8], "little") for offset in range(0, len(value), 8))

    def close(self) -> None:
        """Unload the object; its links are closed separately."""
        if self._object:
            self._calls.bpf_object__close(self._object)
            self._object = None


def bpf(command: int, attributes: bytes) -> int:
    """The bpf system call, for commands that older versions of libbpf lack. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(_BPF_SYSCALLS[os.uname().machine], command, attributes, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
