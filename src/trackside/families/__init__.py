"""Failure families, one per file: each module defines ``FAMILY`` and is found by its place here. The contract is
:mod:`trackside.family`; h4_storage_fault.py is a good first one to read."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache

from trackside.family import Family


@cache
def families() -> tuple[Family, ...]:
    """All families, sorted by code."""
    all_families = []
    for module in pkgutil.iter_modules(__path__):
        content = importlib.import_module(f"{__name__}.{module.name}")
        family: Family = content.FAMILY
        all_families.append(replace(family, doc=content.__doc__ or ""))
    return tuple(sorted(all_families, key=lambda family: family.code))


def find_family(name: str) -> Family | None:
    """A family by code or id, case-insensitive."""
    key = name.lower().replace("_", "-")
    return next((f for f in families() if key in (f.code.lower(), f.id)), None)
