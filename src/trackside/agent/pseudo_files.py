"""Files of /proc and /sys: read whole up to a limit, and kept open if they are read repeatedly.

Kernels differ: a field that does not parse as a number is left out.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from trackside.agent.source import AgentSourceUnavailable, Reading

MAX_BYTES = 4 << 20
"""Limit per file; /proc/stat of a thousand cores with ten thousand interrupts is a tenth of it."""
PAGE_BYTES = 4096
MAX_ENVIRON_BYTES = 256 << 10
_STEP_BYTES = 64 << 10
_READ_BYTES = 32 << 10
"""Bytes per read of :func:`read_file`. For files this small, the kernel returns less only at the end of the file."""
_DIGITS = re.compile(rb"[0-9]{1,20}\Z")
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESRCH, errno.ESTALE})
"""Errors of reading a device, process or cgroup that no longer exists."""


class PseudoFile:
    """One file, kept open between readings, which halves the cost of a read."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path | str) -> None:
        """The file is opened by the first read."""
        self.path, self._fd = os.fspath(path), -1

    def read(self, max_bytes: int = MAX_BYTES) -> bytes:
        """The file's contents now, up to ``max_bytes``; up to a page, the kernel returns them in one consistent piece.
        Raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.pread(self._fd, min(max_bytes, _STEP_BYTES), 0)
            if max_bytes <= PAGE_BYTES:
                return data
            parts, size = [data], len(data)
            while data and size < max_bytes and (data := os.pread(self._fd, min(max_bytes - size, _STEP_BYTES), size)):
                parts.append(data)
                size += len(data)
        except OSError as error:
            if error.errno in GONE:
                self.close()  # another device or process of that name may appear
            raise
        return b"".join(parts)

    def read_or_warn(self, reading: Reading) -> bytes:
        """The file's contents now; empty, with a warning, if it cannot be read."""
        try:
            return self.read()
        except OSError as error:
            reading.warnings.append(f"{self.path}: {error.strerror}")
            return b""

    def count(self) -> int | None:
        """The single number in the file; None if it is not one or cannot be read."""
        try:
            return number(self.read(64).strip())
        except OSError:
            return None

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_file(path: Path | str, max_bytes: int = PAGE_BYTES) -> bytes:
    """Contents of a file that is not worth keeping open, or must not be: an open cgroup file keeps the cgroup in
    memory. Only for files that the kernel returns whole in one read, unlike /proc/PID/maps. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = os.read(fd, min(max_bytes, _READ_BYTES))
        if len(data) < _READ_BYTES:
            return data
        parts, size = [data], len(data)
        while size < max_bytes and (data := os.read(fd, min(max_bytes - size, _READ_BYTES))):
            parts.append(data)
            size += len(data)
        return b"".join(parts)
    finally:
        os.close(fd)


def read_or_empty(path: Path | str, max_bytes: int = PAGE_BYTES) -> bytes:
    """Like :func:`read_file`; empty if the file is gone or may not be read."""
    try:
        return read_file(path, max_bytes)
    except OSError:
        return b""


def environ_of(proc: Path | str, pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it may not be read."""
    pairs = read_or_empty(f"{proc}/{pid}/environ", MAX_ENVIRON_BYTES).decode("utf-8", "replace").split("\0")
    return {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}


def uptime_s(proc: Path | str) -> float:
    """Seconds since boot; 0 if unknown."""
    try:
        return float(read_or_empty(f"{proc}/uptime").split()[0])
    except (ValueError, IndexError):
        return 0.0


def first_of(*paths: Path) -> Path:
    """The first path that can be opened for reading, else the last."""
    for path in paths[:-1]:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            continue
        return path
    return paths[-1]


def read_required(file: PseudoFile, remedy: str = "") -> bytes:
    """Contents of a file that a source cannot work without. Raises AgentSourceUnavailable."""
    try:
        return file.read()
    except OSError as error:
        raise AgentSourceUnavailable(f"{file.path} cannot be read: {error.strerror}", remedy) from error


def number(field: bytes) -> int | None:
    """A non-negative count as the kernel writes it; None for anything else."""
    return int(field) if _DIGITS.match(field) else None


def key_values(data: bytes, keys: Collection[bytes]) -> dict[bytes, int]:
    """Values of some keys from lines ``key value`` or ``key: value kB``; kB are converted to bytes (1024 each). The
    first occurrence of a key counts."""
    values: dict[bytes, int] = {}
    for line in data.split(b"\n"):
        key, _, value_text = line.partition(b" ")
        key = key.removesuffix(b":")
        if key not in keys or key in values:
            continue
        fields = value_text.split()
        value = number(fields[0]) if fields else None
        if value is not None:
            values[key] = value * 1024 if fields[1:] == [b"kB"] else value
            if len(values) == len(keys):
                break
    return values


def names_in(folder: Path | str, max_names: int) -> list[str]:
    """The first names in a folder, in natural order (numbers by value); empty if it cannot be read."""
    try:
        return sorted(os.listdir(folder), key=_natural_key)[:max_names]
    except OSError:
        return []


def mount_point(field: bytes) -> str:
    """A path from a kernel list of mounts, with octal escapes of spaces and backslashes decoded."""
    return (
        _OCTAL.sub(lambda match: chr(int(match[1], 8)), os.fsdecode(field)).encode("utf-8", "replace").decode("utf-8")
    )


def split_lines(data: bytes) -> Iterator[list[bytes]]:
    """The fields of each line."""
    return (line.split() for line in data.split(b"\n"))


def parse_pressure(data: bytes) -> dict[str, float]:
    """Stall time in seconds by level, from lines such as ``some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`` (total
    in microseconds). The kernel uses this format for the host and for each cgroup."""
    seconds_by_level: dict[str, float] = {}
    for line in data.split(b"\n"):
        level, _, total_field = line.partition(b" ")
        if level not in (b"some", b"full"):
            continue
        total = number(total_field.rpartition(b"total=")[2].strip())
        if total is not None:
            seconds_by_level[level.decode()] = total / 1e6
    return seconds_by_level


def _natural_key(name: str) -> list[tuple[int, str]]:
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d{1,18})|(\D+)", name)]
