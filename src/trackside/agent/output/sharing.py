"""Which node follows a file that several nodes see.

Slurm itself leaves no doubt: a file of all tasks is held by ``srun`` or by the batch script, which run on one node, and
one of a task (``%t``, ``%N``) by that task. Only where each task's own command redirects its output into a file of one
name on a network file system do processes of several nodes hold it. Then the first node of the step follows it, unless
its name tells the nodes, tasks or ranks apart.
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
_OWN = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "RANK", "LOCAL_RANK", "GROUP_RANK")
"""Variables whose value in a file's name tells it from those of other nodes."""
_NUMBER = re.compile(r"\d+")


class Sharing:
    """``proc``: where the kernel lists its mounts. ``folders``: those that are shared whatever lies under them."""

    def __init__(self, proc: Path, folders: Sequence[str] = ()) -> None:
        self._mounts = proc / "self" / "mountinfo"
        self._folders = tuple(folder.rstrip("/") + "/" for folder in folders)
        self._network: dict[int, bool] = {}
        """By device, whether its file system is a network's."""

    def is_ours(self, path: str, device: int, node: str, environ: Mapping[str, str]) -> bool:
        """Whether this node follows a file that one of its processes, of this environment, holds."""
        if environ.get("SLURM_NODEID", "0") in ("0", "") or not self.is_shared(path, device):
            return True
        return tells_apart(path, node, environ)

    def is_shared(self, path: str, device: int) -> bool:
        """Whether other nodes may see the file."""
        if path.startswith(self._folders):
            return True
        if device not in self._network:
            self._network = {device: False, **self._read()}
        return self._network[device]

    def _read(self) -> dict[int, bool]:
        found = {}
        try:
            with open(self._mounts, encoding="utf-8", errors="replace") as file:
                for line in file.read(1 << 20).splitlines():
                    before, _, after = line.partition(" - ")
                    major, _, minor = before.split()[2].partition(":")
                    found[os.makedev(int(major), int(minor))] = _NETWORK.fullmatch(after.split()[0]) is not None
        except (OSError, ValueError, IndexError):
            pass  # then nothing is known to be shared
        return found


def tells_apart(path: str, node: str, environ: Mapping[str, str]) -> bool:
    """Whether a file's path names its node, task or rank, so that other nodes have others."""
    name = "/".join(path.split("/")[-4:])
    if node and re.search(rf"(?<![A-Za-z0-9]){re.escape(node)}(?![A-Za-z0-9])", name):
        return True
    job = environ.get("SLURM_JOB_ID", "")
    numbers = {int(number) for number in _NUMBER.findall(name) if number != job and len(number) < 10}
    own = {int(value) for key in _OWN if (value := environ.get(key, "")).isdecimal()}
    return bool(numbers & own)
