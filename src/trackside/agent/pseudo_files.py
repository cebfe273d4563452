"""Files of /proc and /sys: read whole and bounded, kept open where they are read again and again.

Their text is the kernel's, but not always of a kernel that is known here: what can't be read as a number is left out.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from trackside.agent.source import Reading, Unavailable

MOST_BYTES = 4 << 20
"""Of one file; /proc/stat of a thousand cores with ten thousand interrupts has a tenth of that."""
PAGE = 4096
MOST_ENVIRON = 256 << 10
_STEP = 64 << 10
_PIECE = 32 << 10
"""Bytes of one reading by :func:`once`: of files as small as most, the kernel hands over less only where there is no
more."""
_DIGITS = re.compile(rb"[0-9]{1,20}\Z")
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESRCH, errno.ESTALE})
"""What reading says of a device, process or cgroup that is no more."""


class PseudoFile:
    """One file, kept open between readings: that is half of what reading it costs."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path | str) -> None:
        """Nothing is opened before the first reading."""
        self.path, self._fd = os.fspath(path), -1

    def read(self, most: int = MOST_BYTES) -> bytes:
        """What it holds now, as far as ``most`` bytes; as far as a page, the kernel gives it in one piece. Raises
        OSError."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.pread(self._fd, min(most, _STEP), 0)
            if most <= PAGE:
                return data
            parts, size = [data], len(data)
            while data and size < most and (data := os.pread(self._fd, min(most - size, _STEP), size)):
                parts.append(data)
                size += len(data)
        except OSError as error:
            if error.errno in GONE:
                self.close()  # another of that name may come
            raise
        return b"".join(parts)

    def if_any(self, reading: Reading) -> bytes:
        """What it holds now; empty, with a warning, where that can't be read."""
        try:
            return self.read()
        except OSError as error:
            reading.warnings.append(f"{self.path}: {error.strerror}")
            return b""

    def count(self) -> int | None:
        """The number that is all it holds; None where it is none, or can't be read any more."""
        try:
            return number(self.read(64).strip())
        except OSError:
            return None

    def close(self) -> None:
        """Let go of it; a later reading opens it anew."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def once(path: Path | str, most: int = PAGE) -> bytes:
    """What a file holds that isn't worth keeping open, or must not be: an open file of a cgroup keeps it in memory. It
    must be of those that the kernel hands over in one piece, as /proc/PID/maps is not. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = os.read(fd, min(most, _PIECE))
        if len(data) < _PIECE:
            return data
        parts, size = [data], len(data)
        while size < most and (data := os.read(fd, min(most - size, _PIECE))):
            parts.append(data)
            size += len(data)
        return b"".join(parts)
    finally:
        os.close(fd)


def readable(path: Path | str, most: int = PAGE) -> bytes:
    """The same; empty where it is gone, or may not be read."""
    try:
        return once(path, most)
    except OSError:
        return b""


def environ_of(proc: Path | str, pid: int) -> dict[str, str]:
    """A process's environment as it was given at its start; empty where it may not be read."""
    pairs = readable(f"{proc}/{pid}/environ", MOST_ENVIRON).decode("utf-8", "replace").split("\0")
    return {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}


def uptime_s(proc: Path | str) -> float:
    """Seconds since boot; 0 where that isn't told."""
    try:
        return float(readable(f"{proc}/uptime").split()[0])
    except (ValueError, IndexError):
        return 0.0


def first_of(*paths: Path) -> Path:
    """The first of several places that can be read, else the last."""
    for path in paths[:-1]:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            continue
        return path
    return paths[-1]


def required(file: PseudoFile, remedy: str = "") -> bytes:
    """What a file holds that a source can't do without. Raises Unavailable."""
    try:
        return file.read()
    except OSError as error:
        raise Unavailable(f"{file.path} can't be read: {error.strerror}", remedy) from error


def number(field: bytes) -> int | None:
    """A count as the kernel writes it; None for anything else, a negative one too."""
    return int(field) if _DIGITS.match(field) else None


def keyed(data: bytes, wanted: Collection[bytes]) -> dict[bytes, int]:
    """The values of some keys, one ``key value`` or ``key: value kB`` a line; kB are counted as the kernel means them,
    1024 bytes. The first of a key holds."""
    found: dict[bytes, int] = {}
    for line in data.split(b"\n"):
        key, _, rest = line.partition(b" ")
        key = key.removesuffix(b":")
        if key not in wanted or key in found:
            continue
        fields = rest.split()
        value = number(fields[0]) if fields else None
        if value is not None:
            found[key] = value * 1024 if fields[1:] == [b"kB"] else value
            if len(found) == len(wanted):
                break
    return found


def names_in(folder: Path | str, most: int) -> list[str]:
    """The first names of a folder, sorted as numbers in them count; none where it can't be read."""
    try:
        return sorted(os.listdir(folder), key=_counted)[:most]
    except OSError:
        return []


def mount_point(field: bytes) -> str:
    """A path as the kernel writes it in lists of mounts, where blanks and backslashes stand as octal numbers."""
    return (
        _OCTAL.sub(lambda found: chr(int(found[1], 8)), os.fsdecode(field)).encode("utf-8", "replace").decode("utf-8")
    )


def lines_of(data: bytes) -> Iterator[list[bytes]]:
    """The fields of each line."""
    return (line.split() for line in data.split(b"\n"))


def parse_pressure(data: bytes) -> dict[str, float]:
    """Seconds that tasks were stalled, by level: ``some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`` a line, in
    microseconds. So the kernel writes it for the whole host and for each cgroup."""
    found: dict[str, float] = {}
    for line in data.split(b"\n"):
        level, _, rest = line.partition(b" ")
        if level not in (b"some", b"full"):
            continue
        total = number(rest.rpartition(b"total=")[2].strip())
        if total is not None:
            found[level.decode()] = total / 1e6
    return found


def _counted(name: str) -> list[tuple[int, str]]:
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d{1,18})|(\D+)", name)]
