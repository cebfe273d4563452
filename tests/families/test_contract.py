"""What every family must hold to, whoever wrote it."""

from __future__ import annotations

import re
import sys

import pytest
from tools.cases import scenarios

from tests.families.rows import UNKNOWN, judge_store, sentences
from trackside.families import families
from trackside.family import HEADINGS, Family
from trackside.finding import Command
from trackside.stores.memory import MemoryStore

ALL = pytest.mark.parametrize("family", families(), ids=lambda family: family.code)


@ALL
def test_documented(family: Family) -> None:
    assert tuple(family.sections()) == HEADINGS
    assert (sys.modules[family.judge.__module__].__doc__ or "").startswith(f"{family.title}.\n")
    assert all(family.sections().values())
    lines = family.sections()["References"].splitlines()
    assert lines
    assert not [line for line in lines if not re.fullmatch(r"- \[[^\]]+\]\(https://[\w.-]+\.\w+/[^\s)]*\)", line)]


def test_no_digits_in_sentences() -> None:
    """Every figure comes from a cited value."""
    assert sentences()
    own = [one for _, one in sentences() if not isinstance(one, Command)]
    assert not [text for one in own for text in (one.text, one.running) if any(map(str.isdigit, text))]


def test_sentences_of_a_run_that_goes_on_fill_in_the_same_values() -> None:
    for name, one in sentences():
        if isinstance(one, Command):
            continue
        assert set(re.findall(r"\{(\w+)", one.running)) <= set(re.findall(r"\{(\w+)", one.text)), name


@ALL
def test_blind_is_unknown(family: Family) -> None:
    """With no input of the planes that it needs, a family does not know, and says what it lacks."""
    for planes in ((), ("trace",)):
        finding = judge_store(family.code, MemoryStore((), (), planes))
        assert finding.outcome is UNKNOWN
        assert finding.missing
        assert finding.collect


@ALL
def test_scenarios(family: Family) -> None:
    """At least three: one of it, one in which it must not be found, and one that lacks what it would be told by."""
    labels = {case.name: case.expected for case in scenarios()}
    positive = {name for name, label in labels.items() if family.code in {label["family"], *label.get("warns", ())}}
    rival = {name for name, label in labels.items() if family.code in label.get("never", ())}
    blind = {name for name, label in labels.items() if family.code in label.get("unknown", ())}
    assert positive - blind, "no scenario of it"
    assert rival - blind, "no scenario says `never` of it"
    assert blind, "no scenario says `unknown` of it"
    assert len(positive | rival | blind) >= 3
