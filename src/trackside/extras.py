"""How to install the libraries of an optional part: ``serve``, ``agent``, ``report`` or ``postgres``."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires


def install_command(extra: str) -> str:
    """A command that installs the libraries of an extra beside the running Trackside, however that was installed."""
    try:
        requirements = requires("trackside") or []
    except PackageNotFoundError:  # run from a folder of sources
        requirements = []
    of_extra = re.compile(rf"(.+?)\s*;.*\bextra\s*==\s*['\"]{extra}['\"]")
    libraries = [match[1] for text in requirements if (match := of_extra.fullmatch(text))] or [f"trackside[{extra}]"]
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *libraries])
