"""File systems that fail: full, over quota, read-only, stale, broken, unreachable; in job and kernel logs."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_REASONS: tuple[tuple[str, int, str], ...] = (
    (
        "full",
        28,
        r"No space left on device|StorageFull|ENOSPC|(?:[Dd]isk|database or disk) (?:is )?full|not enough (?:free )?disk space",
    ),
    ("quota", 122, r"[Dd]isk quota exceeded|EDQUOT|[Qq]uota ?[Ee]xceeded"),
    ("read_only", 30, r"[Rr]ead-only file ?system|EROFS"),
    ("stale", 116, r"Stale (?:NFS )?file handle|ESTALE"),
    ("io_error", 5, r"Input/output error|Remote I/O error|disk I/O error|Structure needs cleaning"),
    (
        "unreachable",
        107,
        r"Transport endpoint is not connected|Cannot send after transport endpoint shutdown|Host is down",
    ),
)
_ERRNO_REASONS = tuple((reason, number, re.compile(text)) for reason, number, text in _REASONS)
_SHARED_MEMORY = re.compile(r"shared memory|\(shm\)|/dev/shm|/torch_\d+_\d+|nccl-\w{6}\b")
_NOT_STORAGE = re.compile(
    r"https?://[^\s]{1,200}quota|API|rate limit|GPU quota|CUDA|QuotaFailure|RESOURCE_EXHAUSTED|Hub\b"
)
_HARMLESS = re.compile(
    r"\b(?:WARNING|WARN|UserWarning|RuntimeWarning|retry|retrying)\b|tput|tty|/dev/tty|ioctl|\bcore\b.{0,20}dump"
)
_PATH = re.compile(r"['\"‘]((?:/|[\w.-]{1,80}/)[^'\"’\n]{1,400})['\"’]|(?:^|[\s:])(/[\w./+@=-]{2,400})(?=[:\s]|$)")
_ERRNO = re.compile(r"(?:^|.*\W)errno ?[=:] ?(\d{1,3})|\[Errno (\d{1,3})\]|os error (\d{1,3})|code: (\d{1,3}), kind")

PARSER = Parser("storage", "file system errors", "system", planes=("log", "kernel"))


@PARSER.pattern(
    rb"No space left on device|kind: StorageFull|[Dd]isk quota exceeded|[Qq]uota exceeded"
    rb"|[Rr]ead-only file ?system|Stale (?:NFS )?file handle"
    rb"|Input/output error|Remote I/O error|Structure needs cleaning|Transport endpoint is not connected"
    rb"|Cannot send after transport endpoint"
    rb"|not enough (?:free )?disk space|kind: (?:Filesystem)?QuotaExceeded|\[Errno E(?:NOSPC|DQUOT|ROFS|STALE)\]"
    rb"|database or disk is full|disk I/O error",
    safety="Shared memory (/dev/shm, torch's shm files) is a container setting, an API's quota is not a file "
    "system's; a warning or a full cache confirms, it does not name the cause.",
    matches=(
        "OSError: [Errno 28] No space left on device: '/scratch/run/ckpt/step_500.pt'",
        "cp: error writing '/data/out.bin': No space left on device",
        "OSError: [Errno 122] Disk quota exceeded: '/home/user/.cache/x'",
        "OSError: [Errno 30] Read-only file system: '/data/out'",
        "OSError: [Errno 116] Stale file handle",
        "OSError: [Errno 5] Input/output error",
        'SafetensorError: IoError(Os { code: 122, kind: FilesystemQuotaExceeded, message: "" })',
        "sqlite3.OperationalError: database or disk is full",
        (
            "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: "
            'StorageFull, message: "No space left on device" })'
        ),
    ),
    avoids=(
        (
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_11001_2357800804_0>: "
            "No space "
            "left on device (28)"
        ),
        "google.api_core.exceptions: GPU quota exceeded for project",
    ),
)
def _parse_errno(line: Line) -> Event | None:
    text = line.text
    if _SHARED_MEMORY.search(text) or _NOT_STORAGE.search(text):
        return None
    for reason, number, pattern in _ERRNO_REASONS:
        if pattern.search(text):
            printed = _ERRNO.search(text)
            errno = int(next(filter(None, printed.groups()))) if printed else number
            role = EventRole.CONFIRMATION if _HARMLESS.search(text) else EventRole.ROOT
            return line.event("storage_fault", role, reason=reason, path=_find_path(text), errno=errno)
    return None


def _find_path(text: str) -> str | None:
    """The path that an error names, or None."""
    match = _PATH.search(text.split("Errno", 1)[-1]) or _PATH.search(text)
    return None if match is None else match[1] or match[2]


@PARSER.pattern(
    rb"PytorchStreamWriter failed|unexpected pos \d|iostream error|file write failed",
    r"unexpected pos \d+ vs|PytorchStreamWriter failed|iostream error|file write failed",
    safety="Only failed writes; a reader's failure (PytorchStreamReader) is a bad file, not a bad disk.",
    matches=(
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 640 vs 534",
        "RuntimeError: PytorchStreamWriter failed writing file data/3: file write failed",
    ),
    avoids=("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",),
)
def _parse_writer(line: Line, _: re.Match[str]) -> Event | None:
    """Writers that hide errno: a zip or HDF5 file that could not be written completely."""
    if any(pattern.search(line.text) for _, _, pattern in _ERRNO_REASONS):
        return None  # the errno pattern reads this line
    return line.event("storage_fault", EventRole.ROOT, reason="io_error", path=_find_path(line.text))


_KERNEL_REASONS = {
    "read_only": r"[Rr]emounting filesystem read-only|forced readonly|mounted filesystem read-only due",
    "unreachable": r"server \S{1,200} not responding|[Ll]ost connection to server|This client was evicted"
    r"|Connection to \S{1,200} (?:\(at \S+\) )?was lost"
    r"|operation \w+ to node \S+ failed: rc = -1(?:07|10|08)|libceph: (?:osd|mon"
    r"|mds)\d+ .{0,80}(?:socket closed|connect error)|ceph: mds\d+ hung",
    "frozen": r"[Ff]ilesystem has been shut down|[Ss]hutting down filesystem|xfs_do_force_shutdown|[Ll]og I/O error",
    "io_error": r"EXT4-fs error|XFS \(\S+\): (?:[Mm]etadata|Corruption|Internal error)|(?:blk_update_request"
    r"|print_req_error): .{0,40}error|I/O error,? dev \S+|Buffer I/O error on dev"
    r"|BTRFS (?:error|critical)|LustreError: .{0,300}rc = -5\b|nvme\d+n?\d*: (?:I/O .{0,40}timeout"
    r"|controller is down)|GPFS: .{0,100}(?:I/O error|unmounted)",
}
_COMPILED_KERNEL_REASONS = tuple((reason, re.compile(text)) for reason, text in _KERNEL_REASONS.items())
_RECOVERED = re.compile(r"still trying|was lost; in progress operations using this service will wait")


@PARSER.pattern(
    rb"EXT4-fs error|[Rr]emounting filesystem read-only|forced readonly|XFS \([^\n]{1,100}(?:shut|rror"
    rb"|orruption)|xfs_do_force_shutdown|[Ss]hutting down filesystem"
    rb"|I/O error,? dev |Buffer I/O error on dev|BTRFS (?:error|critical)|server [^\s]{1,200} not responding"
    rb"|This client was evicted"
    rb"|Lustre[^\n]{1,200} was lost|LustreError: [^\n]{1,300}rc = -|controller is down"
    rb"|libceph: [^\n]{1,100}(?:closed|error)|ceph: mds\d+ hung|GPFS: [^\n]{1,100}(?:error|unmounted)"
    rb"|I/O \d[^\n]{1,60} timeout",
    safety="A server that is 'still trying' may answer again: that only confirms.",
    matches=(
        (
            "[ 812.120034] EXT4-fs error (device nvme1n1p1): ext4_find_entry:1455: inode #2: comm python: "
            "reading directory lblock 0"
        ),
        "[ 812.120090] EXT4-fs (nvme1n1p1): Remounting filesystem read-only",
        "[ 900.000001] blk_update_request: I/O error, dev sdb, sector 2048 op 0x1:(WRITE) flags 0x800",
        "[ 900.000002] nfs: server filer01 not responding, timed out",
        "[ 900.000003] XFS (sdb1): Log I/O error detected. Shutting down filesystem",
        (
            "[ 900.000004] LustreError: 167-0: lfs01-OST0003-osc: This client was evicted by lfs01-OST0003; in "
            "progress operations using this service will fail."
        ),
    ),
    avoids=(
        "[   1.000000] EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "[   2.000000] XFS (sdb): Ending clean mount",
    ),
)
def _parse_kernel(line: Line) -> Event | None:
    for reason, pattern in _COMPILED_KERNEL_REASONS:
        if pattern.search(line.text):
            role = EventRole.CONFIRMATION if _RECOVERED.search(line.text) else EventRole.ROOT
            device = re.search(r"\((\w[\w-]{1,60})\)|\bdev (\w[\w-]{1,60})|server (\S{1,200}) not", line.text)
            path = next(filter(None, device.groups())) if device else None
            return line.event("storage_fault", role, reason=reason, path=path)
    return None
