"""``slurm.conf``: the few words of it that tell where a daemon of this node writes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

PLACES = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
)
"""Where it lies: as a rule, and where slurmd keeps one that it was sent."""
_MOST = 4 << 20


def find(given: str = "", environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that holds on this node."""
    wanted = [given] if given else [environ.get("SLURM_CONF", ""), *PLACES]
    return next((Path(path) for path in wanted if path and os.access(path, os.R_OK)), None)


def value(path: Path, name: str, node: str) -> str | None:
    """A setting with ``%n`` and ``%h`` filled in; None where it isn't set. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST)
    found = re.search(rf"(?im)^[ \t]*{re.escape(name)}[ \t]*=[ \t]*\"?([^\s#\"]+)", text)
    return None if found is None else found[1].replace("%n", node).replace("%h", os.uname().nodename)
