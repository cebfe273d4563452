"""How far the kernel's messages were read, kept over restarts of the agent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

Remembered = Mapping[str, str | int]


def recall(path: Path | None) -> Remembered:
    """What was written last; empty where there is nothing that can be read."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError):
        return {}
    known = found if isinstance(found, dict) else {}
    return {str(key): value for key, value in known.items() if isinstance(value, (str, int))}


def remember(path: Path, position: Remembered) -> None:
    """Write it so that a crash leaves the old or the new. Raises OSError."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(position), "utf-8")
    os.replace(temporary, path)


def whole(position: Remembered, key: str) -> int | None:
    """A number of a position, or None."""
    value = position.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
