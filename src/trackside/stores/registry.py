"""Finds engines of stores: each module of a package is one; no registration is needed."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from trackside.settings import nearest

METRICS = "trackside.stores.metrics"
DEFAULT_METRICS = "prometheus"
"""The kind of metric store that a bare URL means."""
LOGS = "trackside.stores.logs"


def kinds(package: str) -> tuple[str, ...]:
    """The names of a package's engines; imports none of them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)))


def check_kind(package: str, kind: str, store: str) -> None:
    """Raises ValueError for a kind of store that the package has no engine for."""
    known_kinds = kinds(package)
    if kind not in known_kinds:
        raise ValueError(f"unknown kind of {store}: {kind!r}{nearest(kind.lower(), known_kinds)}")


def engine(package: str, kind: str, name: str) -> Any:
    """The object that an engine's module defines under a name."""
    return getattr(importlib.import_module(f"{package}.{kind}"), name)
