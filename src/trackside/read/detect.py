"""Detects the format of a file: every reader looks at its head, and the one with the highest score reads it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache

from trackside.catalog.hostlist import name_budget
from trackside.catalog.streams import is_printed
from trackside.model import Event, Input, InputStatus, Plane, Record, Samples
from trackside.read.archive import printable
from trackside.read.format import Format, InputSource, InputTooLarge, Match, Sink

_NEVER_PRINTED: frozenset[Plane] = frozenset({"scheduler", "kernel"})
"""Planes that a job's output is never evidence for, whatever it contains: a job could print a node's failure or
another job's end."""

MAX_HOST_NAMES = 5_000_000
"""Names in the host lists of one input: 50,000 jobs on 100 nodes each."""


@cache
def formats() -> tuple[Format, ...]:
    """All registered formats, sorted by id."""
    from trackside.read import formats as package

    registered: list[Format] = []
    for module in pkgutil.iter_modules(package.__path__):
        loaded_module = importlib.import_module(f"{package.__name__}.{module.name}")
        registered.extend(getattr(loaded_module, "FORMATS", ()))
        if (format_ := getattr(loaded_module, "FORMAT", None)) is not None:
            registered.append(format_)
    return tuple(sorted(registered, key=lambda format_: format_.id))


def detect(source: InputSource) -> tuple[Format, Match] | None:
    """The format with the highest score and its match, or None if no reader recognizes the file."""
    best: tuple[Format, Match] | None = None
    is_job_output = is_printed(source.path)
    for format_ in formats():
        if is_job_output and format_.plane in _NEVER_PRINTED:
            continue
        match = format_.sniff(source)
        if match is not None and (best is None or match.score > best[1].score):
            best = format_, match
    return best


def read_source(source: InputSource, sink: Sink) -> Input:
    """Detect and read one source. Faults go to its ``inputs`` row; this never raises."""
    if not source.head:
        if source.faults:
            return Input(source.path, None, "unreadable", "; ".join(source.faults))
        return Input(source.path, None, "empty", "the file is empty", bytes=0)
    counting_sink = _CountingSink(sink)
    format_: Format | None = None
    try:
        detected = detect(source)
        if detected is None:
            return _unrecognized_input(source)
        format_, match = detected
        with name_budget(MAX_HOST_NAMES):
            result = format_.read(source, counting_sink)
    except Exception as error:  # noqa: BLE001 - one broken file must not cost the verdict on the others
        status, note = _status_of_error(error, counting_sink.rows)
        return _input_row(source, format_, status, note, counting_sink.rows)
    note = "; ".join(part for part in (match.reason, result.note) if part)
    return _input_row(source, format_, result.status, note, result.rows)


def _input_row(source: InputSource, format_: Format | None, status: InputStatus, note: str, rows: int) -> Input:
    if source.faults:
        note = "; ".join(part for part in (note, *source.faults) if part)
        status = "partial" if status == "read" else status
    plane = None if format_ is None else format_.plane
    format_id = None if format_ is None else format_.id
    return Input(source.path, format_id, status, printable(with_singulars(note)), rows, plane, source.size or 0)


_COUNT_OF_ONE = re.compile(
    r"(?<![\w.,])1 ((?:repeated |blank |more |NUL )?)(byte|capture|cell|entrie|event|line|reading|row|sample|value)s\b"
    r"( that)?( (?:are|have|stand|give|hold)\b)?"
)
_VERBS = {" are": " is", " have": " has", " stand": " stands", " give": " gives", " hold": " holds"}


def with_singulars(note: str) -> str:
    """The note with correct singulars: ``1 line is broken``."""

    def singular(match: re.Match[str]) -> str:
        noun = "entry" if match[2] == "entrie" else match[2]
        return f"1 {match[1]}{noun}{match[3] or ''}{_VERBS.get(match[4] or '', '')}"

    return _COUNT_OF_ONE.sub(singular, note)


def _status_of_error(error: Exception, rows: int) -> tuple[InputStatus, str]:
    """Status and note for a file whose reader raised; rows read before the exception are kept."""
    status: InputStatus = "partial" if rows else "unreadable"
    match error:
        case InputTooLarge():
            return "refused", f"{error}; split it"
        case OSError() | EOFError():
            return "partial", f"reading stopped: {error}"
        case RecursionError():
            return status, "nested too deeply"
        case MemoryError():
            return status, "needs more memory than there is; split it"
        case ValueError():
            return status, str(error) or "not readable as this format"
    return status, f"a bug in this reader ({type(error).__name__}: {error}); please report it with the file"


def _unrecognized_input(source: InputSource) -> Input:
    note = "unknown binary format; use text logs, records or dumps"
    if source.faults:
        note = "; ".join((note, *source.faults))
    return Input(source.path, None, "unrecognised", note, bytes=source.size or 0)


@dataclass(slots=True)
class _CountingSink:
    """Passes rows on to a sink and counts them."""

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
