"""Engines of stores: each module of a room is one, registered by being there."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from trackside.settings import nearest

METRICS = "trackside.stores.metrics"
DEFAULT_METRICS = "prometheus"
"""The kind of metric store that a URL alone means."""
LOGS = "trackside.stores.logs"


def kinds(room: str) -> tuple[str, ...]:
    """The names of a room's engines, none of which is imported for it."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(room).__path__)))


def check_kind(room: str, kind: str, store: str) -> None:
    """Raises ValueError for a kind of store that a room has no engine for."""
    known = kinds(room)
    if kind not in known:
        raise ValueError(f"no kind of {store} is called {kind!r}{nearest(kind.lower(), known)}")


def engine(room: str, kind: str, name: str) -> Any:
    """What an engine's module defines under a name."""
    return getattr(importlib.import_module(f"{room}.{kind}"), name)
