"""Migrations from each version of the store to the next, in order: the first brings version 1 to 2, and so on.

A migration gets the store's folder and the manifest as decoded JSON, and returns the manifest of the next version. It
may write new segments into ``segments/`` and name them; it never changes or deletes one. Its result takes effect with
the next commit, so an interrupted migration leaves the store unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Migration = Callable[[Path, dict[str, Any]], dict[str, Any]]


def _add_received_state(store: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Version 2 adds the state of the receiver, empty at first. An earlier Trackside would write pushed samples
    twice."""
    return {**manifest, "received": {"mark": {"file": 0, "offset": 0}, "factors": {}}}


MIGRATIONS: tuple[Migration, ...] = (_add_received_state,)
