"""What a process may do: its user's rights, as what the agent may read as root a job's user may not; and the agent's
own capabilities."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.pseudo_files import readable

_HEAD = 4096
_MOST_GROUPS = 65536
CAPABILITIES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip
"""Linux's capabilities, by number."""


@dataclass(frozen=True, slots=True)
class User:
    """``uid``: the real one, which a program that runs with a file's rights keeps; ``groups``: all of them.
    ``own_only``: of a file that was found by a name which this user chose, and not opened by a process of theirs: what
    they may not reach lies behind a link as near as what they may."""

    uid: int
    groups: frozenset[int] = frozenset()
    own_only: bool = False

    def may_read(self, told: os.stat_result) -> bool:
        """Whether an open file is one that they may read."""
        if told.st_uid == self.uid or self.own_only:
            return told.st_uid == self.uid
        if self.uid == 0:
            return True
        return bool(told.st_mode & (stat.S_IRGRP if told.st_gid in self.groups else stat.S_IROTH))


def user_of(proc: str, pid: int) -> User | None:
    """Whose a process is; None where it has ended. Its folder in /proc tells the effective user, who is root while a
    program runs that has root's rights for whoever starts it."""
    lines = readable(f"{proc}/{pid}/status", _HEAD + 8 * _MOST_GROUPS).split(b"\n")
    told = {name: value.split() for name, colon, value in (line.partition(b":") for line in lines) if colon}
    try:
        groups = frozenset(map(int, (told[b"Gid"][0], *told.get(b"Groups", ()))))
        return User(int(told[b"Uid"][0]), groups)
    except (KeyError, IndexError, ValueError):
        return None


def capabilities(status: Path = Path("/proc/self/status")) -> list[str]:
    """Those that this process has beyond its user's rights, by Linux's names."""
    line = next((line for line in readable(status).splitlines() if line.startswith(b"CapEff:")), b"CapEff:\t0")
    bits = int(line.split()[1], 16)
    return [f"CAP_{name.upper()}" for number, name in enumerate(CAPABILITIES) if bits >> number & 1]


def capabilities_in_words(status: Path = Path("/proc/self/status")) -> str:
    """The same, or that these are all, all but some, or none."""
    named, all_ = capabilities(status), [f"CAP_{name.upper()}" for name in CAPABILITIES]
    if len(named) == len(all_):
        return "all capabilities"
    if len(named) > len(all_) / 2:
        return "all capabilities but " + ", ".join(sorted(set(all_) - set(named)))
    return ", ".join(named) or "no capabilities"
