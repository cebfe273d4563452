"""Golden texts of a few verdicts in every format (``--rewrite`` renews them); text from logs is inert in all of them."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

import trackside
from tools.cases import scenarios
from trackside.show import brief
from trackside.show.document import ClaimDoc, VerdictDoc, decode, document, encode
from trackside.show.markdown import code_span, escape
from trackside.show.markdown import render as markdown
from trackside.show.sanitize import replace_unsafe
from trackside.show.text import render

GOLDEN = Path(__file__).with_name("golden")
CASES = (
    "b1/sim-midrun-one-rank-watchdog",
    "b3/sim-thermal-one-gpu",
    "c2/sim-loader-killed-timeout",
    "d2/sim-interconnect-sockets-16",
    "e2/lab-slurm-silent-resume",
    "g1/lab-hf-ddp",
    "g1/sim-neighbours-spin",
)
ONE_SCREEN = 24
"""Lines of a terminal, 100 columns wide, that must hold a whole verdict."""
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![picture](http://example.com/x.png)",
    "[link](javascript:alert(1))",
    "ping @somebody about #12 at www.example.com",
    "# heading",
    "- item",
    "1. item",
    "***bold*** and ~~gone~~ and `code`",
    "| a | b |",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eright to left\u202c",
    "&lt;b&gt;",
)


@lru_cache(maxsize=len(CASES))
def _doc(name: str) -> VerdictDoc:
    (case,) = (scenario for scenario in scenarios() if scenario.name == name)
    with case.inputs() as folder:
        doc = document(replace(trackside.diagnose(folder), version="0"))
    return decode(encode(doc).replace(str(folder).encode(), b"run"))  # a command names the inputs


def _text(doc: VerdictDoc, width: int, verbose: bool = False) -> str:
    out = io.StringIO()
    terminal = Console(file=out, width=width, highlight=False)
    if verbose:
        render(doc, terminal)
    else:
        brief.render(doc, terminal)
    return out.getvalue()


def _compare_with_golden(path: Path, text: str, rewrite: bool) -> None:
    if rewrite:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path}: run with --rewrite, then read the difference"


@pytest.mark.parametrize("name", CASES)
def test_terminal_output_matches_its_golden(name: str, rewrite: bool) -> None:
    _compare_with_golden(GOLDEN / f"{name.replace('/', '-')}.txt", _text(_doc(name), 100), rewrite)


@pytest.mark.parametrize("name", CASES)
def test_markdown_matches_its_golden(name: str, rewrite: bool) -> None:
    _compare_with_golden(GOLDEN / f"{name.replace('/', '-')}.md", markdown(_doc(name)), rewrite)


@pytest.mark.parametrize("name", CASES)
def test_json_matches_its_golden(name: str, rewrite: bool) -> None:
    _compare_with_golden(GOLDEN / f"{name.replace('/', '-')}.json", encode(_doc(name)).decode(), rewrite)


@pytest.mark.parametrize("name", CASES)
def test_a_verdict_fits_one_screen(name: str) -> None:
    assert len(_text(_doc(name), 100).splitlines()) <= ONE_SCREEN


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("verbose", [False, True], ids=["brief", "verbose"])
def test_a_command_survives_a_paste_at_any_width(width: int, verbose: bool) -> None:
    doc = _doc("b3/sim-thermal-one-gpu")
    quoted = structs.replace(doc.actions[0], command="scontrol update nodename=gpu001 reason='two words, and more'")
    doc = structs.replace(doc, actions=[quoted, *doc.actions])
    shown = re.sub(r" \\\n +", " ", _text(doc, width, verbose))
    for action in doc.actions[: brief.MAX_ACTIONS]:
        assert action.command is None or f"$ {action.command}\n" in shown


@pytest.mark.parametrize("name", CASES)
def test_every_number_in_brackets_is_a_citation_and_verbose_shows_all(name: str) -> None:
    doc = _doc(name)
    for numbers in re.findall(r"(?<!\\)\[(\d+(?:, ?\d+)*)\]", re.sub("`[^`]*`", "", markdown(doc))):
        assert {f"c{number}" for number in re.split(", ?", numbers)} <= set(doc.cites)
    in_full = " ".join(_text(doc, 2000, verbose=True).split())
    for claim in doc.shows:
        for cite in claim.cites:
            assert " ".join(doc.cites[cite].query.split()) in in_full


def test_verbose_prints_a_citation_once_and_folds_many_lines_of_a_file() -> None:
    doc = _doc("g1/lab-hf-ddp")
    cite = structs.replace(doc.cites[doc.shows[0].cites[0]], plane="log", query="events(exception).first(text)")
    cites = {f"c{n}": structs.replace(cite, where=f"train.log:{n}", query=f"query-{n}") for n in range(1, 7)}
    one, many = ClaimDoc("One line", ["c1"]), ClaimDoc("Six lines", list(cites))
    shown = _text(structs.replace(doc, shows=[one, many, one], cites=doc.cites | cites), 200, verbose=True)
    assert shown.count("query-1") == 1
    assert shown.count("[1] see above") == 2
    assert "[3-6] train.log: lines 3-6" in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_inert_in_markdown(text: str) -> None:
    inert = escape(text)
    assert not re.search(r"(?<!\\)[<\[|#*]|^[-+=]|^\d+\.\s|@\w|www\.|https?:", inert)
    assert not re.search("[\x00-\x1f\x7f\u202a-\u202e]", inert + code_span(text))
    fence = re.match("`+", code_span(text))[0]
    assert fence not in code_span(text)[len(fence) : -len(fence)]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_cannot_command_the_terminal(text: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", replace_unsafe(text))


def test_the_reason_of_an_unavailable_server_fits_the_screen() -> None:
    """The server's URL appears once: a second one would leave no room for the reason."""
    server, claim = "http://metrics.example.org:8428", _doc("g1/lab-hf-ddp").shows[0]
    reason = f"{server}/api/v1/label/__name__/values sent more than 8,388,608 bytes; request less at once"
    silent = structs.replace(
        claim, text=f"Prometheus {server} gave no complete answer, so the verdict lacks its data: {reason}"
    )
    text = _text(structs.replace(_doc("g1/lab-hf-ddp"), preflight=[silent]), 80)
    assert text.count(server) == 1
    assert "/api/v1/label/__name__/values sent more than 8,388,608 bytes" in " ".join(text.split())


CANCELED = "step 1 loss 3.5\nslurmstepd: error: *** JOB 42 ON n1 CANCELLED AT 2023-10-16T17:47:00 ***\n"


@pytest.mark.parametrize(("zone", "printed"), [("", "2023-10-16 17:47:00\n"), ("Z", "2023-10-16 17:47:00 UTC\n")])
def test_a_time_without_a_zone_is_not_called_utc(tmp_path: Path, zone: str, printed: str) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"2023-10-16 17:40:00{zone} start\n{CANCELED}")
    doc = document(trackside.diagnose(log))
    out = io.StringIO()
    brief.render(doc, Console(file=out, width=100))
    assert printed in out.getvalue()
    assert out.getvalue().count("time zone not given") == (not zone)
    assert ("UTC" in markdown(doc)) == bool(zone)
    assert "owner: nobody" in out.getvalue()


def test_missing_inputs_are_a_caution_and_not_an_open_question(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(CANCELED)
    out = io.StringIO()
    brief.render(document(trackside.diagnose(tmp_path / "train.log")), Console(file=out, width=100))
    labels = {line[:12].strip(): line[12:] for line in out.getvalue().splitlines() if not line.startswith("   ")}
    assert "given" in labels["caution"]
    assert "given" not in labels["open"]
