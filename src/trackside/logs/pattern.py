"""What a log parser declares: patterns with a role, a safety note and examples that tests hold it to."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeVar

from trackside.logs.line import Line
from trackside.model import Event, Plane

Events = Event | Iterable[Event] | None
PRECEDENCE = 500
"""Of a parser that declares none, and of points that no parser of lines read."""
Reads = TypeVar("Reads", bound=Callable[..., Events])


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
    parse: Callable[[Line], Events]
    safety: str
    """What it must not match, and why."""
    matches: tuple[str, ...] = ()
    """Lines that must give an event (tested)."""
    avoids: tuple[str, ...] = ()
    """Lines that must give none (tested)."""
    caseless: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Parser:
    """All patterns of one framework or system. ``generic`` parsers see only lines that no other claimed."""

    id: str
    title: str
    kind: Literal["framework", "system"]
    planes: tuple[Plane, ...] = ("log",)
    generic: bool = False
    precedence: int = PRECEDENCE
    """Where several parsers read a loss in one file, the one with the least tells the run, among equals the one with the
    most points. A parser of a framework that wraps another's has less than that one."""
    aside: str = ""
    """Under which id it gives points that tell the run only where no others do."""
    patterns: list[Pattern] = field(default_factory=list)

    def pattern(
        self,
        regex: bytes,
        finds: str | re.Pattern[str] | None = None,
        *,
        safety: str,
        matches: tuple[str, ...] = (),
        avoids: tuple[str, ...] = (),
        caseless: bool = False,
    ) -> Callable[[Reads], Reads]:
        """Declares that the decorated function reads the lines of such a :class:`Pattern`; the first one declared is asked first.

        It is called with the line; with ``finds`` only where that is found in the line's text, and with the match too.
        """

        def declare(reads: Reads) -> Reads:
            parse = reads if finds is None else _found(re.compile(finds), reads)
            self.patterns.append(Pattern(reads.__name__.strip("_"), regex, parse, safety, matches, avoids, caseless))
            return reads

        return declare


def _found(regex: re.Pattern[str], reads: Callable[[Line, re.Match[str]], Events]) -> Callable[[Line], Events]:
    def parse(line: Line) -> Events:
        found = regex.search(line.text)
        return None if found is None else reads(line, found)

    return parse


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
