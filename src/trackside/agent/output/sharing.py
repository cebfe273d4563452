"""Which node follows a file that several nodes see.

With Slurm's own output files it is clear: a file of all tasks is open in ``srun`` or the batch script, which run on one
node, and a file of one task (``%t``, ``%N``) in that task. Only if each task's command redirects its output to a file
of the same name on a network file system do processes of several nodes have it open. Then the first node of the step
follows it, unless the name contains the node, task or rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_NETWORK = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|cifs|smb3|9p|afs|panfs|wekafs|pvfs2|orangefs|daos|glusterfs|ocfs2|gfs2|virtiofs"
    r"|fuse\..+"
)
_RANK_VARIABLES = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "RANK", "LOCAL_RANK", "GROUP_RANK")
"""Variables whose value in a file name shows that other nodes have other files."""
_NUMBER = re.compile(r"\d+")


class FileOwnership:
    """Decides which node follows a file that several nodes see.

    ``proc``: the /proc with the list of mounts. ``folders``: folders that are shared on any file system.
    """

    def __init__(self, proc: Path, folders: Sequence[str] = ()) -> None:
        self._mounts = proc / "self" / "mountinfo"
        self._folders = tuple(folder.rstrip("/") + "/" for folder in folders)
        self._is_network: dict[int, bool] = {}
        """Device -> whether it is a network file system."""

    def is_ours(self, path: str, device: int, node: str, environ: Mapping[str, str]) -> bool:
        """Whether this node follows a file that one of its processes, with this environment, has open."""
        if environ.get("SLURM_NODEID", "0") in ("0", "") or not self.is_shared(path, device):
            return True
        return is_specific(path, node, environ)

    def is_shared(self, path: str, device: int) -> bool:
        """Whether other nodes may see the file."""
        if path.startswith(self._folders):
            return True
        if device not in self._is_network:
            self._is_network = {device: False, **self._read()}
        return self._is_network[device]

    def _read(self) -> dict[int, bool]:
        is_network = {}
        try:
            with open(self._mounts, encoding="utf-8", errors="replace") as file:
                for line in file.read(1 << 20).splitlines():
                    before, _, after = line.partition(" - ")
                    major, _, minor = before.split()[2].partition(":")
                    is_network[os.makedev(int(major), int(minor))] = _NETWORK.fullmatch(after.split()[0]) is not None
        except (OSError, ValueError, IndexError):
            pass  # then no file system is known to be shared
        return is_network


def is_specific(path: str, node: str, environ: Mapping[str, str]) -> bool:
    """Whether a file's path contains its node, task or rank, so that other nodes have different files."""
    name = "/".join(path.split("/")[-4:])
    if node and re.search(rf"(?<![A-Za-z0-9]){re.escape(node)}(?![A-Za-z0-9])", name):
        return True
    job = environ.get("SLURM_JOB_ID", "")
    numbers = {int(number) for number in _NUMBER.findall(name) if number != job and len(number) < 10}
    own_numbers = {int(value) for key in _RANK_VARIABLES if (value := environ.get(key, "")).isdecimal()}
    return bool(numbers & own_numbers)
