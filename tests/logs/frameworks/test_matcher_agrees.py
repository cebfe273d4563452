"""Hyperscan must find what Python's ``re`` finds: texts generated from each pattern, with bytes around them.

Without an error, Hyperscan 5.4 misses ``done training`` after some other bytes for a caseless
``(?:finished|completed|done) [a-z ]{0,20}train``: such a pattern must be written in another way.
"""

from __future__ import annotations

import random
import re
from re import _parser as parser  # type: ignore[attr-defined]  # the only public way to a pattern's tree is gone
from typing import Any

import pytest

from trackside.logs.scan import PatternSet, pattern_set

TEXTS_PER_PATTERN = 60
PRINTABLE = [chr(code) for code in range(32, 127)]


def matching_text(tree: Any, rng: random.Random) -> str:
    """A random text that a parsed pattern matches, mostly with short repeats."""
    return "".join(_text_of_node(str(name), value, rng) for name, value in tree)


def _text_of_node(name: str, value: Any, rng: random.Random) -> str:
    if name == "LITERAL":
        return chr(value)
    if name == "BRANCH":
        return matching_text(rng.choice(value[1]), rng)
    if name == "SUBPATTERN":
        return matching_text(value[-1], rng)
    if name.endswith("_REPEAT"):
        low, high, inner = value
        high = min(int(high), low + rng.choice((0, 0, 1, 6)))
        return "".join(matching_text(inner, rng) for _ in range(rng.randint(low, high)))
    if name == "IN":
        source = [char for char in PRINTABLE if _is_member(char, value)]
        return rng.choice(source) if source else chr(next(v for n, v in value if str(n) == "LITERAL"))
    return "" if name == "AT" else "q"


def _is_member(char: str, members: Any) -> bool:
    inside = False
    for name, value in members:
        if str(name) == "LITERAL":
            inside |= char == chr(value)
        elif str(name) == "RANGE":
            inside |= value[0] <= ord(char) <= value[1]
        elif str(name) == "CATEGORY":
            kind = str(value).rpartition("_")[2][0].lower()
            inside |= re.match("\\" + (kind.upper() if "_NOT_" in str(value) else kind), char) is not None
    return inside != (str(members[0][0]) == "NEGATE")


@pytest.fixture(scope="module")
def compiled() -> PatternSet:
    pytest.importorskip("hyperscan")
    return pattern_set("log", "hyperscan")


@pytest.mark.slow
def test_hyperscan_finds_what_re_finds(compiled: PatternSet) -> None:
    rng = random.Random(5)
    missed = []
    for index, pattern in enumerate(compiled.patterns):
        tree = parser.parse(pattern.regex)
        reference = re.compile(pattern.regex, re.IGNORECASE if pattern.caseless else 0)
        for _ in range(TEXTS_PER_PATTERN):
            middle = matching_text(tree, rng)
            raw = middle.encode("latin-1")
            raw = rng.choice((raw, raw.upper(), raw.title())) if pattern.caseless else raw
            text = rng.choice((0, 16, 40, 100)) * b"x" + b" " + raw + b" in 5\n" + rng.choice((0, 50)) * b"y"
            if reference.search(text) and all(hit != index for _, hit in compiled.matcher.hits(text)):
                missed.append((compiled.parsers[index].id, pattern.name, text))
    assert not missed, missed[:5]
