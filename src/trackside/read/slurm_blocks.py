"""``Key=Value`` blocks as scontrol prints them: one a job, step or node, over several lines or on one (``-o``).

Values are not escaped and may hold blanks and ``=``; only a known key begins a new value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

MAX_BLOCK = 2_000
"""Lines of one block that are read."""

_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z]{0,40}(?:[:/][A-Za-z:/]{1,20})?)=")


@dataclass(frozen=True, slots=True)
class Block:
    """One job, step or node: where it starts, its first line, its values by key."""

    line: int
    offset: int
    text: str
    values: Mapping[str, str]

    @property
    def length(self) -> int:
        """Bytes of the first line."""
        return len(self.text.encode())

    def get(self, *keys: str) -> str | None:
        """The first of these keys with a value."""
        return next((value for key in keys if (value := self.values.get(key))), None)


def blocks(
    lines: Iterable[tuple[int, int, str]], begin: str, keys: frozenset[str], to_line_end: frozenset[str] = frozenset()
) -> Iterator[Block]:
    """The blocks that begin with ``begin=`` at a line's start.

    ``keys`` are those that end the value before them; the values of ``to_line_end`` keys run to the end
    of their line where the block has several.
    """
    block: list[tuple[int, int, str]] = []
    for each in lines:
        if each[2].startswith(f"{begin}="):
            if block:
                yield _block(block, keys, to_line_end)
            block = [each]
        elif block and len(block) < MAX_BLOCK:
            block.append(each)
    if block:
        yield _block(block, keys, to_line_end)


def _block(lines: list[tuple[int, int, str]], keys: frozenset[str], to_line_end: frozenset[str]) -> Block:
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
            if last not in values:
                values[last] = text[match.end() : stop].strip()
            if whole:
                break
    return Block(*lines[0], values)
