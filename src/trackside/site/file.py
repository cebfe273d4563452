"""Finds the file with the site's settings."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from trackside.settings import PREFIX

NAME = "trackside.toml"


def find(path: str | os.PathLike[str] | None, environ: Mapping[str, str], warnings: list[str]) -> Path | None:
    """The settings file. A file in the current folder counts only if it is the user's own, or root's."""
    named = path or environ.get(f"{PREFIX}CONFIG")
    if named:
        return Path(named)
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    local_file = Path(NAME)
    if local_file.is_file():
        status = local_file.stat()
        if status.st_uid in (os.geteuid(), 0) and not status.st_mode & stat.S_IWOTH:
            return local_file
        # It names programs to run and files with passwords, so a folder that others can write to must not choose it.
        warnings.append(
            f"./{NAME} is ignored: it is another user's, or every user can change it; pass --config ./{NAME} to use it"
        )
    candidates = (Path(home) / "trackside" / NAME, Path("/etc/trackside") / NAME)
    return next((candidate for candidate in candidates if candidate.is_file()), None)
