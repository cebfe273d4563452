"""Every pattern of every parser matches its own examples, in both matchers."""

from __future__ import annotations

from functools import cache
from unittest import mock

import pytest

from trackside.catalog.events import EVENTS
from trackside.logs import scan as scan_module
from trackside.logs.matcher import matcher
from trackside.logs.pattern import Parser, Pattern, parsers
from trackside.logs.scan import PatternSet, scan_text
from trackside.model import Event

PAIRS = [(parser, pattern) for parser in parsers() for pattern in parser.patterns]


@cache
def patterns_of(parser: Parser, engine: str) -> PatternSet:
    """The pattern set of one parser alone."""
    patterns = tuple(parser.patterns)
    return PatternSet(patterns, (parser,) * len(patterns), matcher(patterns, engine))


def events(parser: Parser, text: str, engine: str = "hyperscan") -> list[Event]:
    """The events that one parser alone finds in a text."""
    with mock.patch.object(scan_module, "pattern_set", return_value=patterns_of(parser, engine)):
        events = scan_text(text + "\n", plane=parser.planes[0], year=2026)
    return [event for event in events if event.kind != "log_activity"]


@pytest.mark.parametrize(("parser", "pattern"), PAIRS, ids=lambda value: getattr(value, "id", None) or value.name)
def test_patterns_match_their_examples_and_avoid_the_others(parser: Parser, pattern: Pattern) -> None:
    assert pattern.safety, "say what it must not match"
    for engine in ("hyperscan", "re2"):
        for line in pattern.matches:
            assert events(parser, line, engine), f"{engine}: gives no event: {line!r}"
        for line in pattern.avoids:
            assert not events(parser, line, engine), f"{engine}: must give no event: {line!r}"


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.id)
def test_events_and_fields_are_in_the_catalog(parser: Parser) -> None:
    for pattern in parser.patterns:
        for line in pattern.matches:
            for event in events(parser, line):
                assert event.kind in EVENTS
                assert set(event.fields) <= set(EVENTS[event.kind].fields), (pattern.name, event)
                assert event.plane in EVENTS[event.kind].planes
