"""The published form of a verdict: ``trackside.verdict/1``. Programs may rely on these keys.

A field that isn't known is null, never invented. ``trackside schema`` prints the JSON Schema of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from trackside.catalog.job_states import goes_on
from trackside.evidence import Cite
from trackside.finding import Claim, Finding, Verdict
from trackside.model import Run, Scalar
from trackside.settings.price import NO_PRICE, Price
from trackside.show.sanitize import encodable
from trackside.show.waste import WasteDoc, untold, waste
from trackside.show.wording import clause, worded

SCHEMA = "trackside.verdict/1"
LONGEST_TEXT = 1000
"""Characters of a citation's text; the input holds all of it."""
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
    """A sentence that states no figure of its own."""

    text: str
    cites: list[str] = []


class ActionDoc(msgspec.Struct, frozen=True):
    """What to do next, and a command for it where there is one."""

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


class SecondaryDoc(FindingDoc, frozen=True):
    """A consequence or a warning, with what shows it."""

    shows: list[ClaimDoc]
    actions: list[ActionDoc]


class RuledOutDoc(msgspec.Struct, frozen=True):
    """Why a family is not it."""

    family: str
    id: str
    because: str
    cites: list[str]


class UnknownDoc(msgspec.Struct, frozen=True):
    """Why a family can't be told, and what would settle it."""

    family: str
    id: str
    missing: list[str]
    collect: list[str]


class AttemptDoc(msgspec.Struct, frozen=True):
    """One start of the job."""

    number: int
    state: str | None
    start: float | None
    end: float | None
    exit_code: int | None
    signal: int | None
    nodes: list[str]


class RunDoc(msgspec.Struct, frozen=True):
    """Which run; times are POSIX seconds, UTC."""

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
    """The present, as of which a run is judged that goes on; its end is not known."""


class PointDoc(msgspec.Struct, frozen=True):
    """One training point; a loss that is not finite is the string nan, inf or -inf."""

    step: Json
    loss: Json


class ProgressDoc(msgspec.Struct, frozen=True):
    """The training trajectory as read from the log."""

    framework: str | None
    points: int
    first: PointDoc
    last: PointDoc
    planned_steps: int | None


class CiteDoc(msgspec.Struct, frozen=True):
    """One thing that can be asked again: ``query`` of the same inputs gives ``value``."""

    plane: str
    store: str
    query: str
    where: str
    window: list[float] | None
    value: Json
    unit: str
    text: str


class CurveDoc(msgspec.Struct, frozen=True):
    """What a metric that carries the primary finding did over the run: evenly spaced values, null where it was not
    sampled; the median of several series."""

    metric: str
    labels: dict[str, str]
    unit: str
    series: int
    window: list[float]
    values: list[float | None]
    query: str


class InputDoc(msgspec.Struct, frozen=True):
    """What a file was taken for, and what came of it."""

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
    """What limits the verdict: it is said first."""
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
    asked: list[str] = []
    """Servers and commands that were asked beside the paths."""
    waste_unknown: list[str] = []
    """Why there is no ``waste``."""
    priced: bool = False
    """Whether a price of a GPU-hour was given."""


def uncited(doc: VerdictDoc) -> list[str]:
    """Ids that a sentence gives as its citation and that the document does not hold."""
    found: dict[str, None] = {}

    def look(value: Any) -> None:
        if isinstance(value, dict):
            ids = value.get("cites")
            found.update(dict.fromkeys(ids if isinstance(ids, list) else ()))
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(each)

    look(msgspec.to_builtins(doc))
    return [name for name in found if name not in doc.cites]


def plain(value: Scalar | tuple[Scalar, ...]) -> Json:
    """A value as JSON holds it: lists joined by commas, non-finite numbers as strings."""
    if isinstance(value, tuple):
        return ",".join(str(each) for each in value)
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
        text=cite.text[:LONGEST_TEXT],
    )


class Cites:
    """Gives each distinct citation one id, in order of use: the letter of its run, and a number."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, Cite], str] = {}
        self._counts: Counter[str] = Counter()

    def ids(self, cites: Iterable[Cite], letter: str = "c") -> list[str]:
        found = []
        for cite in cites:
            if (letter, cite) not in self._ids:
                self._counts[letter] += 1
                self._ids[letter, cite] = f"{letter}{self._counts[letter]}"
            found.append(self._ids[letter, cite])
        return found

    def docs(self) -> dict[str, CiteDoc]:
        return {name: citation(cite) for (_, cite), name in self._ids.items()}


class _Writer:
    """Words one verdict, numbering its citations on the way."""

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
                worded(Claim(each.sentence, each.values), self.running),
                None if each.command is None else clause(Claim(each.command, each.values), self.running),
            )
            for each in finding.actions
        ]

    def secondary(self, finding: Finding) -> SecondaryDoc:
        return SecondaryDoc(**_finding(finding), shows=self.claims(finding.shows), actions=self.actions(finding))

    def ruled_out(self, finding: Finding) -> RuledOutDoc:
        because = "; ".join(clause(claim, self.running) for claim in finding.because)
        cites = self.ids(cite for claim in finding.because for cite in claim.cites)
        return RuledOutDoc(finding.family, finding.id, because, cites)


def document(
    verdict: Verdict, paths: Iterable[str] = (), asked: Iterable[str] = (), price: Price = NO_PRICE
) -> VerdictDoc:
    """A verdict in its published form; ``paths`` are the inputs as the user gave them, ``asked`` what else was."""
    writer, primary = _Writer(verdict.run), verdict.primary
    return VerdictDoc(
        schema=SCHEMA,
        run=_run(verdict.run),
        primary=FindingDoc(**_finding(primary)),
        shows=writer.claims(primary.shows),
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
        waste_unknown=untold(verdict.cost) if verdict.gpu_hours is None else [],
        cites=writer.cites.docs(),
        inputs=msgspec.convert(verdict.inputs, list[InputDoc], from_attributes=True),
        paths=[encodable(path) for path in paths],
        version=verdict.version,
        curves=[
            CurveDoc(c.metric, dict(c.labels), c.unit, c.series, list(c.window), list(c.values), c.query)
            for c in verdict.curves
        ],
        asked=list(asked),
        priced=bool(price.price_per_gpu_hour),
    )


def _finding(finding: Finding) -> dict[str, Any]:
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
    }


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
    """Read a published verdict back. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(data, type=VerdictDoc)


def json_schema(title: str = SCHEMA, kind: type[msgspec.Struct] = VerdictDoc) -> dict[str, Any]:
    """The JSON Schema of a published document."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **msgspec.json.schema(kind)}
