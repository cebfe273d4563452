"""Whose rights a process has: what the agent may read as root, a job's user may not."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

_HEAD = 4096
_MOST_GROUPS = 65536


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
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            lines = file.read(_HEAD + 8 * _MOST_GROUPS).split(b"\n")
    except OSError:
        return None
    told = {name: value.split() for name, colon, value in (line.partition(b":") for line in lines) if colon}
    try:
        groups = frozenset(map(int, (told[b"Gid"][0], *told.get(b"Groups", ()))))
        return User(int(told[b"Uid"][0]), groups)
    except (KeyError, IndexError, ValueError):
        return None
