"""PyTorch's flight recorder of a process: requesting a dump if it is configured for that, and reading the dump.

A process with TORCH_NCCL_DEBUG_INFO_PIPE_FILE and a ring buffer (TORCH_FR_BUFFER_SIZE, formerly
TORCH_NCCL_TRACE_BUFFER_SIZE) reads the named pipe ``<PIPE_FILE><rank>.pipe`` once a second, and dumps to
``<TORCH_FR_DUMP_TEMP_FILE><rank>`` when anything arrives (PyTorch: ProcessGroupNCCL and FlightRecorder). The dump is a
pickle and is never unpickled here.

The paths come from the job's environment, and the agent may be root: so it writes only to a pipe that belongs to the
process's user, reads only a plain file of that user, and follows no link at the end of the path.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.hang.ranks import Rank
from trackside.agent.pseudo_files import environ_of
from trackside.agent.user import user_of
from trackside.catalog.hang_lines import Piece, pieces_of
from trackside.errors import TracksideError

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_RINGS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_OLD_DEFAULT = "/tmp/nccl_trace_rank_"
MAX_COMPRESSION_RATIO = 8
"""Bytes of a dump that are read per byte that may be sent: pickles of repeated frames compress about tenfold, so what
is read nearly always fits."""
PIECE_CHARS = 48 << 10
"""Base64 characters per line: log stores accept 256 KiB a line by default (Loki, max_line_size)."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """The trigger pipe and dump files of a rank's flight recorder. ``uid``: user of its process."""

    pipe: Path | None
    dumps: tuple[Path, ...]
    uid: int


class DumpUnavailable(TracksideError):
    """Why there is no dump to send, in one line."""


def recorder(proc: Path, rank: Rank) -> Recorder | None:
    """A rank's flight recorder; None if its environment shows none."""
    environ = rank.main.environ or {}
    number = environ.get("RANK", "") or ("" if rank.number is None else str(rank.number))
    is_configured = any(name in environ for name in (PIPE_VARIABLE, *_PREFIXES))
    if not number.isdecimal() or not (is_configured or _has_ring(environ)):
        return None
    user = user_of(os.fspath(proc), rank.main.pid)
    if user is None:
        return None
    stem = environ.get(PIPE_VARIABLE, "")
    pipe = _path_in_process(proc, rank.main.pid, f"{stem}{number}.pipe") if stem and _has_ring(environ) else None
    full_environ = environ_of(proc, rank.main.pid)
    caches: dict[str, str] = {name: full_environ.get(name, "") for name in ("HOME", "XDG_CACHE_HOME")}
    stems = _path_prefixes({**caches, **environ})
    return Recorder(pipe, tuple(_path_in_process(proc, rank.main.pid, f"{stem}{number}") for stem in stems), user.uid)


def _has_ring(environ: Mapping[str, str]) -> bool:
    """Whether the ring buffer is on. New PyTorch versions have it on by default, old ones off."""
    size = next((environ[name] for name in _RINGS if name in environ), "1" if PIPE_VARIABLE in environ else "0")
    return size.strip() not in ("", "0")


def _path_prefixes(environ: Mapping[str, str]) -> list[str]:
    prefix = next((environ[name] for name in _PREFIXES if environ.get(name)), None)
    if prefix is not None:
        return [prefix]
    home = environ.get("HOME")
    cache = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
    return [*([f"{cache}/torch/comm_lib_trace_rank_"] if cache else []), _OLD_DEFAULT]


def _path_in_process(proc: Path, pid: int, path: str) -> Path:
    """A path as the process sees it, also in a container."""
    if path.startswith("/"):
        return proc / str(pid) / "root" / path.lstrip("/")
    return proc / str(pid) / "cwd" / path


def request_dump(recorder: Recorder) -> bool:
    """Request a dump; True if the request was written. The process continues to run."""
    if recorder.pipe is None:
        return False
    try:
        pipe = os.open(recorder.pipe, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(pipe)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid != recorder.uid:
            return False
        end = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(end, b"1") == 1
        finally:
            os.close(end)
    except OSError:  # no process reads the pipe
        return False
    finally:
        os.close(pipe)


def last_dump_ns(recorder: Recorder) -> int:
    """POSIX time (ns) of the newest dump; 0 if there is none."""
    return _newest(recorder)[0]


def _newest(recorder: Recorder) -> tuple[int, Path]:
    """Time (ns) and path of the newest dump; time 0 if there is none."""
    dumps = [
        (status.st_mtime_ns, path) for path in recorder.dumps if (status := _status(path, recorder.uid)) is not None
    ]
    return max(dumps, default=(0, Path()))


def dump_pieces(recorder: Recorder, since_ns: int, max_bytes: int) -> list[Piece]:
    """The newest dump since ``since_ns``, compressed and encoded in pieces. Raises DumpUnavailable, also if
    it is larger than ``max_bytes`` compressed."""
    time, path = _newest(recorder)
    if time < since_ns or not time:
        raise DumpUnavailable("its flight recorder made no dump")
    data = _read(path, recorder.uid, MAX_COMPRESSION_RATIO * max_bytes)
    compressed = b"" if data is None else zlib.compress(data, 6)
    if data is None or len(compressed) > max_bytes:
        shown = "/" + "/".join(path.parts[path.parts.index("root") + 1 :]) if "root" in path.parts else str(path)
        raise DumpUnavailable(f"the dump of its flight recorder is too large to send: {shown}")
    return list(pieces_of(base64.b64encode(compressed).decode(), hashlib.sha256(data).hexdigest()[:8], PIECE_CHARS))


def _status(path: Path, uid: int) -> os.stat_result | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) and status.st_uid == uid else None


def _read(path: Path, uid: int, max_bytes: int) -> bytes | None:
    """The contents of a plain file that belongs to the user; None if it is larger than ``max_bytes``. Raises
    DumpUnavailable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DumpUnavailable(f"the dump of its flight recorder cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise DumpUnavailable("the dump of its flight recorder belongs to another user")
        data = file.read(max_bytes + 1) if status.st_size <= max_bytes else None
        return data if data is not None and len(data) <= max_bytes else None
