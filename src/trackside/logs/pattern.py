"""What a log parser declares: patterns with a role, a safety note and examples, which are tests."""

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
"""The precedence of a parser that declares none, and of logged steps that no line parser read."""
ReadFunction = TypeVar("ReadFunction", bound=Callable[..., Events])


@dataclass(frozen=True, slots=True)
class Pattern:
    r"""One kind of line that is worth reading.

    ``regex`` finds candidates in whole buffers, so it must be cheap and portable: bytes, no captures needed, no
    lookaround, no backreference, no ``^``/``$``; write ``[^x\n]`` if a class could run over the line's end, and end in
    a literal so that one line gives few matches. ``parse`` then reads the line with Python's ``re`` and may still
    reject it by returning None.
    """

    name: str
    regex: bytes
    parse: Callable[[Line], Events]
    safety: str
    """Why a match may be trusted: what the pattern must not match, or what a match does not show."""
    matches: tuple[str, ...] = ()
    """Lines that must yield an event (tested)."""
    avoids: tuple[str, ...] = ()
    """Lines that must not yield one (tested)."""
    caseless: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Parser:
    """All patterns of one framework or system. ``generic`` parsers see only lines in which no other parser read
    progress."""

    id: str
    title: str
    kind: Literal["framework", "system"]
    planes: tuple[Plane, ...] = ("log",)
    generic: bool = False
    precedence: int = PRECEDENCE
    """If several parsers read a loss in one file, the one with the lowest precedence describes the run; among
    equals, the one with the most points. A parser of a framework that wraps another has a lower value than that one."""
    fallback_ids: tuple[str, ...] = ()
    """Parser ids of points that describe the run only if no other points do."""
    overlaps: bool = False
    """Whether a generic parser also sees lines in which another one read progress, and hides none from it."""
    residual: bool = False
    """Whether it sees only lines in which no other parser read anything."""
    redraws: bool = False
    """Whether its lines are bars that are redrawn: the last drawing of a count is the logged step, not the first."""
    patterns: list[Pattern] = field(default_factory=list)

    def pattern(
        self,
        regex: bytes,
        line_regex: str | re.Pattern[str] | None = None,
        *,
        safety: str,
        matches: tuple[str, ...] = (),
        avoids: tuple[str, ...] = (),
        caseless: bool = False,
    ) -> Callable[[ReadFunction], ReadFunction]:
        """Declare that the decorated function reads the lines of a :class:`Pattern`; patterns are tried in order of
        declaration.

        The function is called with the line; with ``line_regex``, only if that is found in the line's text, and with
        the match as well.
        """

        def declare(read: ReadFunction) -> ReadFunction:
            parse = read if line_regex is None else _read_if_matched(re.compile(line_regex), read)
            self.patterns.append(Pattern(read.__name__.strip("_"), regex, parse, safety, matches, avoids, caseless))
            return read

        return declare


def _read_if_matched(regex: re.Pattern[str], read: Callable[[Line, re.Match[str]], Events]) -> Callable[[Line], Events]:
    """A function that calls ``read`` with the match if the regex is found in a line's text."""

    def parse(line: Line) -> Events:
        match = regex.search(line.text)
        return None if match is None else read(line, match)

    return parse


@cache
def parsers() -> tuple[Parser, ...]:
    """All registered parsers: specific ones first, ordered by id."""
    import trackside.logs as package

    registered = []
    for module in pkgutil.iter_modules(package.__path__):
        parser = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "PARSER", None)
        if isinstance(parser, Parser):
            registered.append(parser)
    return tuple(sorted(registered, key=lambda parser: (parser.residual, parser.generic, parser.id)))


@cache
def generic_ids() -> frozenset[str]:
    """Ids of the generic parsers."""
    return frozenset(parser.id for parser in parsers() if parser.generic)


@cache
def redrawing_ids() -> frozenset[str]:
    """Ids of the parsers whose lines are redrawn bars."""
    return frozenset(parser.id for parser in parsers() if parser.redraws)
