"""The version that a verdict names."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def package_version() -> str:
    """The installed version."""
    try:
        return version("trackside")
    except PackageNotFoundError:
        return "0+unknown"
