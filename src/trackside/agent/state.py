"""The agent's state folder, where sources save how far they have read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def state_folder(path: Path) -> Path | None:
    """The folder, created if needed; None if it cannot be written."""
    with suppress(OSError):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = path / ".written"
        probe.unlink(missing_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        probe.unlink()
        return path
    return None


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: after a crash it has the old or the new contents. Raises OSError."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(data)
    os.replace(temporary, path)
