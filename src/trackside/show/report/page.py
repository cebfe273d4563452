"""From a judged run to one HTML file: the verdict, its charts, and every citation with what stands around it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trackside.evidence import Store
from trackside.facts.fact import Facts
from trackside.families import families
from trackside.finding import Verdict
from trackside.model import Position
from trackside.read.excerpts import Excerpt
from trackside.show import citations, heading
from trackside.show.charts.chart import PAINT, drawings
from trackside.show.charts.phases import first_cause, often_from_start
from trackside.show.document import CiteDoc, InputDoc, ProgressDoc, VerdictDoc
from trackside.show.sanitize import visible
from trackside.show.report import assets
from trackside.show.waste import in_brief
from trackside.show.wording import duration, moment, parsed, ranges, with_stop, word
from trackside.stores.embedded.layout import Directory

INPUTS_SHOWN, INPUTS_LISTED = 12, 1000
"""Inputs that are seen at once, and in all; the JSON document lists every one."""
ACTIONS_FIRST = 2
"""Actions that stand at the top; the others follow what the verdict implies."""
CITED_AT_ONCE = 4
"""Numbers after a claim, from which on they are said as a range."""
CULPRITS = {
    "job": "the job",
    "infrastructure": "the infrastructure",
    "scheduler": "the scheduler",
    "none": "nobody",
    "unknown": "not known",
}
ACTS = {
    "job": "Whoever owns the job: its code, data or settings.",
    "infrastructure": "Whoever runs the cluster: hardware, network, storage or systems.",
    "scheduler": "Nobody has to repair anything; the scheduler did what its rules or a person told it.",
    "none": "Nobody.",
    "unknown": "Not known yet: see what it cannot decide, and what to collect.",
}
CERTAINTIES = {
    "established": "one strong witness, or several kinds of evidence that agree",
    "supported": "one kind of evidence",
    "possible": "a hint; other causes remain possible",
}


@dataclass(frozen=True, slots=True)
class Citation:
    """One entry of the list of citations. ``figure``: what stands there; ``quoted``: the line alone; ``lines``:
    (number, text, whether it is the cited one); ``elsewhere``: the citation that shows those around it."""

    id: str
    doc: CiteDoc
    figure: str
    quoted: str
    lines: Sequence[tuple[int, str, bool]]
    elsewhere: str


@dataclass(frozen=True, slots=True)
class Row:
    """One family in the table of all. ``state``: found, consequence, warning, ruled out or unknown."""

    code: str
    id: str
    title: str
    state: str
    why: Sequence[str]
    cites: Sequence[str] = ()
    collect: Sequence[str] = ()
    at: str = ""
    """The part of the page that shows it."""


def places(doc: VerdictDoc) -> dict[str, Position]:
    """Where in which input each citation of a single row points to."""
    found: dict[str, Position] = {}
    for name, cite in doc.cites.items():
        asked = parsed(cite.query)
        given = {} if asked is None else dict(asked.filters)
        file, line, offset = given.get("file"), given.get("line"), given.get("offset")
        if isinstance(file, str) and isinstance(line, int) and isinstance(offset, int):
            found[name] = Position(file, line, offset)
    return found


def page(doc: VerdictDoc, verdict: Verdict, store: Store, around: Mapping[Position, Excerpt]) -> bytes:
    """The page, in UTF-8. ``around``: what stands around the :func:`places` that are cited, as far as it was found."""
    unchecked = Facts(store, verdict.run)
    drawn = list(drawings(verdict, unchecked))
    script, style, vega = _own("page.js"), _own("page.css"), assets.vega() if drawn else ""
    citations, first, rows = list(_citations(doc, around)), _first(doc), _rows(doc)
    begun = not often_from_start(doc.primary.family) or first_cause(verdict, unchecked) is not None
    html = _environment().get_template("page.html").render(
        doc=doc,
        policy=assets.policy([each for each in (vega, script) if each], style),
        style=Markup(style),
        script=Markup(script),
        vega=Markup(vega),
        charts=Markup(assets.script_data([assets.described(*each) for each in drawn])),
        paint=" ".join(PAINT),
        figures=drawn,
        headline=heading.headline(doc.primary),
        culprit=CULPRITS.get(doc.primary.culprit, doc.primary.culprit),
        acts=ACTS.get(doc.primary.culprit, ""),
        certain=CERTAINTIES.get(doc.primary.certainty or "", ""),
        since=doc.primary.since if begun else None,
        actions=doc.actions[:ACTIONS_FIRST],
        more_actions=doc.actions[ACTIONS_FIRST:],
        cost=in_brief(doc.waste),
        facts=list(facts(doc)),
        first=[each for each in citations if each.id in first],
        rest=[each for each in citations if each.id not in first],
        told=[each for each in rows if each.state != "ruled out"],
        ruled_out=[each for each in rows if each.state == "ruled out"],
        collect=_collect(doc),
        inputs=_inputs(doc.inputs),
        unread=sum(each.status != "read" for each in doc.inputs),
        again=again(doc),
        vega_version=vl_convert.get_vega_version() if drawn else "",
    )  # fmt: skip
    return html.encode("utf-8", "replace")


def _own(name: str) -> str:
    return (assets.HERE / name).read_text("utf-8")


def _environment() -> Environment:
    """Templates whose every output is escaped, and visible."""

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else visible(str(value))

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(assets.HERE),
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        numbered=numbered, moment=moment, where=heading.where, family=heading.family, stop=with_stop,
        number=citations.number, place=citations.place, window=citations.window,
    )  # fmt: skip
    environment.tests["measured"] = citations.is_measured
    return environment


# -- words


def again(doc: VerdictDoc) -> str:
    """The command that makes the verdict anew."""
    given = list(doc.paths)
    if given and Directory(given[0]).exists:
        given[0:1] = ["--store", given[0]]
    of_job = ["--job", doc.run.id] if doc.run.id else []  # the inputs may hold others
    return shlex.join(["trackside", "diagnose", *given, *of_job, "--json"])


def facts(doc: VerdictDoc) -> Iterator[tuple[str, str]]:
    """The run in names and values."""
    run = doc.run
    if run.id or run.name:
        yield "Run", " ".join(filter(None, (run.id, run.name)))
    if run.cluster:
        yield "Cluster", run.cluster
    if ending := heading.ending(run):
        yield "State" if run.as_of is not None else "Ended", ending
    if run.start is not None:
        yield "Started", moment(run.start)
    if (seconds := heading.lasted(run)) is not None:
        yield "Lasted" if run.end is not None else "So far", duration(seconds)
    if run.nodes:
        yield f"Node{'s' if len(run.nodes) > 1 else ''}", _some(run.nodes)
    if held := [word(count, unit) for count, unit in ((run.n_ranks, "ranks"), (run.n_gpus, "GPUs")) if count]:
        yield "Size", ", ".join(held)
    if len(run.attempts) > 1:
        yield "Attempts", str(len(run.attempts))
    if run.parent:
        yield "Continues", f"run {run.parent}"
    if run.framework:
        yield "Framework", run.framework
    if doc.progress is not None:
        yield "Progress", _progress(doc.progress)
    for what, offset in (("Log clock", run.clock_offset_s), ("Metric clock", run.metric_offset_s)):
        if offset:
            yield what, f"shifted by {duration(offset)} to fit the scheduler's"


def _some(names: Sequence[str]) -> str:
    return word(tuple(names)) if len(names) <= 4 else f"{len(names):,}: {names[0]} to {names[-1]}"


def _progress(progress: ProgressDoc) -> str:
    last, planned = progress.last.step, progress.planned_steps
    known = isinstance(last, (int, float)) and planned
    return heading.progress(progress) + (f", step {last:,.0f} of {planned:,}" if known else "")


# -- citations


def numbered(names: Iterable[str]) -> list[tuple[str, str]]:
    """(id, text) of the links after a claim: 1, 2, 5\N{EN DASH}9."""
    ids = list(dict.fromkeys(names))
    if len(ids) <= CITED_AT_ONCE:
        return [(name, citations.number(name)) for name in ids]
    told = ranges([int(citations.number(name)) for name in ids]).split(", ")
    return [(f"c{part.partition('-')[0]}", part.replace("-", "\N{EN DASH}")) for part in told]


def _first(doc: VerdictDoc) -> set[str]:
    """The citations of the verdict itself, not of what was ruled out."""
    told = set(citations.of_verdict(doc))
    if doc.waste is not None:
        told.update(doc.waste.cites, *(loss.cites for loss in doc.waste.lost))
    return told


def _citations(doc: VerdictDoc, around: Mapping[Position, Excerpt]) -> Iterator[Citation]:
    """Each citation; a line that already stands around an earlier one is shown by itself."""
    at = places(doc)
    shown: dict[tuple[str, int], str] = {}
    for name, cite in doc.cites.items():
        found = around.get(at[name]) if name in at else None
        if found is not None and found.line == 1 and not _holds(found, cite):
            found = None
        lines: list[tuple[int, str, bool]] = []
        elsewhere = ""
        if found is not None:
            file = at[name].path
            elsewhere = shown.get((file, found.line), "")
            lines = [(number, text, number == found.line) for number, text in enumerate(found.lines, found.first)]
            if elsewhere:
                lines = [each for each in lines if each[2]]
            for number, _, _ in lines:
                shown.setdefault((file, number), name)
        quoted = "" if found is not None or citations.is_measured(cite) else cite.text
        yield Citation(name, cite, _figure(cite), quoted, lines, elsewhere)


def _figure(cite: CiteDoc) -> str:
    """The value, by the name of its field where it is one of a line; nothing where it is the line itself."""
    if cite.text and str(cite.value).strip() == cite.text.strip():
        return ""
    asked = None if citations.is_measured(cite) or cite.plane == "scheduler" else parsed(cite.query)
    name = "" if asked is None else asked.reduced or asked.reducer or ""
    return f"{name} = {word(citations.figure(cite))}".strip()


def _holds(excerpt: Excerpt, cite: CiteDoc) -> bool:
    """Whether the lines are those that the citation quotes: the first row of what is no text stands nowhere."""
    words = cite.text.split()[:3]
    text = excerpt.lines[excerpt.line - excerpt.first]
    return bool(words) and all(each in text for each in words)


# -- tables


def _rows(doc: VerdictDoc) -> list[Row]:
    """Every family, by code; of one that is told of twice the graver."""
    titles = {family.code: family.title for family in families()}
    first = doc.primary
    rows = [Row(first.family, first.id, first.title, "found", [heading.where(first)], at="shows" if doc.shows else "")]
    for state, findings in (("consequence", doc.consequences), ("warning", doc.warnings)):
        rows += [Row(f.family, f.id, f.title, state, [heading.where(f)], at=f"found-{f.family}") for f in findings]
    rows += [
        Row(each.family, each.id, titles.get(each.family, ""), "unknown", each.missing, collect=each.collect)
        for each in doc.unknown
    ]
    rows += [
        Row(each.family, each.id, titles.get(each.family, ""), "ruled out", [each.because], each.cites)
        for each in doc.ruled_out
    ]
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row.code, row)
    return [found[code] for code in sorted(found)]


def _collect(doc: VerdictDoc) -> list[tuple[str, Sequence[str]]]:
    """What to collect, and the families that it would settle; what settles most first."""
    settles: dict[str, list[str]] = {}
    for unknown in doc.unknown:
        for text in unknown.collect:
            settles.setdefault(text, []).append(unknown.family)
    return sorted(settles.items(), key=lambda each: -len(each[1]))


def _inputs(inputs: Sequence[InputDoc]) -> tuple[list[InputDoc], list[InputDoc], int]:
    """Those seen at once - what was not read comes first -, the others, and how many are left out."""
    ordered = sorted(inputs, key=lambda each: each.status == "read")
    shown = ordered[:INPUTS_SHOWN] if len(ordered) > INPUTS_SHOWN + 3 else ordered
    return shown, ordered[len(shown) : INPUTS_LISTED], max(0, len(ordered) - INPUTS_LISTED)
