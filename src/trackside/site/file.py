"""Where the file of the site's settings is looked for."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from trackside.settings import PREFIX

NAME = "trackside.toml"


def find(path: str | os.PathLike[str] | None, environ: Mapping[str, str], warnings: list[str]) -> Path | None:
    """The file that counts. A named one must be there; one that only lies about must be ours."""
    named = path or environ.get(f"{PREFIX}CONFIG")
    if named:
        return Path(named)
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    here = Path(NAME)
    if here.is_file():
        status = here.stat()
        if status.st_uid in (os.geteuid(), 0) and not status.st_mode & stat.S_IWOTH:
            return here
        # It names programs to run and files with passwords: a folder that others may write to must not choose them.
        warnings.append(
            f"./{NAME} is left out: it is another user's, or every user may change it; give --config ./{NAME} to use it"
        )
    places = (Path(home) / "trackside" / NAME, Path("/etc/trackside") / NAME)
    return next((each for each in places if each.is_file()), None)
