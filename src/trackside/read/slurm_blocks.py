"""``Key=Value`` blocks as scontrol prints them: one a job, step or node, over several lines or on one (``-o``).

Values are not escaped and may hold blanks and ``=``; only a known key begins a new value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trackside.read.slurm_table import Row

MAX_BLOCK = 2_000
"""Lines of one block that are read."""

_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z]{0,40}(?:[:/][A-Za-z:/]{1,20})?)=")


def blocks(
    lines: Iterable[tuple[int, int, str]],
    begin: str,
    keys: frozenset[str],
    to_line_end: frozenset[str] = frozenset(),
    repeated: frozenset[str] = frozenset(),
) -> Iterator[Row]:
    """The blocks that begin with ``begin=`` at a line's start.

    ``keys`` are those that end the value before them; the values of ``to_line_end`` keys run to the end
    of their line where the block has several. A key that comes again counts once, but for the ``repeated`` ones:
    all their values are kept, a line each.
    """
    block: list[tuple[int, int, str]] = []
    for each in lines:
        if each[2].startswith(f"{begin}="):
            if block:
                yield _block(block, keys, to_line_end, repeated)
            block = [each]
        elif block and len(block) < MAX_BLOCK:
            block.append(each)
    if block:
        yield _block(block, keys, to_line_end, repeated)


def _block(
    lines: list[tuple[int, int, str]], keys: frozenset[str], to_line_end: frozenset[str], repeated: frozenset[str]
) -> Row:
    values: dict[str, str] = {}
    last = ""
    several = sum(1 for *_, text in lines if text.strip()) > 1
    for *_, text in lines:
        found = [match for match in _KEY.finditer(text) if match[1] in keys]
        if not found and text.strip() and last and not text.startswith("   "):
            values[last] += "\n" + text.strip()  # a line break inside a name
            continue
        for index, match in enumerate(found):
            whole = several and match[1] in to_line_end
            stop = len(text) if whole or index + 1 == len(found) else found[index + 1].start()
            last = match[1]
            value = text[match.end() : stop].strip()
            if last not in values:
                values[last] = value
            elif last in repeated:
                values[last] += "\n" + value
            if whole:
                break
    return Row(*lines[0], values)
