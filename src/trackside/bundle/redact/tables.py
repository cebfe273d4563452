"""Users and accounts in the tables that ``sacct`` and ``squeue`` print: by the column that they stand in."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEAD = re.compile(r"\b(?:JobIDRaw|JobID|JOBID)\b")
_COLUMNS = frozenset({"user", "account"})


def cells(text: str) -> Iterator[tuple[str, str]]:
    """``user`` or ``account``, and what stands in such a column, of all tables in a text of whole lines."""
    if "JobID" not in text and "JOBID" not in text:
        return
    for found in _HEAD.finditer(text):
        begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
        head = text[begin : end if end >= 0 else len(text)]
        if not _COLUMNS.isdisjoint(re.split(r"[\s|]+", head.lower())):
            rows = (match[0] for match in re.finditer(r"[^\n]+", _table(text, begin + len(head))))
            yield from _piped(head, rows) if "|" in head else _aligned(head, rows)


def _table(text: str, begin: int) -> str:
    """What follows a head, until an empty line."""
    end = text.find("\n\n", begin)
    return text[begin : end if end >= 0 else len(text)]


def _piped(head: str, rows: Iterator[str]) -> Iterator[tuple[str, str]]:
    names = [each.strip().lower() for each in head.split("|")]
    for row in rows:
        values = row.split("|")
        if len(values) != len(names):
            return
        yield from ((name, value) for name, value in zip(names, values, strict=True) if name in _COLUMNS)


def _aligned(head: str, rows: Iterator[str]) -> Iterator[tuple[str, str]]:
    """By the line of hyphens below the head; without one, by where names and values meet."""
    rule = next(rows, "")
    spans = [match.span() for match in re.finditer(r"-+", rule)] if re.fullmatch(r"[- ]+", rule) else []
    if spans:
        wanted = [(head[a:b].strip().lower(), a, b) for a, b in spans]
        for row in rows:
            yield from ((name, row[a:b].strip(" +")) for name, a, b in wanted if name in _COLUMNS and row[a:b].strip())
        return
    words = [(match[0].lower(), match.span()) for match in re.finditer(r"\S+", head)]
    for row in (rule, *rows):
        for name, (a, b) in words:
            if name in _COLUMNS:
                met = [match for match in re.finditer(r"\S+", row) if match.start() < b and match.end() > a]
                if len(met) == 1:
                    yield name, met[0][0].rstrip("+")
