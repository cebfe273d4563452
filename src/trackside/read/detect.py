"""Which format is this file: every reader looks at its head, the surest one reads it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache

from trackside.catalog.streams import is_printed
from trackside.model import Event, Input, InputStatus, Plane, Record, Samples
from trackside.read.archive import printable
from trackside.read.format import Format, Match, Sink, Source, TooLarge

_NEVER_PRINTED: frozenset[Plane] = frozenset({"scheduler", "kernel"})
"""Planes of which a job's output is no witness, whatever stands in it: a job could print a node's failure, or another
job's end."""


@cache
def formats() -> tuple[Format, ...]:
    """All registered formats, by id."""
    from trackside.read import formats as room

    found: list[Format] = []
    for module in pkgutil.iter_modules(room.__path__):
        content = importlib.import_module(f"{room.__name__}.{module.name}")
        found.extend(getattr(content, "FORMATS", ()))
        if (one := getattr(content, "FORMAT", None)) is not None:
            found.append(one)
    return tuple(sorted(found, key=lambda each: each.id))


def detect(source: Source) -> tuple[Format, Match] | None:
    """The surest format and why, or None if nothing recognises the file."""
    best: tuple[Format, Match] | None = None
    printed = is_printed(source.path)
    for each in formats():
        if printed and each.plane in _NEVER_PRINTED:
            continue
        match = each.sniff(source)
        if match is not None and (best is None or match.score > best[1].score):
            best = each, match
    return best


def read_source(source: Source, sink: Sink) -> Input:
    """Recognise and read one source. Whatever is wrong with it becomes its ``inputs`` row; it never raises."""
    if not source.head:
        if source.faults:
            return Input(source.path, None, "unreadable", "; ".join(source.faults))
        return Input(source.path, None, "empty", "0 bytes", bytes=0)
    counting = _Counting(sink)
    chosen: Format | None = None
    try:
        found = detect(source)
        if found is None:
            return _unknown(source)
        chosen, match = found
        result = chosen.read(source, counting)
    except Exception as error:  # noqa: BLE001 - one file, however odd, must not cost the verdict on the others
        status, note = _failure(error, counting.rows)
        return _row(source, chosen, status, note, counting.rows)
    note = "; ".join(part for part in (match.why, result.note) if part)
    return _row(source, chosen, result.status, note, result.rows)


def _row(source: Source, chosen: Format | None, status: InputStatus, note: str, rows: int) -> Input:
    if source.faults:
        note = "; ".join(part for part in (note, *source.faults) if part)
        status = "partial" if status == "read" else status
    plane = None if chosen is None else chosen.plane
    format_id = None if chosen is None else chosen.id
    return Input(source.path, format_id, status, printable(of_one(note)), rows, plane, source.size or 0)


_ONE = re.compile(
    r"(?<![\w.,])1 ((?:repeated |blank |more |NUL )?)(byte|capture|cell|entrie|event|line|reading|row|sample|value)s\b"
    r"( that)?( (?:are|have|stand|give|hold)\b)?"
)
_VERBS = {" are": " is", " have": " has", " stand": " stands", " give": " gives", " hold": " holds"}


def of_one(note: str) -> str:
    """A note whose counts of one read as such: ``1 line is broken``."""

    def one(told: re.Match[str]) -> str:
        noun = "entry" if told[2] == "entrie" else told[2]
        return f"1 {told[1]}{noun}{told[3] or ''}{_VERBS.get(told[4] or '', '')}"

    return _ONE.sub(one, note)


def _failure(error: Exception, rows: int) -> tuple[InputStatus, str]:
    """What an exception of a reader says of the file: what was found before it stays."""
    kept: InputStatus = "partial" if rows else "unreadable"
    match error:
        case TooLarge():
            return "refused", f"{error}; split it"
        case OSError() | EOFError():
            return "partial", f"reading stopped: {error}"
        case RecursionError():
            return kept, "nested too deeply"
        case MemoryError():
            return kept, "needs more memory than there is; split it"
        case ValueError():
            return kept, str(error) or "not readable as this format"
    return kept, f"a defect of this reader ({type(error).__name__}: {error}); please report it with the file"


def _unknown(source: Source) -> Input:
    note = "binary data that no reader knows; give text logs, records or dumps"
    if source.faults:
        note = "; ".join((note, *source.faults))
    return Input(source.path, None, "unrecognised", note, bytes=source.size or 0)


@dataclass(slots=True)
class _Counting:
    """Passes on what a reader finds, and counts it."""

    sink: Sink
    rows: int = 0

    def event(self, event: Event) -> None:
        self.rows += 1
        self.sink.event(event)

    def record(self, record: Record) -> None:
        self.rows += 1
        self.sink.record(record)

    def samples(self, samples: Samples) -> None:
        self.rows += len(samples)
        self.sink.samples(samples)
