from __future__ import annotations

import io
import json

import jsonschema
import msgspec
import pytest
from rich.console import Console

import trackside
from tools.cases import SCENARIOS, scenarios
from trackside.evidence import Cite, Value
from trackside.families import families
from trackside.family import HEADINGS, Family
from trackside.read.detect import with_singulars
from trackside.show import heading
from trackside.show.citations import line, location
from trackside.show.document import CiteDoc, InputDoc, document, encode, json_schema
from trackside.show.text import render
from trackside.wording import duration, fill_template, ranges, size, word

T0 = 1_772_438_400.0
CITE = Cite("log", "files", "events(exception).count()", "log:1", 1)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (98_352_431_923, "bytes", "91.6 GiB"),
        (12_000, "s", "3 h 20 min"),
        (0.0042, "s", "4.2 ms"),
        (0.953, "share", "95%"),
        (1795248000, "time", "2026-11-21 08:00:00 UTC"),
        (float("nan"), "", "nan"),
        (1234567, "steps", "1,234,567 steps"),
        ((0, 1, 2, 5), "", "0-2 and 5"),
        (("a", "b", "c"), "", "a, b and c"),
        ((), "", "none"),
        (None, "", "not recorded"),
        (True, "", "yes"),
        (1, "errors", "1 error"),
        (1, "launches", "1 launch"),
        (1, "s", "1 s"),
        (0, "s", "0 s"),
        (("n1:0", "n1:1", "n1:2", "n2:5"), "", "n1:0-2 and n2:5"),
        ((":0", ":1", ":3"), "", "0-1,3"),
    ],
)
def test_values_are_worded_with_units(value: object, unit: str, text: str) -> None:
    assert word(value, unit) == text  # type: ignore[arg-type]


def test_sentence_fills_templates_with_units() -> None:
    values = {"asked": Value(1 << 30, (CITE,), "bytes"), "n": Value(3, (CITE,))}
    assert (
        fill_template("{n} ranks asked for {asked} ({asked:plain})", values)
        == "3 ranks asked for 1 GiB (1,073,741,824)"
    )


@pytest.mark.parametrize(("n", "text"), [(0, "0 logged steps"), (1, "1 logged step"), (2000, "2,000 logged steps")])
def test_a_count_is_worded_with_its_noun(n: int, text: str) -> None:
    assert fill_template("{n:logged steps}", {"n": Value(n, (CITE,))}) == text


def test_a_line_that_was_sent_is_located_by_its_time() -> None:
    cite = CiteDoc(
        "log", "files", "events(exception).first(type)", "job-42/slurm-42.out.log:17", [T0, T0], "x", "", "boom"
    )
    assert location(cite) == "job-42/slurm-42.out.log:17, 2026-03-02 08:00:00 UTC"
    assert location(msgspec.structs.replace(cite, where="slurm-42.out:17")) == "slurm-42.out:17"
    assert line(cite) == "boom"


def test_sentence_names_ranks_and_places() -> None:
    values = {
        "ranks": Value((0, 1, 2), (CITE,)),
        "place": Value(60, (CITE,), "step"),
        "done": Value(60, (CITE,), "steps"),
    }
    assert fill_template("{ranks} at {place} of {done}", values) == "ranks 0-2 at step 60 of 60 steps"
    assert fill_template("{ranks}", {"ranks": Value((3,), (CITE,))}) == "rank 3"


def test_durations_and_ranges() -> None:
    assert [word(1, noun) for noun in ("logged epochs", "IPv4 addresses", "log entries", "launches", "series")] == [
        "1 logged epoch", "1 IPv4 address", "1 log entry", "1 launch", "1 series"
    ]  # fmt: skip
    assert [duration(s) for s in (1, 119, 150, 599.6, 3600, 7200)] == [
        "1 s",
        "119 s",
        "2 min 30 s",
        "10 min",
        "60 min",
        "2 h",
    ]
    assert ranges([3, 1, 2, 9]) == "1-3, 9"
    assert size(1023) == "1023 bytes"


@pytest.mark.parametrize(
    ("note", "corrected"),
    [
        ("1 lines are broken or cut off (first: line 2)", "1 line is broken or cut off (first: line 2)"),
        ("1 rows have no time; 11 rows have none", "1 row has no time; 11 rows have none"),
        ("1 lines that are not nvidia-smi's", "1 line that is not nvidia-smi's"),
        ("1 entries give no time, 0.1 values", "1 entry gives no time, 0.1 values"),
        ("21 lines are longer", "21 lines are longer"),
    ],
)
def test_notes_about_one_item_are_singular(note: str, corrected: str) -> None:
    assert with_singulars(note) == corrected


@pytest.mark.parametrize("family", families(), ids=lambda family: family.code)
def test_family_contract(family: Family) -> None:
    assert list(family.sections()) == list(HEADINGS)
    assert all(text for text in family.sections().values())
    known = {f.code for f in families()}
    assert set(family.rivals) <= known
    assert family.facts
    assert family.collect


def test_document_keeps_to_its_schema() -> None:
    schema = json_schema()
    for case in scenarios()[::16]:
        with case.inputs() as folder:
            doc = json.loads(encode(document(trackside.diagnose(folder))))
        jsonschema.validate(doc, schema)
        names = set(doc["cites"])
        for claim in doc["shows"] + doc["ruled_out"]:
            assert set(claim["cites"]) <= names


@pytest.mark.parametrize("width", [60, 100, 200])
def test_text_fits_the_width_and_has_no_color_off_a_terminal(width: int) -> None:
    case = next(iter(sorted(SCENARIOS.glob("a1/*/inputs"))))
    out = io.StringIO()
    render(document(trackside.diagnose(case)), Console(file=out, width=width, highlight=False))
    assert "\x1b" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= width


@pytest.mark.parametrize(("statuses", "text"), [
    (["read"], "1 of 1 input read"),
    (["partial"], "1 of 1 input read, in part"),
    (["read", "partial", "empty"], "2 of 3 inputs read, 1 of them in part"),
    (["refused"], "0 of 1 input read"),
])  # fmt: skip
def test_inputs_that_were_read_in_part_count_as_read(statuses: list[str], text: str) -> None:
    assert heading.inputs_read([InputDoc("a.csv", None, status, "", 3) for status in statuses]) == text


def test_missing_inputs_are_listed_as_sentences() -> None:
    """Limits without a citation share a bullet, each with its own full stop."""
    out = io.StringIO()
    doc = document(trackside.diagnose(next(iter(sorted(SCENARIOS.glob("a1/*/inputs"))))))
    bare = [claim for claim in doc.preflight if not claim.cites]
    assert bare
    render(doc, Console(file=out, width=2000, highlight=False))
    assert " ".join(f"{claim.text}." for claim in bare) in out.getvalue()
