"""Finds users and accounts in the tables of ``sacct`` and ``squeue`` by their column."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEAD = re.compile(r"\b(?:JobIDRaw|JobID|JOBID)\b")
_COLUMNS = frozenset({"user", "account"})


_WHOAMI = re.compile(
    r"^[^\n]{0,80}?[+$#%>] ?(?:whoami|id -un|logname|echo \"?\$\{?(?:USER|LOGNAME)\}?\"?)[ \t]*\n"
    r"([A-Za-z_][\w.-]{0,31})[ \t]*$",
    re.MULTILINE | re.ASCII,
)
"""A command that prints the user's name, as a shell shows it, and the name."""


def printed_users(text: str) -> Iterator[str]:
    """Yield the user names that such commands printed."""
    if "whoami" in text or "id -un" in text or "logname" in text or "echo" in text:
        for match in _WHOAMI.finditer(text):
            yield match[1]


def people_cells(text: str) -> Iterator[tuple[str, str]]:
    """Yield ("user" or "account", value) from such columns of all tables in a text of whole lines."""
    if "JobID" not in text and "JOBID" not in text:
        return
    for match in _HEAD.finditer(text):
        begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
        header = text[begin : end if end >= 0 else len(text)]
        if not _COLUMNS.isdisjoint(re.split(r"[\s|]+", header.lower())):
            rows = (match[0] for match in re.finditer(r"[^\n]+", _table(text, begin + len(header))))
            yield from _piped_cells(header, rows) if "|" in header else _aligned_cells(header, rows)


def _table(text: str, begin: int) -> str:
    """The text from ``begin`` to the next empty line."""
    end = text.find("\n\n", begin)
    return text[begin : end if end >= 0 else len(text)]


def _piped_cells(header: str, rows: Iterator[str]) -> Iterator[tuple[str, str]]:
    names = [name.strip().lower() for name in header.split("|")]
    for row in rows:
        values = row.split("|")
        if len(values) != len(names):
            return
        yield from ((name, value) for name, value in zip(names, values, strict=True) if name in _COLUMNS)


def _aligned_cells(header: str, rows: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the values of aligned columns, by the line of hyphens below the header, or by overlap with the header
    words."""
    second_line = next(rows, "")
    spans = [match.span() for match in re.finditer(r"-+", second_line)] if re.fullmatch(r"[- ]+", second_line) else []
    if spans:
        columns = [(header[start:stop].strip().lower(), start, stop) for start, stop in spans]
        for row in rows:
            yield from (
                (name, row[start:stop].strip(" +"))
                for name, start, stop in columns
                if name in _COLUMNS and row[start:stop].strip()
            )
        return
    words = [(match[0].lower(), match.span()) for match in re.finditer(r"\S+", header)]
    for row in (second_line, *rows):
        for name, (start, stop) in words:
            if name in _COLUMNS:
                overlapping = [
                    match for match in re.finditer(r"\S+", row) if match.start() < stop and match.end() > start
                ]
                if len(overlapping) == 1:
                    yield name, overlapping[0][0].rstrip("+")
