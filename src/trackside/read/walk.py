"""From the paths that a user gives to the sources in them: folders walked, archives opened in place.

Nothing is unpacked to disk, no link is followed out of the tree, and what an archive may expand to is bounded.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trackside.model import Input
from trackside.read.format import HEAD, Source

Found = Source | Input
"""A source to read, or the ``inputs`` row of something that can't be."""


def walk(paths: Sequence[str | os.PathLike[str]], tick: Callable[[int], None] | None = None) -> Iterator[Found]:
    """Every source under the paths, in a stable order. Read each before taking the next."""
    for given in map(Path, paths):
        if given.is_dir():
            for folder, folders, names in os.walk(given):
                folders.sort()
                for name in sorted(names):
                    path = Path(folder) / name
                    yield from _file(path, str(path.relative_to(given)), tick)
        else:
            yield from _file(given, given.name, tick)


def _file(path: Path, shown: str, tick: Callable[[int], None] | None) -> Iterator[Found]:
    try:
        with path.open("rb") as stream:
            reader = io.BufferedReader(stream, HEAD)
            yield Source(shown, stream.peek(HEAD)[:HEAD], stream, path.stat().st_size, tick)
            del reader
    except OSError as error:
        yield Input(shown, None, "unreadable", error.strerror or str(error))
