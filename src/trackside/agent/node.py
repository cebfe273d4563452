"""The machine that the agent runs on: its name, and the paths of its /proc, /sys and /dev."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from trackside.catalog.streams import short


def hostname() -> str:
    """The node's name as Slurm writes it: ``SLURMD_NODENAME``, else the host name without domain."""
    return os.environ.get("SLURMD_NODENAME") or short(socket.gethostname())


@dataclass(frozen=True, slots=True)
class LocalNode:
    """This node and the paths of its kernel file systems; the paths differ in tests, and in a container that mounts the
    host's."""

    name: str = field(default_factory=hostname)
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
