"""From one version of the store to the next, in order: the first brings version 1 to 2, and so on.

A migration is given the store's folder and the manifest as it is written, and gives the manifest of the next version.
It may write new segments into ``segments/`` and name them; it never changes or deletes one. What it returns holds from
the next commit on, so that a migration cut off leaves the store as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Migration = Callable[[Path, dict[str, Any]], dict[str, Any]]


def _received(store: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Version 2 knows of what was sent to the store; an earlier Trackside would write it twice. Nothing was so far."""
    return {**manifest, "received": {"mark": {"file": 0, "offset": 0}, "factors": {}}}


MIGRATIONS: tuple[Migration, ...] = (_received,)
