"""What a process may do: its user's file permissions, so that the agent, as root, reads no file on behalf of a user who
may not read it; and the agent's own capabilities."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.pseudo_files import read_or_empty

_STATUS_BYTES = 4096
_MAX_GROUPS = 65536
CAPABILITIES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip
"""Names of Linux's capabilities by number, without ``CAP_``."""


@dataclass(frozen=True, slots=True)
class User:
    """The user of a process. ``uid``: the real one, which a set-uid program keeps. ``groups``: all its groups.
    ``own_only``: only files that the user owns may be read. That is for files found by a name that the user chose, not
    opened by one of the user's processes: a symbolic link could lead to a file that the user may not read."""

    uid: int
    groups: frozenset[int] = frozenset()
    own_only: bool = False

    def may_read(self, status: os.stat_result) -> bool:
        """Whether the user may read an open file with this status."""
        if status.st_uid == self.uid or self.own_only:
            return status.st_uid == self.uid
        if self.uid == 0:
            return True
        return bool(status.st_mode & (stat.S_IRGRP if status.st_gid in self.groups else stat.S_IROTH))


def user_of(proc: str, pid: int) -> User | None:
    """The user of a process; None if it has ended. The owner of /proc/PID is not used because it is the effective user:
    root while a set-uid program runs."""
    lines = read_or_empty(f"{proc}/{pid}/status", _STATUS_BYTES + 8 * _MAX_GROUPS).split(b"\n")
    fields = {name: value.split() for name, colon, value in (line.partition(b":") for line in lines) if colon}
    try:
        groups = frozenset(map(int, (fields[b"Gid"][0], *fields.get(b"Groups", ()))))
        return User(int(fields[b"Uid"][0]), groups)
    except (KeyError, IndexError, ValueError):
        return None


def capabilities(status: Path = Path("/proc/self/status")) -> list[str]:
    """Names of the capabilities that this process has."""
    line = next((line for line in read_or_empty(status).splitlines() if line.startswith(b"CapEff:")), b"CapEff:\t0")
    bits = int(line.split()[1], 16)
    return [f"CAP_{name.upper()}" for number, name in enumerate(CAPABILITIES) if bits >> number & 1]


def capabilities_in_words(status: Path = Path("/proc/self/status")) -> str:
    """The capabilities as text: all, all but some, a list, or none."""
    named, all_ = capabilities(status), [f"CAP_{name.upper()}" for name in CAPABILITIES]
    if len(named) == len(all_):
        return "all capabilities"
    if len(named) > len(all_) / 2:
        return "all capabilities but " + ", ".join(sorted(set(all_) - set(named)))
    return ", ".join(named) or "no capabilities"
