"""Slurm's configuration file: where it is on a node, and its settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

CONF_PATHS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
)
"""Usual paths of slurm.conf, including where slurmd caches a configuration that it was sent."""
_MAX_CONF_BYTES = 4 << 20


def find_conf(path: str = "", environ: Mapping[str, str] = os.environ) -> Path | None:
    """The slurm.conf of this node: ``path`` if given, else ``$SLURM_CONF`` or a usual path; None if there is none."""
    candidates = [path] if path else [environ.get("SLURM_CONF", ""), *CONF_PATHS]
    return next((Path(file) for file in candidates if file and os.access(file, os.R_OK)), None)


def setting(path: Path, name: str, node: str) -> str | None:
    """A setting in slurm.conf with ``%n`` and ``%h`` filled in; None if it isn't set. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_MAX_CONF_BYTES)
    match = re.search(rf"(?im)^[ \t]*{re.escape(name)}[ \t]*=[ \t]*\"?([^\s#\"]+)", text)
    return None if match is None else match[1].replace("%n", node).replace("%h", os.uname().nodename)
