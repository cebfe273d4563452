"""The published form of a verdict: ``trackside.verdict/1``. Programs may rely on these keys.

An unknown field is null. ``trackside schema`` prints the JSON Schema.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from trackside.catalog.job_states import goes_on
from trackside.evidence import Cite
from trackside.families import find_family
from trackside.finding import Certainty, Claim, Finding, Outcome, Verdict
from trackside.model import Run, Scalar
from trackside.settings.price import NO_PRICE, Price
from trackside.show.sanitize import encodable
from trackside.show.waste import WasteDoc, unknown_costs, waste
from trackside.show.wording import clause, worded

SCHEMA = "trackside.verdict/1"
MAX_TEXT_CHARS = 1000
"""Maximum characters of a citation's text; the input holds the full text."""
Json = str | int | float | bool | None


class ExceptionDoc(msgspec.Struct, frozen=True):
    """The exception that names the cause."""

    type: str
    message: str


class SignalDoc(msgspec.Struct, frozen=True):
    """The fatal signal."""

    name: str
    number: int


class ClaimDoc(msgspec.Struct, frozen=True):
    """A sentence and the ids of its citations."""

    text: str
    cites: list[str]


class TextDoc(msgspec.Struct, frozen=True):
    """A sentence, with the ids of its citations if it has any."""

    text: str
    cites: list[str] = []


class ActionDoc(msgspec.Struct, frozen=True):
    """What to do next, and a command for it, or null."""

    text: str
    command: str | None


class FindingDoc(msgspec.Struct, frozen=True):
    """One family's finding."""

    family: str
    id: str
    title: str
    variant: str | None
    fault_class: str | None
    culprit: str
    outcome: str
    certainty: str | None
    confidence: float | None
    since: float | None
    ranks: list[int]
    nodes: list[str]
    gpus: list[str]
    exception: ExceptionDoc | None
    signal: SignalDoc | None
    headline: TextDoc | None = None
    """What happened, in one clause; ``title`` names the family."""
    began: float | None = None
    """When it began, POSIX seconds; null too where a run may have it from its start on."""


class SecondaryDoc(FindingDoc, frozen=True, kw_only=True):
    """A consequence or a warning, with what shows it."""

    shows: list[ClaimDoc]
    actions: list[ActionDoc]


class RuledOutDoc(msgspec.Struct, frozen=True):
    """A family that is ruled out, and why."""

    family: str
    id: str
    because: str
    cites: list[str]


class UnknownDoc(msgspec.Struct, frozen=True):
    """A family that could not be decided: what data is missing, and what to collect."""

    family: str
    id: str
    missing: list[str]
    collect: list[str]


class AttemptDoc(msgspec.Struct, frozen=True):
    """One attempt of the job."""

    number: int
    state: str | None
    start: float | None
    end: float | None
    exit_code: int | None
    signal: int | None
    nodes: list[str]


class RunDoc(msgspec.Struct, frozen=True):
    """The run. Times are POSIX seconds, UTC."""

    id: str | None
    name: str | None
    cluster: str | None
    disposition: str | None
    exit_code: int | None
    signal: int | None
    start: float | None
    end: float | None
    nodes: list[str]
    n_ranks: int | None
    n_gpus: int | None
    attempts: list[AttemptDoc]
    framework: str | None
    parent: str | None
    clock_offset_s: float
    gpus: list[str] = []
    gpus_by: str | None = None
    metric_offset_s: float = 0.0
    as_of: float | None = None
    """The time of the verdict, for a run that is still running; its ``end`` is null."""


class PointDoc(msgspec.Struct, frozen=True):
    """One training point; a loss that is not finite is the string nan, inf or -inf."""

    step: Json
    loss: Json


class ProgressDoc(msgspec.Struct, frozen=True):
    """The training progress that the log shows."""

    framework: str | None
    points: int
    first: PointDoc
    last: PointDoc
    planned_steps: int | None


class CiteDoc(msgspec.Struct, frozen=True):
    """One citation: ``query``, run again on the same inputs, gives ``value``."""

    plane: str
    store: str
    query: str
    where: str
    window: list[float] | None
    value: Json
    unit: str
    text: str


class CurveDoc(msgspec.Struct, frozen=True):
    """A metric that the primary finding cites, over the run: evenly spaced values, null where not sampled. The median,
    if there are several series."""

    metric: str
    labels: dict[str, str]
    unit: str
    series: int
    window: list[float]
    values: list[float | None]
    query: str


class InputDoc(msgspec.Struct, frozen=True):
    """The detected format of an input, and how reading it went."""

    path: str
    format: str | None
    status: str
    note: str
    rows: int


class VerdictDoc(msgspec.Struct, frozen=True):
    """The whole verdict."""

    schema: str
    run: RunDoc
    preflight: list[ClaimDoc]
    """Limitations of the verdict; shown first."""
    primary: FindingDoc
    shows: list[ClaimDoc]
    implies: list[TextDoc]
    cannot_decide: list[TextDoc]
    actions: list[ActionDoc]
    consequences: list[SecondaryDoc]
    warnings: list[SecondaryDoc]
    ruled_out: list[RuledOutDoc]
    unknown: list[UnknownDoc]
    progress: ProgressDoc | None
    waste: WasteDoc | None
    cites: dict[str, CiteDoc]
    inputs: list[InputDoc]
    paths: list[str]
    version: str
    curves: list[CurveDoc] = []
    sources: list[str] = msgspec.field(default_factory=list, name="asked")
    """Servers and commands that were queried in addition to the paths."""
    waste_unknown: list[str] = []
    """Why ``waste`` is null."""
    priced: bool = False
    """Whether a price of a GPU-hour was given."""


def uncited(doc: VerdictDoc) -> list[str]:
    """Ids that a sentence cites and that the document's ``cites`` lacks."""
    cited: dict[str, None] = {}

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            ids = value.get("cites")
            cited.update(dict.fromkeys(ids if isinstance(ids, list) else ()))
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(child)

    collect(msgspec.to_builtins(doc))
    return [name for name in cited if name not in doc.cites]


def plain(value: Scalar | tuple[Scalar, ...]) -> Json:
    """A value as a JSON scalar: tuples joined by commas, non-finite numbers as strings."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def citation(cite: Cite) -> CiteDoc:
    """A citation in its published form."""
    return CiteDoc(
        plane=cite.plane,
        store=cite.store,
        query="" if cite.query is None else str(cite.query),
        where=cite.where,
        window=None if cite.window is None else list(cite.window),
        value=plain(cite.value),
        unit=cite.unit,
        text=cite.text[:MAX_TEXT_CHARS],
    )


class Cites:
    """Numbers distinct citations in order of use. An id is the letter of the run and a number: ``c12``."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, Cite], str] = {}
        self._counts: Counter[str] = Counter()

    def ids(self, cites: Iterable[Cite], letter: str = "c") -> list[str]:
        ids = []
        for cite in cites:
            if (letter, cite) not in self._ids:
                self._counts[letter] += 1
                self._ids[letter, cite] = f"{letter}{self._counts[letter]}"
            ids.append(self._ids[letter, cite])
        return ids

    def docs(self) -> dict[str, CiteDoc]:
        return {name: citation(cite) for (_, cite), name in self._ids.items()}


class _Writer:
    """Turns the findings of one verdict into documents, and numbers the citations."""

    def __init__(self, run: Run) -> None:
        self.cites = Cites()
        self.running = goes_on(run.disposition)

    def ids(self, cites: Iterable[Cite]) -> list[str]:
        return self.cites.ids(dict.fromkeys(cites))

    def claims(self, claims: Iterable[Claim]) -> list[ClaimDoc]:
        return [ClaimDoc(worded(claim, self.running), self.ids(claim.cites)) for claim in claims]

    def texts(self, claims: Iterable[Claim]) -> list[TextDoc]:
        return [TextDoc(worded(claim, self.running), self.ids(claim.cites)) for claim in claims]

    def actions(self, finding: Finding) -> list[ActionDoc]:
        return [
            ActionDoc(
                worded(Claim(action.sentence, action.values), self.running),
                next((clause(Claim(one, action.values), self.running).strip() for one in action.commands), None),
            )
            for action in finding.actions
        ]

    def finding(self, finding: Finding) -> dict[str, Any]:
        return {
            "family": finding.family,
            "id": finding.id,
            "title": finding.title,
            "variant": finding.variant,
            "fault_class": finding.fault_class,
            "culprit": finding.culprit,
            "outcome": finding.outcome.value,
            "certainty": finding.certainty.value if finding.certainty is not None else None,
            "confidence": finding.confidence,
            "since": finding.since,
            "ranks": list(finding.ranks),
            "nodes": list(finding.nodes),
            "gpus": list(finding.gpus),
            "exception": ExceptionDoc(*finding.exception) if finding.exception is not None else None,
            "signal": SignalDoc(*finding.signal) if finding.signal is not None else None,
            "headline": self.headline(finding),
            "began": _began(finding),
        }

    def headline(self, finding: Finding) -> TextDoc | None:
        """The answer; what is merely possible says so."""
        if finding.headline is None:
            return None
        doubtful = finding.certainty is Certainty.POSSIBLE and finding.role == "fault"
        text = clause(finding.headline, self.running)
        text = f"Possibly {text}" if doubtful else worded(finding.headline, self.running)
        return TextDoc(text, self.ids(finding.headline.cites))

    def secondary(self, finding: Finding) -> SecondaryDoc:
        shows = self.claims(finding.shows)
        return SecondaryDoc(**self.finding(finding), shows=shows, actions=self.actions(finding))

    def ruled_out(self, finding: Finding) -> RuledOutDoc:
        because = "; ".join(clause(claim, self.running) for claim in finding.because)
        cites = self.ids(cite for claim in finding.because for cite in claim.cites)
        return RuledOutDoc(finding.family, finding.id, because, cites)


def document(
    verdict: Verdict, paths: Iterable[str] = (), sources: Iterable[str] = (), price: Price = NO_PRICE
) -> VerdictDoc:
    """A verdict in its published form. ``paths``: the inputs as the user gave them; ``sources``: the servers and
    commands that were queried in addition; ``price``: of a GPU-hour."""
    writer, primary = _Writer(verdict.run), verdict.primary
    shows = writer.claims(primary.shows)
    return VerdictDoc(
        schema=SCHEMA,
        run=_run(verdict.run),
        primary=FindingDoc(**writer.finding(primary)),
        shows=shows,
        implies=writer.texts(primary.implies),
        cannot_decide=writer.texts(primary.cannot_decide),
        actions=writer.actions(primary),
        consequences=[writer.secondary(finding) for finding in verdict.consequences],
        warnings=[writer.secondary(finding) for finding in verdict.warnings],
        preflight=writer.claims(verdict.preflight),
        ruled_out=[writer.ruled_out(finding) for finding in verdict.ruled_out],
        unknown=[UnknownDoc(f.family, f.id, list(f.missing), list(f.collect)) for f in verdict.unknown],
        progress=_progress(verdict),
        waste=waste(verdict.cost, writer.ids, price),
        waste_unknown=unknown_costs(verdict.cost) if verdict.gpu_hours is None else [],
        cites=writer.cites.docs(),
        inputs=msgspec.convert(verdict.inputs, list[InputDoc], from_attributes=True),
        paths=[encodable(path) for path in paths],
        version=verdict.version,
        curves=[
            CurveDoc(c.metric, dict(c.labels), c.unit, c.series, list(c.window), list(c.values), c.query)
            for c in verdict.curves
        ],
        sources=list(sources),
        priced=bool(price.price_per_gpu_hour),
    )


def _began(finding: Finding) -> float | None:
    family = find_family(finding.family)
    from_start = family is not None and family.often_from_start
    dated = finding.outcome is Outcome.FOUND and finding.role in ("fault", "disposition")
    return finding.since if dated and not from_start else None


def _run(run: Run) -> RunDoc:
    doc = msgspec.convert(run, RunDoc, from_attributes=True)
    return msgspec.structs.replace(doc, end=None, as_of=run.end) if goes_on(run.disposition) else doc


def _progress(verdict: Verdict) -> ProgressDoc | None:
    progress = verdict.progress
    if progress is None:
        return None
    first, last = (PointDoc(plain(step), plain(loss)) for step, loss in (progress.first, progress.last))
    return ProgressDoc(progress.framework, progress.points, first, last, progress.planned_steps)


def encode(doc: object) -> bytes:
    """A document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(doc), indent=2) + b"\n"


def decode(data: bytes) -> VerdictDoc:
    """Parse a published verdict. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(data, type=VerdictDoc)


def json_schema(title: str = SCHEMA, kind: type[msgspec.Struct] = VerdictDoc) -> dict[str, Any]:
    """The JSON Schema of a published document."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **msgspec.json.schema(kind)}
