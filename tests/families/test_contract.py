"""The contract of every family."""

from __future__ import annotations

import re
import sys

import pytest

from tests.families.rows import UNKNOWN, judge_store, sentences
from tools.cases import scenarios
from trackside.families import families
from trackside.family import HEADINGS, Family
from trackside.finding import ShellCommand
from trackside.stores.memory import MemoryStore

ALL = pytest.mark.parametrize("family", families(), ids=lambda family: family.code)


@ALL
def test_every_family_documents_all_sections(family: Family) -> None:
    assert tuple(family.sections()) == HEADINGS
    assert (sys.modules[family.judge.__module__].__doc__ or "").startswith(f"{family.title}.\n")
    assert all(family.sections().values())
    lines = family.sections()["References"].splitlines()
    assert lines
    assert not [line for line in lines if not re.fullmatch(r"- \[[^\]]+\]\(https://[\w.-]+\.\w+/[^\s)]*\)", line)]


def test_sentences_hold_no_digits() -> None:
    """Every figure comes from a cited value."""
    assert sentences()
    own = [sentence for _, sentence in sentences() if not isinstance(sentence, ShellCommand)]
    assert not [text for sentence in own for text in (sentence.text, sentence.running) if any(map(str.isdigit, text))]


def test_running_templates_use_the_same_values() -> None:
    for name, sentence in sentences():
        if isinstance(sentence, ShellCommand):
            continue
        assert set(re.findall(r"\{(\w+)", sentence.running)) <= set(re.findall(r"\{(\w+)", sentence.text)), name


@ALL
def test_a_family_without_inputs_is_unknown(family: Family) -> None:
    """Without inputs of its planes a family is unknown and names what is missing."""
    for planes in ((), ("trace",)):
        finding = judge_store(family.code, MemoryStore((), (), planes))
        assert finding.outcome is UNKNOWN
        assert finding.missing
        assert finding.collect


@ALL
def test_every_family_has_positive_rival_and_blind_scenarios(family: Family) -> None:
    """At least three: a positive one, a rival (``never``) and one without its evidence (``unknown``)."""
    labels = {case.name: case.expected for case in scenarios()}
    positive = {name for name, label in labels.items() if family.code in {label["family"], *label.get("warns", ())}}
    rival = {name for name, label in labels.items() if family.code in label.get("never", ())}
    blind = {name for name, label in labels.items() if family.code in label.get("unknown", ())}
    assert positive - blind, "no scenario of it"
    assert rival - blind, "no scenario says `never` of it"
    assert blind, "no scenario says `unknown` of it"
    assert len(positive | rival | blind) >= 3
