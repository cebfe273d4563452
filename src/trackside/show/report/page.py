"""The HTML report of a diagnosed run: the verdict, its charts, and every citation with the lines around it."""

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
from trackside.families import families, find_family
from trackside.finding import Certainty, Finding, Outcome, Verdict
from trackside.model import Position
from trackside.read.excerpts import Excerpt
from trackside.show import citations, heading
from trackside.show.charts.chart import PAINT, Chart, Drawing, drawings
from trackside.show.charts.event_lanes import logged_events
from trackside.show.charts.phases import finding_onset, often_from_start, run_window
from trackside.show.document import CiteDoc, InputDoc, RunDoc, VerdictDoc
from trackside.show.report import assets
from trackside.show.sanitize import spell_unsafe
from trackside.show.waste import in_brief
from trackside.stores.embedded.layout import Directory
from trackside.wording import duration, moment, parse_query, ranges, with_stop, word

MAX_INPUTS_OPEN, MAX_INPUTS = 6, 1000
"""Maximum inputs shown unfolded, and in all; the JSON document lists every one."""
MAX_CITATIONS_OPEN = 6
"""Maximum citations shown unfolded; a link to a folded one unfolds it."""
MAX_ATTEMPTS = 6
"""More attempts are only counted."""
MAX_CITATION_LINKS = 4
"""Maximum citation links after a claim; more are merged into ranges."""
CERTAINTIES = {
    "established": "direct evidence, or several kinds of evidence that agree",
    "supported": "one kind of evidence",
    "possible": "weak evidence; other causes remain possible",
}


@dataclass(frozen=True, slots=True)
class Citation:
    """One entry of the list of citations. ``figure``: the cited value; ``quoted``: the cited line without context;
    ``lines``: (line number, text, whether it is the cited line); ``elsewhere``: the id of the citation that already
    shows the lines around it."""

    id: str
    doc: CiteDoc
    figure: str
    quoted: str
    lines: Sequence[tuple[int, str, bool]]
    elsewhere: str


@dataclass(frozen=True, slots=True)
class Badge:
    """The verdict in two words. ``kind``: a class of the style; ``sign``: a shape, so that color is not needed."""

    kind: str
    sign: str
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart on the page; ``index``: its position in the embedded data."""

    index: int
    chart: Chart
    drawing: Drawing

    @property
    def height(self) -> int:
        """Pixels of the whole drawing, which the page reserves before it is drawn."""
        padding = self.drawing.spec["padding"]
        return int(self.drawing.spec["height"] + padding["top"] + padding["bottom"])


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """One family in the table of families. ``state``: found, consequence, warning, ruled out or undecided."""

    code: str
    id: str
    title: str
    state: str
    why: Sequence[str]
    cites: Sequence[str] = ()
    collect: Sequence[str] = ()
    anchor: str = ""
    """The id of the section that shows it."""


def cited_positions(doc: VerdictDoc) -> dict[str, Position]:
    """The input position of each citation that refers to a single row, by citation id."""
    positions: dict[str, Position] = {}
    for name, cite in doc.cites.items():
        query = parse_query(cite.query)
        filters = {} if query is None else dict(query.filters)
        file, line, offset = filters.get("file"), filters.get("line"), filters.get("offset")
        if isinstance(file, str) and isinstance(line, int) and isinstance(offset, int):
            positions[name] = Position(file, line, offset)
    return positions


def page(doc: VerdictDoc, verdict: Verdict, store: Store, around: Mapping[Position, Excerpt]) -> bytes:
    """The page, in UTF-8. ``around``: the lines around the :func:`cited_positions`, where they could be read."""
    unchecked = Facts(store, verdict.run)
    charts = list(drawings(verdict, unchecked))
    figures = [Figure(index, *drawn) for index, drawn in enumerate(charts)]
    proof = _proof(verdict, figures)
    script, vega = _asset("page.js"), assets.vega() if charts else ""
    style = _asset("page.css") + "".join(
        f"#chart-{figure.chart.slug} .chart {{ min-height: {figure.height}px; }}\n" for figure in figures
    )
    citation_entries, first, rows = list(_citations(doc, around)), _verdict_citations(doc), _rows(doc)
    has_onset = not often_from_start(doc.primary.family) or finding_onset(verdict, unchecked) is not None
    html = _environment().get_template("page.html").render(
        doc=doc,
        policy=assets.policy([text for text in (vega, script) if text], style),
        style=Markup(style),
        script=Markup(script),
        vega=assets.compress(vega.encode()) if vega else "",
        charts=Markup(assets.script_data([assets.chart_data(*drawn) for drawn in charts])),
        paint=" ".join(PAINT),
        proof=proof,
        figures=[figure for figure in figures if figure is not proof],
        badge=badge(verdict.primary),
        ending=heading.ending(doc.run),
        headline=heading.headline(doc.primary, doc.run),
        answer=heading.answer(doc.primary),
        place=heading.where(doc.primary, doc.run.n_ranks),
        sections=heading,
        certainty=heading.certainty(doc.primary).removeprefix("certainty: "),
        owner=_owner(doc),
        certain=CERTAINTIES.get(doc.primary.certainty or "", "") if heading.is_cause(doc.primary) else "",
        since=doc.primary.since if has_onset else None,
        when=_fault_time(verdict, unchecked, has_onset),
        actions=doc.actions,
        unsettled=heading.unsettled(doc),
        cost=in_brief(doc.waste),
        facts=list(facts(doc)),
        first=[entry for entry in citation_entries if entry.id in first][:MAX_CITATIONS_OPEN],
        more_citations=[entry for entry in citation_entries if entry.id in first][MAX_CITATIONS_OPEN:],
        rest=[entry for entry in citation_entries if entry.id not in first],
        open_families=[row for row in rows if row.state != "ruled out"],
        ruled_out=[row for row in rows if row.state == "ruled out"],
        earlier=heading.earlier_runs(doc),
        collect=heading.collect(doc),
        inputs=_inputs(doc.inputs),
        inputs_read=heading.inputs_read(doc.inputs),
        again=repeat_command(doc),
        vega_version=vl_convert.get_vega_version() if charts else "",
    )  # fmt: skip
    return html.encode("utf-8", "replace")


def badge(primary: Finding) -> Badge:
    """Whether there is a fault, and whether that is certain."""
    if primary.outcome is not Outcome.FOUND or primary.role == "last_resort":
        return Badge("unknown", "?", "Cause unknown")
    if primary.role == "health":
        return Badge("good", "\N{CHECK MARK}", "No fault found")
    if primary.culprit in ("none", "scheduler"):
        return Badge("unknown", "\N{EN DASH}", "Not a fault")
    if primary.certainty is Certainty.POSSIBLE:
        return Badge("warn", "!", "Possible fault")
    return Badge("bad", "\N{MULTIPLICATION X}", "Fault")


def _owner(doc: VerdictDoc) -> tuple[str, str]:
    """Who has to act, and a few more words."""
    owner = heading.owner(doc.primary)
    _, words = heading.OWNERS.get(doc.primary.culprit, ("", ""))
    is_undecided = doc.primary.culprit == "unknown" and doc.cannot_decide
    return owner, f"see {heading.UNDECIDED.title}" if is_undecided else words


def _fault_time(verdict: Verdict, facts: Facts, has_onset: bool) -> str:
    """When the primary finding began; without a timestamp, the range given by the lines around it; may be empty."""
    primary, window = verdict.primary, run_window(facts)
    if primary.since is not None:
        return moment(primary.since, verdict.run.has_time_zone) if has_onset else ""
    if primary.at is None or window is None:
        return ""
    marks, _ = logged_events(facts, window, window[1])
    around = next((event for event in marks if event.event is not None and event.event.at == primary.at), None)
    return around.stamp if around is not None else ""


def _proof(verdict: Verdict, figures: Sequence[Figure]) -> Figure | None:
    """The chart that proves the primary finding: the one that its family names; otherwise the first that draws what the
    finding cites; None if no chart does."""
    family = find_family(verdict.primary.family)
    named = family.example[1] if family is not None and family.example is not None else ""
    cited = {cite.query.kind for claim in verdict.primary.shows for cite in claim.cites if cite.query is not None}
    drawn_from = (figure for figure in figures if any(query.kind in cited for query in figure.chart.queries))
    return next((figure for figure in figures if figure.chart.slug == named), None) or next(drawn_from, None)


def _asset(name: str) -> str:
    return (assets.HERE / name).read_text("utf-8")


def _environment() -> Environment:
    """The template environment: every output is escaped, and control characters are made visible."""

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else spell_unsafe(str(value))

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
        numbered=citation_links, moment=moment, where=heading.where, family=heading.family, kind=heading.kind,
        stop=with_stop, word=word, input_status=heading.input_status,
        own_evidence=heading.own_evidence, answer=heading.answer,
        number=citations.number, place=citations.location, window=citations.window,
    )  # fmt: skip
    environment.tests["measured"] = citations.is_measured
    return environment


# -- words


def repeat_command(doc: VerdictDoc) -> str:
    """The command that repeats the diagnosis."""
    arguments = list(doc.paths)
    if arguments and Directory(arguments[0]).exists:
        arguments[0:1] = ["--store", arguments[0]]
    job = ["--job", doc.run.id] if doc.run.id else []  # the inputs may hold other jobs
    return shlex.join(["trackside", "diagnose", *arguments, *job, "--json"])


def facts(doc: VerdictDoc) -> Iterator[tuple[str, str]]:
    """The facts about the run: (name, value)."""
    run = doc.run
    if run.id or run.name:
        yield "Run", " ".join(filter(None, (run.id, run.name)))
    if run.other_jobs:
        yield "Other jobs in its log", word(tuple(run.other_jobs))
    if run.cluster:
        yield "Cluster", run.cluster
    last = f"Attempt {run.attempts[-1].number} " if len(run.attempts) > 1 else ""
    if run.start is not None:
        yield f"{last}started".capitalize(), moment(run.start, run.has_time_zone)
    if run.end is not None:
        yield f"{last}ended".capitalize(), moment(run.end, run.has_time_zone)
    if not run.has_time_zone:
        yield "Time zone", "not given"
    if (seconds := heading.elapsed_s(run)) is not None:
        yield f"{last}{'elapsed' if run.end is not None else 'so far'}".capitalize(), duration(seconds)
    if run.nodes:
        yield f"Node{'s' if len(run.nodes) > 1 else ''}", _name_list(run.nodes)
    if sizes := [word(count, unit) for count, unit in ((run.n_ranks, "ranks"), (run.n_gpus, "GPUs")) if count]:
        yield "Size", ", ".join(sizes)
    if len(run.attempts) > 1:
        yield "Attempts", _attempts(run)
    if doc.appended is not None:
        yield "In its log", heading.appended(doc)
    if run.parent and run.parent != run.id:  # else an attempt of its own
        yield "Continues", f"run {run.parent}"
    if run.framework:
        yield "Framework", run.framework
    if doc.progress is not None:
        yield "Progress", heading.progress(doc)
    for label, offset in (("Log clock", run.clock_offset_s), ("Metric clock", run.metric_offset_s)):
        if offset:
            yield label, f"shifted by {duration(offset)} to match the scheduler's clock"


def _attempts(run: RunDoc) -> str:
    """How many attempts there were, and how each ended if they are few."""
    if len(run.attempts) > MAX_ATTEMPTS:
        return str(len(run.attempts))
    return f"{len(run.attempts)}: {', '.join(attempt.state or 'state not known' for attempt in run.attempts)}"


def _name_list(names: Sequence[str]) -> str:
    return word(tuple(names)) if len(names) <= 4 else f"{len(names):,}: {names[0]} to {names[-1]}"


# -- citations


def citation_links(names: Iterable[str]) -> list[tuple[str, str]]:
    """The links after a claim, (id, text): 1, 2, 5\N{EN DASH}9."""
    ids = list(dict.fromkeys(names))
    if len(ids) <= MAX_CITATION_LINKS:
        return [(name, citations.number(name)) for name in ids]
    parts = ranges([int(citations.number(name)) for name in ids]).split(", ")
    return [(f"c{part.partition('-')[0]}", part.replace("-", "\N{EN DASH}")) for part in parts]


def _verdict_citations(doc: VerdictDoc) -> set[str]:
    """The ids of the citations of the verdict and its cost; without those of families ruled out."""
    ids = set(citations.of_verdict(doc))
    if doc.waste is not None:
        ids.update(doc.waste.cites, *(loss.cites for loss in doc.waste.lost))
    return ids


def _citations(doc: VerdictDoc, around: Mapping[Position, Excerpt]) -> Iterator[Citation]:
    """The entries of the list of citations. A line that an earlier entry already shows gets no context lines."""
    positions = cited_positions(doc)
    shown: dict[tuple[str, int], str] = {}
    for name, cite in doc.cites.items():
        excerpt = around.get(positions[name]) if name in positions else None
        if excerpt is not None and excerpt.line == 1 and not _contains_quote(excerpt, cite):
            excerpt = None
        lines: list[tuple[int, str, bool]] = []
        elsewhere = ""
        if excerpt is not None:
            file = positions[name].path
            elsewhere = shown.get((file, excerpt.line), "")
            lines = [(number, text, number == excerpt.line) for number, text in enumerate(excerpt.lines, excerpt.first)]
            if elsewhere:
                lines = [line for line in lines if line[2]]
            for number, _, _ in lines:
                shown.setdefault((file, number), name)
        quoted = "" if excerpt is not None or citations.is_measured(cite) else cite.text
        yield Citation(name, cite, _figure(cite), quoted, lines, elsewhere)


def _figure(cite: CiteDoc) -> str:
    """The cited value, with the name of its field; empty if the value is the whole line."""
    if cite.text and str(cite.value).strip() == cite.text.strip():
        return ""
    query = None if citations.is_measured(cite) or cite.plane == "scheduler" else parse_query(cite.query)
    name = "" if query is None else query.reduced or query.reducer or ""
    return f"{name} = {word(citations.figure(cite))}".strip()


def _contains_quote(excerpt: Excerpt, cite: CiteDoc) -> bool:
    """Whether the excerpt contains the line that the citation quotes. Rows of binary formats have no line."""
    words = cite.text.split()[:3]
    text = excerpt.lines[excerpt.line - excerpt.first]
    return bool(words) and all(word in text for word in words)


# -- tables


def _rows(doc: VerdictDoc) -> list[FamilyRow]:
    """Every family, by code. A family with several findings is listed once, with the most severe."""
    titles = {family.code: family.title for family in families()}
    first = doc.primary
    rows = [
        FamilyRow(
            first.family,
            first.id,
            first.title,
            "found",
            [heading.headline(first, doc.run)],
            anchor="shows" if doc.shows else "",
        )
    ]
    for state, findings in (("consequence", doc.consequences), ("warning", doc.warnings)):
        rows += [
            FamilyRow(f.family, f.id, f.title, state, [heading.headline(f, doc.run)], anchor=f"found-{f.family}")
            for f in findings
        ]
    rows += [
        FamilyRow(
            unknown.family,
            unknown.id,
            titles.get(unknown.family, ""),
            "undecided",
            unknown.missing,
            collect=unknown.collect,
        )
        for unknown in doc.unknown
    ]
    rows += [
        FamilyRow(absent.family, absent.id, titles.get(absent.family, ""), "ruled out", [absent.because], absent.cites)
        for absent in doc.ruled_out
    ]
    by_code: dict[str, FamilyRow] = {}
    for row in rows:
        by_code.setdefault(row.code, row)
    return [by_code[code] for code in sorted(by_code)]


def _inputs(inputs: Sequence[InputDoc]) -> tuple[list[InputDoc], list[InputDoc], int]:
    """(inputs shown at once, those that were not read first; folded inputs; number of inputs left out)."""
    ordered = sorted(inputs, key=lambda row: row.status == "read")
    shown = ordered[:MAX_INPUTS_OPEN] if len(ordered) > MAX_INPUTS_OPEN + 3 else ordered
    return shown, ordered[len(shown) : MAX_INPUTS], max(0, len(ordered) - MAX_INPUTS)
