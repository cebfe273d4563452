from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import shlex
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.show.report.conftest import HANG
from tests.show.report.pages import RLO, diagnosed, hostile_log, verdict_page
from tools.cases import simulated_run
from trackside.cli import main
from trackside.finding import Certainty, Finding, Outcome
from trackside.show.document import VerdictDoc
from trackside.show.report import assets
from trackside.show.report.assets import script_data
from trackside.show.report.page import badge, facts
from trackside.show.sanitize import spell_unsafe


class Elements(HTMLParser):
    """The elements of a page: (tag, attributes, text within)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words: list[str] = []
        self.elements.append((tag, dict(attrs), words))
        if tag not in ("meta", "input", "img", "br"):
            self._open.append(words)

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for words in self._open:
            words.append(data)

    def of(self, tag: str, **expected: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, "".join(words))
            for name, attributes, words in self.elements
            if name == tag and all(attributes.get(key) == value for key, value in expected.items())
        ]

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes, _ in self.elements if "id" in attributes]


def test_the_page_holds_the_whole_verdict(hang: tuple[VerdictDoc, str]) -> None:
    doc, page = hang
    elements = Elements(page)
    whole = " ".join(text for _, text in elements.of("main"))
    claims = [*doc.preflight, *doc.shows, *doc.implies, *doc.cannot_decide]
    for text in [claim.text for claim in claims] + [action.text for action in doc.actions]:
        assert text in whole
    for action in doc.actions:
        assert action.command is None or action.command in whole
    for ruled in doc.ruled_out:
        assert ruled.because in whole
    for row in doc.inputs:
        assert row.path in whole
    codes = {text.split()[0] for attributes, text in elements.of("th", scope="row") if re.match(r"[A-Z]\d ", text)}
    assert codes == {
        doc.primary.family,
        *(finding.family for finding in (*doc.ruled_out, *doc.unknown, *doc.warnings, *doc.consequences)),
    }


def test_the_summary_shows_actions_and_cost(hang: tuple[VerdictDoc, str]) -> None:
    doc, page = hang
    elements = Elements(page)
    (summary,) = [text for attributes, text in elements.of("dl") if attributes["class"] == "acts"]
    named = ["Fault time", "Owner", "Certainty", "Family", "What to do"]
    assert [text for _, text in elements.of("dt")][: len(named)] == named
    assert doc.actions
    for action in doc.actions[:2]:
        assert action.text in summary
        assert action.command is None or action.command in summary
    assert f"{doc.waste.gpu_hours:g} GPU-hours" in summary if doc.waste else "Cost" not in summary
    assert page.count(doc.actions[0].text) == 1


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (Finding(Outcome.FOUND, certainty=Certainty.ESTABLISHED, culprit="job"), "Fault"),
        (Finding(Outcome.FOUND, certainty=Certainty.POSSIBLE, culprit="infrastructure"), "Possible fault"),
        (Finding(Outcome.FOUND, certainty=Certainty.POSSIBLE, culprit="none", role="health"), "No fault found"),
        (Finding(Outcome.FOUND, culprit="scheduler"), "Not a fault"),
        (Finding(Outcome.FOUND, role="last_resort"), "Cause unknown"),
    ],
)
def test_the_badge_shows_whether_there_is_a_fault(finding: Finding, text: str) -> None:
    assert badge(finding).text == text


def test_the_chart_that_proves_the_verdict_is_in_the_head(hang: tuple[VerdictDoc, str]) -> None:
    _, page = hang
    head = page[page.index('class="proof"') : page.index('class="acts"')]
    assert re.findall(r'figure id="chart-([\w-]+)"', head) == ["busy-wait"]
    assert page.count('id="chart-busy-wait"') == 1


def test_an_unstamped_fault_is_dated_by_the_lines_around_it() -> None:
    _, page = verdict_page(simulated_run(HANG.with_name("cuda-oom-then-watchdog.toml")))
    times = [text for attributes, text in Elements(page.decode()).of("dd") if attributes.get("class") == "figure"]
    assert times == ["between 2026-03-02 08:14:40 and 08:24:58 UTC"]


def test_ruled_out_families_are_folded_and_other_findings_are_linked(hang: tuple[VerdictDoc, str]) -> None:
    doc, page = hang
    elements = Elements(page)
    summaries = [text.strip() for _, text in elements.of("summary")]
    assert f"{len(doc.ruled_out)} families ruled out" in summaries
    open_, folded = (text for attributes, text in elements.of("table") if "families" in str(attributes.get("class")))
    for ruled in doc.ruled_out:
        assert ruled.because in folded
    for unknown in doc.unknown:
        assert f"{unknown.family} {unknown.id}" in open_
    for finding in (*doc.consequences, *doc.warnings):
        assert f"{finding.family} {finding.id}" in open_
        assert finding.shows[0].text not in open_
        assert elements.of("a", href=f"#found-{finding.family}")


def test_the_page_has_no_empty_sections(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    _, page = verdict_page(tmp_path)
    elements = Elements(page.decode())
    assert not [text for _, text in elements.of("dl") if not text.strip()]
    assert not [
        text
        for attributes, text in elements.of("td")
        if attributes.get("data-of") == "How it is computed" and not text.strip()
    ]


def test_every_citation_appears_once_and_every_link_has_a_target(hang: tuple[VerdictDoc, str]) -> None:
    doc, page = hang
    elements = Elements(page)
    ids = elements.ids()
    assert len(ids) == len(set(ids))
    assert {anchor for anchor in ids if re.fullmatch(r"c\d+", anchor)} == set(doc.cites)
    links = [str(attributes["href"]) for attributes, _ in elements.of("a")]
    assert links
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    queries = {text for _, text in elements.of("code")}
    assert {cite.query for cite in doc.cites.values()} <= queries


def test_a_citation_shows_its_line_in_context(hang: tuple[VerdictDoc, str]) -> None:
    doc, page = hang
    name = next(name for name, cite in doc.cites.items() if cite.query.startswith("events(collective_timeout).where"))
    number = int(doc.cites[name].where.rpartition(":")[2])
    (_, text), *_ = Elements(page).of("li", id=name)
    assert "Watchdog caught collective operation timeout" in text
    assert [f"{line_number}" in text for line_number in range(number - 3, number + 4)] == [True] * 7


def test_the_content_security_policy_allows_only_what_is_on_the_page(hang: tuple[VerdictDoc, str]) -> None:
    _, page = hang
    elements = Elements(page)
    ((policy, _),) = [meta for meta in elements.of("meta") if meta[0].get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in str(policy["content"]).split("; "))

    def named(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    scripts = [text for attributes, text in elements.of("script") if "type" not in attributes]
    assert len(scripts) == 1
    ((_, packed),) = elements.of("script", id="vega")  # which the page's own script unpacks and runs
    scripts.append(zlib.decompress(base64.b64decode(packed)).decode())
    assert set(rules["script-src"].split()) == {named(text) for text in scripts}
    assert set(rules["style-src"].split()) == {named(text) for _, text in elements.of("style")}
    assert rules["default-src"] == "'none'"
    loading = {"src", "srcset", "action", "formaction", "poster", "background", "style"}
    assert not [attributes for _, attributes, _ in elements.elements if loading & set(attributes)]


def test_hostile_text_is_inert_and_visible(tmp_path: Path) -> None:
    doc, page = verdict_page(hostile_log(tmp_path))
    text = page.decode()
    assert doc.primary.id == "startup-crash"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069]", text)
    assert "hacked=1" in text
    elements = Elements(text)
    assert not elements.of("img")
    scripts = [body for attributes, body in elements.of("script") if attributes.get("type") != "application/json"]
    assert not [body for body in scripts if "hacked" in body]
    shown = " ".join(body for _, body in elements.of("pre"))
    for piece in (
        "<img src=x onerror=hacked=1>",
        "\u27e8ESC\u27e9[31mred",
        "\u27e8U+202E\u27e9nrettap\u27e8U+0007\u27e9 &amp; {{7*7}}",
    ):
        assert piece in shown


def test_script_data_cannot_close_its_element() -> None:
    data = {"a": f"</script><!-- & \u2028 {RLO}\x1b[0m \\u001b \n\t \x7f \x9b", "b": float("nan")}
    text = script_data(data)
    assert not re.search("[<>&\x00-\x1f\x7f-\x9f\u2028\u202e]", text)
    back = json.loads(text)
    assert back["b"] is None
    assert back["a"].startswith(
        "</script><!-- & \u27e8U+2028\u27e9 \u27e8U+202E\u27e9\u27e8ESC\u27e9[0m \\u001b \n\t \u27e8U+007F\u27e9 "
    )


def test_control_characters_are_made_visible() -> None:
    assert (
        spell_unsafe("a\tb\n\x1b\x07\u200b\ufeff")
        == "a\tb\n\u27e8ESC\u27e9\u27e8U+0007\u27e9\u27e8U+200B\u27e9\u27e8U+FEFF\u27e9"
    )


@pytest.mark.parametrize(("ranks", "gpus", "size"), [(11, 1, "11 ranks, 1 GPU"), (1, 1024, "1 rank, 1,024 GPUs")])
def test_sizes_are_worded(hang: tuple[VerdictDoc, str], ranks: int, gpus: int, size: str) -> None:
    doc, _ = hang
    run = msgspec.structs.replace(doc.run, n_ranks=ranks, n_gpus=gpus)
    assert dict(facts(msgspec.structs.replace(doc, run=run)))["Size"] == size


def test_the_command_names_the_job_of_inputs_that_hold_several(tmp_path: Path) -> None:
    for job in ("41", "42"):
        hostile_log(tmp_path).rename(tmp_path / f"slurm-{job}.out")
    target = tmp_path.parent / f"{tmp_path.name}.html"
    assert diagnosed(tmp_path, "--job", "42", "--html", target) == (0, "")
    (command,) = {text for _, text in Elements(target.read_text()).of("code") if text.endswith(" > verdict.json")}
    result = CliRunner().invoke(main, shlex.split(command.removesuffix(" > verdict.json"))[1:])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["run"]["id"] == "42"


def test_a_file_name_that_is_not_utf8_gives_a_page_and_a_document(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff<b>.out"))
    hostile_log(tmp_path).rename(path)
    target = tmp_path / "report.html"
    result = CliRunner().invoke(main, ["diagnose", str(path), "--json", "--html", str(target)])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["paths"] == [f"{tmp_path}/a?<b>.out"]
    assert "a?&lt;b&gt;.out" in target.read_text("utf-8")


def test_an_archive_gives_the_same_excerpts(tmp_path: Path) -> None:
    log = hostile_log(tmp_path)
    packed = tmp_path / "slurm-42.out.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    pages = [Elements(verdict_page(path)[1].decode()).of("pre") for path in (log, packed)]
    assert pages[0]
    assert [text for _, text in pages[0]] == [text for _, text in pages[1]]


# -- the command


def test_the_command_writes_the_page_in_addition_to_the_text(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    status, stderr = diagnosed(hostile_log(tmp_path), "--html", target)
    assert (status, stderr) == (0, "")
    assert target.read_text().startswith("<!doctype html>")
    assert target.stat().st_mode & 0o777 == 0o666 & ~_mask()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "slurm-41.out"]


def test_a_page_can_be_made_from_a_store(hanging: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["ingest", str(hanging), "--store", str(tmp_path / "store")]).exit_code == 0
    target = tmp_path / "report.html"
    status, stderr = diagnosed("--store", tmp_path / "store", "--job", "48213", "--html", target)
    assert (status, stderr) == (0, "")
    page = Elements(target.read_text())
    assert any(f"diagnose --store {tmp_path}/store --job 48213 --json" in text for _, text in page.of("code"))
    assert "Hung in a collective" in page.of("h1")[0][1]
    assert page.of("figure")
    assert [text for _, text in page.of("pre") if "Watchdog caught collective operation timeout" in text]


def test_an_unwritable_page_is_an_error(tmp_path: Path) -> None:
    log = hostile_log(tmp_path)
    status, stderr = diagnosed(log, "--html", tmp_path / "none" / "report.html")
    assert (status, "does not exist" in stderr) == (2, True)
    status, stderr = diagnosed(log, "--html", "/dev/full")
    assert (status, "No space left" in stderr) == (1, True)


@pytest.mark.parametrize("module", ["jinja2", "vl_convert"])
def test_a_missing_report_extra_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    status, stderr = diagnosed(hostile_log(tmp_path), "--html", tmp_path / "report.html")
    assert status == 2
    assert f"{sys.executable} -m pip install 'jinja2>=3.1' 'vl-convert-python>=1.8'" in stderr


def test_vega_is_cached_and_a_damaged_copy_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundles = iter(["let a = '</script><!--'", "let b", "let c"])
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda snippet: next(bundles))
    vega = assets.vega.__wrapped__
    assert vega() == vega() == "(()=>{let a = '<\\/script><\\!--'})();"
    (cached,) = (tmp_path / "trackside").iterdir()
    cached.write_bytes(cached.read_bytes()[:-10])
    assert vega() == vega() == "(()=>{let b})();"
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert vega() == "(()=>{let c})();"


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
