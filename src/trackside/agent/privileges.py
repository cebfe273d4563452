"""What this process may do beyond its user's rights."""

from __future__ import annotations

NAMES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip
"""Linux's capabilities, by number."""


def effective(status: str = "/proc/self/status") -> list[str]:
    """Capabilities that it has, or in words that these are all or none."""
    with open(status, "rb") as file:
        bits = next((int(line.split()[1], 16) for line in file if line.startswith(b"CapEff:")), 0)
    named = [f"CAP_{name.upper()}" for number, name in enumerate(NAMES) if bits >> number & 1]
    if len(named) == len(NAMES):
        return ["all capabilities"]
    if len(named) > len(NAMES) / 2:
        return ["all capabilities but " + ", ".join(sorted({f"CAP_{name.upper()}" for name in NAMES} - set(named)))]
    return named or ["no capabilities"]
