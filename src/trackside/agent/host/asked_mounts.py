"""The state of remote file systems, asked by child processes: on a mount whose server is dead the question never ends,
and whoever asked can't be ended either. A child that doesn't come back is left alone, and no second one is sent."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import NamedTuple

_FORMAT = "%S %b %a %d"
"""As ``stat`` of GNU and of BusyBox knows them: bytes of a block, blocks, blocks free for users, inodes free."""


class Space(NamedTuple):
    """What a file system has, in bytes and inodes."""

    total: int
    free: int
    files_free: int


@dataclass(slots=True)
class _Asked:
    child: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    space: Space | None = None
    failed: bool = False


class AskedMounts:
    """Asks each mount once every ``every_s``; one that has not answered after ``patience_s`` counts as failed."""

    def __init__(self, every_s: float, patience_s: float, program: str = "stat") -> None:
        self._every_s, self._patience_s, self._program = every_s, patience_s, program
        self._asked: dict[str, _Asked] = {}

    def state(self, path: str, now: float | None = None) -> tuple[Space | None, bool]:
        """(what it last said, whether asking failed or is stuck). Never waits: an answer is there the next time."""
        now = time.monotonic() if now is None else now
        asked = self._asked.setdefault(path, _Asked())
        if asked.child is not None:
            self._look_after(asked, now)
        elif now - asked.since >= self._every_s or not asked.since:
            self._ask(asked, path, now)
        return (None if asked.failed else asked.space), asked.failed

    def keep(self, paths: set[str]) -> None:
        """Forget mounts that are no more, but not one whose child is still stuck: somebody must wait for it."""
        for path in self._asked.keys() - paths:
            self._look_after(self._asked[path], time.monotonic())
            if self._asked[path].child is None:
                del self._asked[path]

    def _ask(self, asked: _Asked, path: str, now: float) -> None:
        asked.since = now
        try:
            asked.child = subprocess.Popen(
                [self._program, "-f", "-c", _FORMAT, "--", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            asked.space, asked.failed = None, False  # no such program: nothing can be said

    def _look_after(self, asked: _Asked, now: float) -> None:
        child = asked.child
        if child is None:
            return
        if child.poll() is None:
            asked.failed = asked.failed or now - asked.since > self._patience_s
            return
        said = child.stdout.read(200) if child.stdout is not None else b""
        if child.stdout is not None:
            child.stdout.close()
        asked.child = None
        asked.space = parse_space(said) if child.returncode == 0 else None
        asked.failed = asked.space is None

    def close(self) -> None:
        """End the children that can be ended; the others end with their mounts."""
        for asked in self._asked.values():
            if asked.child is not None:
                asked.child.kill()
                if asked.child.stdout is not None:
                    asked.child.stdout.close()
                try:
                    asked.child.wait(0.2)
                except subprocess.TimeoutExpired:
                    asked.child.returncode = -9  # nobody waits for it any more: the first process will
        self._asked.clear()


def parse_space(said: bytes) -> Space | None:
    """Read an answer of :data:`_FORMAT`."""
    fields = said.split()
    if len(fields) != 4 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    size, total, free, files = map(int, fields)
    return Space(size * total, size * free, files)
