"""PyTorch's flight recorder of a process: asked for a dump where it was set up to be asked, and the dump fetched.

A process that has TORCH_NCCL_DEBUG_INFO_PIPE_FILE and a ring (TORCH_FR_BUFFER_SIZE, once TORCH_NCCL_TRACE_BUFFER_SIZE)
reads the named pipe ``<that><rank>.pipe`` once a second, and dumps into ``<TORCH_FR_DUMP_TEMP_FILE><rank>`` when
anything comes (PyTorch, ProcessGroupNCCL and FlightRecorder). The dump is a pickle: nothing here looks into it.

The paths come from the job's environment, and the agent may be root: so only a pipe that belongs to the process's own
user is written to, only a plain file of that user's is read, and neither is followed through a link at its end.
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

ASK = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_RINGS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_OLD_DEFAULT = "/tmp/nccl_trace_rank_"
MOST_DEFLATED = 8
"""Bytes of a dump for each byte that may be sent: pickles of the same few frames deflate to a tenth."""
PIECE = 48 << 10
"""Characters of base64 a line: log stores take 256 KiB a line by default (Loki, max_line_size)."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Where a rank's flight recorder is asked and where it dumps. ``uid``: of its process."""

    pipe: Path | None
    dumps: tuple[Path, ...]
    uid: int


class NoDump(TracksideError):
    """Why there is none that can be sent, in a line."""


def recorder(proc: Path, rank: Rank) -> Recorder | None:
    """A rank's recorder; None where it has none or that isn't known."""
    environ = rank.main.environ or {}
    number = environ.get("RANK", "") or ("" if rank.number is None else str(rank.number))
    told = any(name in environ for name in (ASK, *_PREFIXES))
    if not number.isdecimal() or not (told or _has_ring(environ)):
        return None
    user = user_of(os.fspath(proc), rank.main.pid)
    if user is None:
        return None
    stem = environ.get(ASK, "")
    pipe = _inside(proc, rank.main.pid, f"{stem}{number}.pipe") if stem and _has_ring(environ) else None
    whole = environ_of(proc, rank.main.pid)
    caches: dict[str, str] = {name: whole.get(name, "") for name in ("HOME", "XDG_CACHE_HOME")}
    stems = _stems({**caches, **environ})
    return Recorder(pipe, tuple(_inside(proc, rank.main.pid, f"{each}{number}") for each in stems), user.uid)


def _has_ring(environ: Mapping[str, str]) -> bool:
    """Whether it records: the default of new versions is to, of old ones not to."""
    size = next((environ[name] for name in _RINGS if name in environ), "1" if ASK in environ else "0")
    return size.strip() not in ("", "0")


def _stems(environ: Mapping[str, str]) -> list[str]:
    said = next((environ[name] for name in _PREFIXES if environ.get(name)), None)
    if said is not None:
        return [said]
    home = environ.get("HOME")
    cache = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
    return [*([f"{cache}/torch/comm_lib_trace_rank_"] if cache else []), _OLD_DEFAULT]


def _inside(proc: Path, pid: int, path: str) -> Path:
    """A path as the process sees it, in a container too."""
    if path.startswith("/"):
        return proc / str(pid) / "root" / path.lstrip("/")
    return proc / str(pid) / "cwd" / path


def ask(found: Recorder) -> bool:
    """Have it dump; whether it was asked. It goes on working after that."""
    if found.pipe is None:
        return False
    try:
        place = os.open(found.pipe, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        told = os.fstat(place)
        if not stat.S_ISFIFO(told.st_mode) or told.st_uid != found.uid:
            return False
        end = os.open(f"/proc/self/fd/{place}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(end, b"1") == 1
        finally:
            os.close(end)
    except OSError:  # nobody reads it
        return False
    finally:
        os.close(place)


def written_ns(found: Recorder) -> int:
    """When its newest dump was written; 0 where there is none."""
    return _newest(found)[0]


def _newest(found: Recorder) -> tuple[int, Path]:
    """Its newest dump, and when that was written; 0 where there is none."""
    dumps = [(told.st_mtime_ns, path) for path in found.dumps if (told := _told(path, found.uid)) is not None]
    return max(dumps, default=(0, Path()))


def pieces(found: Recorder, since_ns: int, most: int) -> list[Piece]:
    """The newest dump since then, deflated and as text. Raises NoDump, also where that is more than ``most`` bytes."""
    time, path = _newest(found)
    if time < since_ns or not time:
        raise NoDump("its flight recorder has made no dump")
    data = _read(path, found.uid, MOST_DEFLATED * most)
    packed = b"" if data is None else zlib.compress(data, 6)
    if data is None or len(packed) > most:
        shown = "/" + "/".join(path.parts[path.parts.index("root") + 1 :]) if "root" in path.parts else str(path)
        raise NoDump(f"the dump of its flight recorder is too large to be sent: {shown}")
    return list(pieces_of(base64.b64encode(packed).decode(), hashlib.sha256(data).hexdigest()[:8], PIECE))


def _told(path: Path, uid: int) -> os.stat_result | None:
    try:
        told = os.lstat(path)
    except OSError:
        return None
    return told if stat.S_ISREG(told.st_mode) and told.st_uid == uid else None


def _read(path: Path, uid: int, most: int) -> bytes | None:
    """A plain file of that user's; None of one that is larger. Raises NoDump."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NoDump(f"the dump of its flight recorder can't be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode) or told.st_uid != uid:
            raise NoDump("the dump of its flight recorder belongs to somebody else")
        data = file.read(most + 1) if told.st_size <= most else None
        return data if data is not None and len(data) <= most else None
