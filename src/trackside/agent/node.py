"""The machine that the agent runs on: its name, and where its kernel shows itself."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from trackside.catalog.streams import short


def hostname() -> str:
    """The node's name as Slurm writes it: of its environment, else the host's without a domain."""
    return os.environ.get("SLURMD_NODENAME") or short(socket.gethostname())


@dataclass(frozen=True, slots=True)
class Node:
    """``proc``, ``sys`` and ``dev`` are elsewhere in a container that has the host's mounted, and in tests."""

    name: str = field(default_factory=hostname)
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
