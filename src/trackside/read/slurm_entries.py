"""``Key=Value`` entries of scontrol: one per job, step or node, over several lines or on one (``-o``).

Values are not escaped and may contain blanks and ``=``, so only a known key begins a new value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trackside.read.slurm_table import SlurmRow

MAX_ENTRY_LINES = 2_000
"""Maximum number of lines of one entry; the rest is ignored."""

_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z]{0,40}(?:[:/][A-Za-z:/]{1,20})?)=")


def entries(
    lines: Iterable[tuple[int, int, str]],
    begin: str,
    keys: frozenset[str],
    to_line_end: frozenset[str] = frozenset(),
    repeated: frozenset[str] = frozenset(),
    *,
    begin_is_cut: bool = False,
) -> Iterator[SlurmRow]:
    """Yield the entries that begin with ``begin=`` at the start of a line.

    ``begin_is_cut``: the lines before the first such line are the rest of an entry.

    ``keys``: a known key ends the value before it. ``to_line_end``: keys whose values run to the end of their line, if
    the entry has several lines. ``repeated``: keys of which all values are kept, one per line; of other keys the first
    value is kept.
    """
    entry: list[tuple[int, int, str]] = []
    for line in lines:
        if line[2].startswith(f"{begin}="):
            if entry:
                yield _entry(entry, keys, to_line_end, repeated)
            entry = [line]
        elif (entry or begin_is_cut) and len(entry) < MAX_ENTRY_LINES:
            entry.append(line)
    if entry:
        yield _entry(entry, keys, to_line_end, repeated)


def _entry(
    lines: list[tuple[int, int, str]], keys: frozenset[str], to_line_end: frozenset[str], repeated: frozenset[str]
) -> SlurmRow:
    values: dict[str, str] = {}
    key = ""
    is_multiline = sum(1 for *_, text in lines if text.strip()) > 1
    for *_, text in lines:
        matches = [match for match in _KEY.finditer(text) if match[1] in keys]
        if not matches and text.strip() and key and not text.startswith("   "):
            values[key] += "\n" + text.strip()  # a line break inside a name
            continue
        for index, match in enumerate(matches):
            takes_rest_of_line = is_multiline and match[1] in to_line_end
            stop = len(text) if takes_rest_of_line or index + 1 == len(matches) else matches[index + 1].start()
            key = match[1]
            value = text[match.end() : stop].strip()
            if key not in values:
                values[key] = value
            elif key in repeated:
                values[key] += "\n" + value
            if takes_rest_of_line:
                break
    return SlurmRow(*lines[0], values)
