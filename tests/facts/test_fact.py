"""Facts: derived once, from queries and other facts; an internal error makes one fact missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.families.rows import event, store
from trackside.evidence import Answer, Evidence, Missing, MissingAnswer
from trackside.facts.fact import Facts, Maybe, closure, fact, joined_reasons, queries_of
from trackside.model import Run
from trackside.query import Query, events
from trackside.stores.memory import MemoryStore


@dataclass(frozen=True)
class Lines:
    count: int


@dataclass(frozen=True)
class Twice:
    count: int


@dataclass(frozen=True)
class Either:
    lines: Maybe[Lines]


@dataclass(frozen=True)
class Broken:
    pass


DERIVED: list[str] = []


@fact({"ends": events("training_end")}, needs=("ends",))
def lines(evidence: Evidence, run: Run) -> Lines:
    DERIVED.append(run.id or "")
    return Lines(len(evidence["ends"]))


@fact(limits=2)
def twice(lines: Lines, limits: int) -> Twice:
    return Twice(limits * lines.count)


@fact()
def either(lines: Maybe[Lines]) -> Either:
    return Either(lines)


@fact()
def broken(lines: Lines) -> Broken:
    raise LookupError(lines)


def facts(**more: Any) -> Facts:
    return Facts(store(event("training_end")), Run(id="7"), **more)


def test_a_fact_is_derived_once_and_from_other_facts() -> None:
    DERIVED.clear()
    run = facts()
    assert (run.get(Twice), run.get(Lines), run.get(Either)) == (Twice(2), Lines(1), Either(Lines(1)))
    assert DERIVED == ["7"]


def test_a_missing_fact_makes_the_facts_that_need_it_missing() -> None:
    run = Facts(MemoryStore(), Run())
    lines, twice, either = run.get(Lines), run.get(Twice), run.get(Either)
    assert isinstance(lines, Missing)
    assert isinstance(twice, Missing)
    assert twice.reason == lines.reason
    assert either == Either(lines)


def test_an_untrusted_answer_is_missing() -> None:
    def doubted(query: Query, _: Answer) -> Answer:
        return MissingAnswer("nobody believes it", query)

    lines = facts(checked=doubted).get(Lines)
    assert isinstance(lines, Missing)
    assert "nobody believes it" in lines.reason


def test_known_facts_are_not_derived_again() -> None:
    assert facts(known={Lines: Lines(5)}).get(Twice) == Twice(10)


def test_an_internal_error_makes_one_fact_missing() -> None:
    run = facts()
    with pytest.warns(RuntimeWarning, match="internal error in Broken: LookupError"):
        assert isinstance(run.get(Broken), Missing)
    assert run.get(Lines) == Lines(1)


def test_questions_include_those_of_all_required_facts() -> None:
    assert closure([Twice]) == (Lines, Twice)
    assert queries_of(Twice) == (events("training_end"),)


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (("a_b was not measured; c exports it",), "a_b was not measured; c exports it"),
        (
            ("no log input was given", "no scheduler input was given", "no log or kernel input was given"),
            "no log, scheduler or kernel input was given",
        ),
        (
            ("too few steps", "a was not measured; c exports it", "b was not measured", "no log input was given"),
            "no log input was given; none of a and b was measured; too few steps",
        ),
        (("a was not measured", "too few steps"), "a was not measured; too few steps"),
    ],
)
def test_reasons_that_are_alike_become_one_clause(reasons: tuple[str, ...], text: str) -> None:
    assert joined_reasons(reasons) == text
