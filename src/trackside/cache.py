"""Files in the user's cache folder: results that take long to compute and can always be computed again."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def cache_file(key: str, suffix: str) -> Path:
    """The path of a cached result; its name is a hash of ``key``, which names all that the result depends on."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder, "trackside", hashlib.sha256(key.encode()).hexdigest()[:32] + suffix)


def write_cache_file(path: Path, data: bytes) -> None:
    """Write a whole file, or nothing if the folder is not writable: that costs only time."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
