"""What a log parser declares: patterns with a role, a safety note and examples that tests hold it to."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from trackside.logs.line import Line
from trackside.model import Event, Plane

Parse = Callable[[Line], Event | Iterable[Event] | None]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line worth reading.

    ``regex`` picks candidates out of whole buffers, so it has to be cheap and portable: bytes, no
    captures needed, no lookaround, no backreference, no ``^``/``$``; write ``[^x\\n]`` where a class could run
    over the line's end, and end in a literal so that one line gives few hits. ``parse`` then reads the
    line with Python's ``re`` and may still refuse it by returning None.
    """

    name: str
    regex: bytes
    parse: Parse
    safety: str
    """What it must not match, and why."""
    matches: tuple[str, ...] = ()
    """Lines that must give an event (tested)."""
    avoids: tuple[str, ...] = ()
    """Lines that must give none (tested)."""
    caseless: bool = False


@dataclass(frozen=True, slots=True)
class Parser:
    """All patterns of one framework or system. ``generic`` parsers see only lines that no other claimed."""

    id: str
    title: str
    kind: Literal["framework", "system"]
    patterns: tuple[Pattern, ...]
    planes: tuple[Plane, ...] = ("log",)
    generic: bool = False


@cache
def parsers() -> tuple[Parser, ...]:
    """All registered parsers: specific ones first, by id."""
    import trackside.logs as room

    found = []
    for module in pkgutil.iter_modules(room.__path__):
        parser = getattr(importlib.import_module(f"{room.__name__}.{module.name}"), "PARSER", None)
        if isinstance(parser, Parser):
            found.append(parser)
    return tuple(sorted(found, key=lambda parser: (parser.generic, parser.id)))
