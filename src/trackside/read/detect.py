"""Which format is this file: every reader looks at its head, the surest one reads it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from trackside.model import Input
from trackside.read.format import Format, Match, Sink, Source, TooLarge


@cache
def formats() -> tuple[Format, ...]:
    """All registered formats, by id."""
    import trackside.read as room

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
    for each in formats():
        match = each.sniff(source)
        if match is not None and (best is None or match.score > best[1].score):
            best = each, match
    return best


def read_source(source: Source, sink: Sink) -> Input:
    """Recognise and read one source. Whatever is wrong with it becomes its ``inputs`` row."""
    if not source.head:
        return Input(source.path, None, "empty", "0 bytes")
    found = detect(source)
    if found is None:
        return Input(
            source.path, None, "unrecognised", "binary data that no reader knows; give text logs, records or dumps"
        )
    chosen, match = found
    try:
        result = chosen.read(source, sink)
    except TooLarge as error:
        return Input(source.path, chosen.id, "refused", f"{error}; split it", plane=chosen.plane)
    except (OSError, EOFError) as error:
        return Input(source.path, chosen.id, "partial", f"reading stopped: {error}", plane=chosen.plane)
    except ValueError as error:
        return Input(source.path, chosen.id, "unreadable", str(error), plane=chosen.plane)
    note = "; ".join(part for part in (match.why, result.note) if part)
    return Input(source.path, chosen.id, result.status, note, result.rows, chosen.plane)
