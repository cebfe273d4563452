"""The published form of a verdict: ``trackside.verdict/1``. Programs may rely on these keys.

An unknown field is null. ``trackside schema`` prints the JSON Schema.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from trackside.catalog.job_states import is_active
from trackside.evidence import Cite
from trackside.families import find_family
from trackside.finding import Claim, Finding, Outcome, Progress, Verdict, claim_sentence, clause
from trackside.model import Run, Scalar
from trackside.settings.price import NO_PRICE, Price
from trackside.show.sanitize import make_encodable
from trackside.show.schema import schema_components
from trackside.show.waste import WasteDoc, unknown_costs, waste
from trackside.wording import word

SCHEMA = "trackside.verdict/1"
MAX_TEXT_CHARS = 1000
"""Maximum characters of a citation's text; the input holds the full text."""
JsonScalar = str | int | float | bool | None


class ExceptionDoc(msgspec.Struct, frozen=True):
    """The exception that names the cause."""

    type: str
    """Name of the exception's class, with its module if the log shows it."""
    message: str
    """Its message, as far as the log shows it."""


class SignalDoc(msgspec.Struct, frozen=True):
    """The fatal signal."""

    name: str
    """Name of the signal, such as SIGKILL."""
    number: int
    """Number of the signal, such as 9."""


class ClaimDoc(msgspec.Struct, frozen=True):
    """A sentence and the ids of its citations."""

    text: str
    """The sentence."""
    cites: list[str]
    """Keys of the document's ``cites``."""


class TextDoc(msgspec.Struct, frozen=True):
    """A sentence, with the ids of its citations if it has any."""

    text: str
    """The sentence."""
    cites: list[str] = []
    """Keys of the document's ``cites``; empty if it cites nothing."""


class ActionDoc(msgspec.Struct, frozen=True):
    """What to do next, and a command for it, or null."""

    text: str
    """What to do, as a sentence."""
    command: str | None
    """A shell command for it; null if there is none."""


class FindingDoc(msgspec.Struct, frozen=True):
    """One family's finding."""

    family: str
    """Code of the family, such as B1."""
    id: str
    """Id of the family, such as cuda-oom."""
    title: str
    """Title of the family."""
    variant: str | None
    """Variant of the family in this run, such as interconnect for D2; null if it has none."""
    fault_class: str | None
    """Class of an exception: data, config, env, asset or code; null if it does not apply or is not known."""
    culprit: str
    """Owner of the fault: job, infrastructure, scheduler, none or unknown."""
    outcome: str
    """found, absent (ruled out) or unknown (undecided)."""
    certainty: str | None
    """established (direct evidence, or two kinds of data agree), supported (one kind of data) or possible (a hint);
    null if it is not found."""
    confidence: float | None
    """How often verdicts with similar evidence were right on runs that were unseen when judged, 0 to 1; null for
    U0 (unknown), and for consequences and warnings."""
    since: float | None
    """When it began, POSIX seconds; for a fault that may be there from the start, the start of the period that
    the evidence covers. Null if not known."""
    ranks: list[int]
    """Ranks at fault; empty if not known."""
    nodes: list[str]
    """Nodes at fault; empty if not known."""
    gpus: list[str]
    """GPUs at fault, as node:index, or as PCI address where only the kernel log names them."""
    exception: ExceptionDoc | None
    """The exception that names the cause; null if there is none."""
    signal: SignalDoc | None
    """The signal that ended a process; null if there is none."""
    headline: TextDoc | None = None
    """What happened, in one clause; null if ``title`` says it."""
    began: float | None = None
    """When it began, POSIX seconds; null if that is not known, if runs may have it from their start, or if a
    consequence was seen before its cause was."""


class SecondaryDoc(FindingDoc, frozen=True, kw_only=True):
    """A consequence or a warning, with what shows it."""

    shows: list[ClaimDoc]
    """The evidence: what shows it."""
    actions: list[ActionDoc]
    """What to do about it."""


class RuledOutDoc(msgspec.Struct, frozen=True):
    """A family that is ruled out, and why."""

    family: str
    """Code of the family, such as B1."""
    id: str
    """Id of the family, such as cuda-oom."""
    because: str
    """Why it is ruled out."""
    cites: list[str]
    """Keys of the document's ``cites``."""


class UnknownDoc(msgspec.Struct, frozen=True):
    """A family that could not be decided: what data is missing, and what to collect."""

    family: str
    """Code of the family, such as B1."""
    id: str
    """Id of the family, such as cuda-oom."""
    missing: list[str]
    """Why it is undecided: what the inputs lack."""
    collect: list[str]
    """What to collect to decide it next time."""


class AttemptDoc(msgspec.Struct, frozen=True):
    """One attempt of the job."""

    number: int
    """Number of the attempt, from 1."""
    state: str | None
    """Its state in the scheduler, such as NODE_FAIL."""
    start: float | None
    """Its start, POSIX seconds."""
    end: float | None
    """Its end, POSIX seconds."""
    exit_code: int | None
    """Its exit code."""
    signal: int | None
    """Number of the signal that ended it."""
    nodes: list[str]
    """Its nodes."""


class RunDoc(msgspec.Struct, frozen=True):
    """The run. Times are POSIX seconds, UTC if ``has_time_zone``."""

    id: str | None
    """Job id, or the name of the folder if there is no job id."""
    name: str | None
    """Name of the job."""
    cluster: str | None
    """Name of the cluster."""
    disposition: str | None
    """State of the job: Slurm's, such as TIMEOUT, or success or failure as read from its log."""
    exit_code: int | None
    """Exit code of the job."""
    signal: int | None
    """Number of the signal that ended the job."""
    start: float | None
    """Start, POSIX seconds; null if not known."""
    end: float | None
    """End, POSIX seconds; null if not known, or if the job was running (then ``as_of`` of the verdict is set)."""
    nodes: list[str]
    """Nodes of the job."""
    n_ranks: int | None
    """Number of ranks."""
    n_gpus: int | None
    """Number of GPUs."""
    attempts: list[AttemptDoc]
    """Starts of the job by the scheduler, in order."""
    framework: str | None
    """Training framework, as recognized in the log."""
    parent: str | None
    """Id of the run that this one continues."""
    clock_offset_s: float
    """Seconds added to log times without a time zone, to line up with the scheduler's."""
    gpus: list[str] = []
    """GPUs of the run as node:index, in rank order; empty if no metric shows them."""
    gpus_by: str | None = None
    """How they were distinguished from other GPUs: label (of the series), scheduler (its record), whole (all GPUs of
    the nodes), tracer (of the ranks), occupancy (memory in use) or all (not known; these are the possible ones)."""
    metric_offset_s: float = 0.0
    """Seconds added to metric times, to line up with the scheduler's."""
    as_of: float | None = None
    """Time of the verdict, POSIX seconds, if the job was running; else null."""
    has_time_zone: bool = True
    """False if no input gives a time zone: the times are then local times, read as UTC."""
    other_jobs: list[str] = []
    """Ids of other jobs that the run's log names, if only the log says which job it was."""


class PointDoc(msgspec.Struct, frozen=True):
    """One logged step of the training."""

    step: JsonScalar
    """Training step; null if the log line has none."""
    loss: JsonScalar
    """Training loss, as printed; the string nan, inf or -inf if it is not finite."""


class ProgressDoc(msgspec.Struct, frozen=True):
    """The training progress that the log shows, of all its runs and attempts."""

    framework: str | None
    """Training framework whose lines were read."""
    points: int
    """Number of logged steps."""
    first: PointDoc
    """The first logged step with a loss; the first one if no step has a loss."""
    last: PointDoc
    """The last logged step with a loss; the last one if no step has a loss."""
    planned_steps: int | None
    """Steps that the run was to do; null if not known."""
    last_run: ProgressDoc | None = None
    """Progress of the last run only, with 0 points if it logged none; null if the log holds one run."""


class LastAttemptDoc(msgspec.Struct, frozen=True):
    """How far the last attempt got, from the figures in the evidence."""

    place: str | None
    """The last step or epoch, in the log's own words, such as step 476 or epoch 25; null if it names neither."""
    points: int
    """Number of its logged steps or epochs with a loss; if none prints a loss, number of all logged steps or
    epochs."""
    unit: str
    """What ``points`` counts: logged steps or logged epochs."""
    first_loss: float | str | None
    """The first loss; null if none was printed."""
    last_loss: float | str | None
    """The last loss; null if none was printed."""
    is_one_of_several: bool
    """Whether the log has an earlier attempt."""
    first_median: float | None = None
    """Median of the first losses, if a spike at the first or the last one hides which way they went; else null."""
    last_median: float | None = None
    """Median of the last losses, in the same case; else null."""


class EarlierRunDoc(msgspec.Struct, frozen=True):
    """An earlier run in the same file, and its verdict."""

    first_line: int
    """Its first line in the file."""
    last_line: int
    """Its last line."""
    family: str
    """Code of its primary family, such as B1."""
    id: str
    """Id of that family, such as cuda-oom."""
    certainty: str | None
    """established, supported or possible; possible for U0 (unknown)."""
    text: str
    """What happened, in one clause."""


class AppendedRunsDoc(msgspec.Struct, frozen=True):
    """The runs that one log holds; the verdict is about the last one."""

    path: str
    """The log; if several logs hold several runs, the one with the most."""
    runs: int
    """Number of runs in it that could be told apart."""
    more: bool
    """Whether it holds more: of a log with thousands, only the first and the last are examined."""
    first_line: int
    """First line of the last run."""
    started: int | None
    """Line where a further run starts that has printed nothing readable yet; null if there is none."""
    earlier: list[EarlierRunDoc]
    """The runs before the last one, in order; of many, the last ones."""


class CiteDoc(msgspec.Struct, frozen=True):
    """One citation."""

    plane: str
    """Kind of data: log, metric, scheduler, kernel, collective or trace."""
    store: str
    """Where the data is: files, or the server or store that was queried."""
    query: str
    """The query that gives ``value`` again; empty if the citation is a place only."""
    where: str
    """The place for a reader, such as FILE:LINE, or the metric and its source."""
    window: list[float] | None
    """Start and end of the time range of a metric, POSIX seconds; null for log lines and records."""
    value: JsonScalar
    """The cited value."""
    unit: str
    """Unit of the value; empty if it has none."""
    text: str
    """The cited line or record, up to 1,000 characters; empty for metrics."""


class CurveDoc(msgspec.Struct, frozen=True):
    """A metric that the primary finding cites, over the run."""

    metric: str
    """Name of the metric."""
    labels: dict[str, str]
    """Labels that the series share."""
    unit: str
    """Unit of the values."""
    series: int
    """Number of series; if more than one, ``values`` is their median."""
    window: list[float]
    """Start and end, POSIX seconds."""
    values: list[float | None]
    """Evenly spaced values; null where nothing was sampled."""
    query: str
    """The query that gives the series."""


class InputDoc(msgspec.Struct, frozen=True):
    """The detected format of an input, and how reading it went."""

    path: str
    """Path of the input, or the address of the server."""
    format: str | None
    """Id of the detected format; null if none was recognized."""
    status: str
    """read, partial, empty, unrecognised, unreadable or refused."""
    note: str
    """Details, such as why it could not be read."""
    rows: int
    """Number of records and samples read from it; for text, number of lines."""


class PendingEvidenceDoc(msgspec.Struct, frozen=True):
    """Why the verdict is not final: more evidence may still come."""

    reason: str
    """Why, as a clause."""
    until: float | None
    """When to diagnose again, POSIX seconds; null: after the end of the job."""


class VerdictDoc(msgspec.Struct, frozen=True):
    """The whole verdict."""

    schema: str
    """Name and version of this format: trackside.verdict/1."""
    run: RunDoc
    """The run that was diagnosed."""
    preflight: list[ClaimDoc]
    """Cautions: what limits this verdict."""
    primary: FindingDoc
    """The answer: the root cause, or healthy, or unknown."""
    shows: list[ClaimDoc]
    """Evidence for the primary finding."""
    implies: list[TextDoc]
    """What follows from the evidence."""
    cannot_decide: list[TextDoc]
    """Open questions about the primary finding."""
    actions: list[ActionDoc]
    """What to do, the most useful first."""
    consequences: list[SecondaryDoc]
    """Other families that the primary fault explains."""
    warnings: list[SecondaryDoc]
    """Other families found that did not cause the end of the run."""
    ruled_out: list[RuledOutDoc]
    """Families that are ruled out, and why."""
    unknown: list[UnknownDoc]
    """Families that are undecided, and what is missing."""
    progress: ProgressDoc | None
    """Training progress in the log; null if no logged step was recognized."""
    waste: WasteDoc | None
    """GPU-hours allocated and lost; null if the allocation is not known."""
    cites: dict[str, CiteDoc]
    """Citations by key, such as c12."""
    inputs: list[InputDoc]
    """Every file, server and command that was read, and the result."""
    paths: list[str]
    """The inputs as the user gave them."""
    version: str
    """Version of Trackside."""
    curves: list[CurveDoc] = []
    """Metrics that the primary finding cites, over the run."""
    sources: list[str] = msgspec.field(default_factory=list, name="asked")
    """Servers and commands that were queried in addition to the paths."""
    waste_unknown: list[str] = []
    """Why ``waste`` is null, a sentence each."""
    priced: bool = False
    """Whether a price of a GPU-hour was given."""
    last_attempt: LastAttemptDoc | None = None
    """How far the last attempt got; null if it logged no step."""
    appended: AppendedRunsDoc | None = None
    """The runs in a log that holds several; null if no log does."""
    unsettled: PendingEvidenceDoc | None = None
    """Why the verdict is not final; null if it is, as far as known. Such a verdict never says that health is more than
    possible."""


def missing_citations(doc: VerdictDoc) -> list[str]:
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


def plain(value: Scalar | tuple[Scalar, ...]) -> JsonScalar:
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
        self.running, self.zoned = is_active(run.disposition), run.has_time_zone
        self.logs = run.log_paths

    def ids(self, cites: Iterable[Cite]) -> list[str]:
        """The ids of these citations. One without a row stands for all lines of the log: it names the file, if there is
        only one."""
        logs = self.logs[:1] if len(self.logs) == 1 else ("log",)
        return self.cites.ids(
            dict.fromkeys(replace(cite, where=logs[0]) if cite.where == "log" else cite for cite in cites)
        )

    def claims(self, claims: Iterable[Claim]) -> list[ClaimDoc]:
        """The claims as sentences; those with the same sentence become one."""
        cites_by_text: dict[str, list[Cite]] = {}
        for claim in claims:
            cites_by_text.setdefault(claim_sentence(claim, self.running, self.zoned), []).extend(claim.cites)
        return [ClaimDoc(text, self.ids(cites)) for text, cites in cites_by_text.items()]

    def texts(self, claims: Iterable[Claim]) -> list[TextDoc]:
        return [TextDoc(claim_sentence(claim, self.running, self.zoned), self.ids(claim.cites)) for claim in claims]

    def actions(self, finding: Finding) -> list[ActionDoc]:
        return [
            ActionDoc(
                claim_sentence(Claim(action.sentence, action.values), self.running, self.zoned),
                next(
                    (clause(Claim(text, action.values), self.running, self.zoned).strip() for text in action.commands),
                    None,
                ),
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
        """The answer, if it is more than the title."""
        if finding.headline is None:
            return None
        return TextDoc(finding.answer(self.running, self.zoned), self.ids(finding.headline.cites))

    def secondary(self, finding: Finding) -> SecondaryDoc:
        shows = self.claims(finding.shows)
        return SecondaryDoc(**self.finding(finding), shows=shows, actions=self.actions(finding))

    def ruled_out(self, finding: Finding) -> RuledOutDoc:
        because = "; ".join(clause(claim, self.running, self.zoned) for claim in finding.because)
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
        consequences=[_undated_if_before(primary.since, writer.secondary(finding)) for finding in verdict.consequences],
        warnings=[writer.secondary(finding) for finding in verdict.warnings],
        preflight=writer.claims(verdict.preflight),
        ruled_out=[writer.ruled_out(finding) for finding in verdict.ruled_out],
        unknown=[UnknownDoc(f.family, f.id, list(f.missing), list(f.collect)) for f in verdict.unknown],
        progress=_progress(verdict),
        last_attempt=_last_attempt(verdict),
        waste=waste(verdict.cost, writer.ids, price, writer.zoned),
        waste_unknown=unknown_costs(verdict.cost) if verdict.gpu_hours is None else [],
        cites=writer.cites.docs(),
        inputs=msgspec.convert(verdict.inputs, list[InputDoc], from_attributes=True),
        paths=[make_encodable(path) for path in paths],
        version=verdict.version,
        curves=[
            CurveDoc(c.metric, dict(c.labels), c.unit, c.series, list(c.window), list(c.values), c.query)
            for c in verdict.curves
        ],
        sources=list(sources),
        priced=bool(price.price_per_gpu_hour),
        appended=_appended(verdict, writer),
        unsettled=(
            None if verdict.unsettled is None else PendingEvidenceDoc(verdict.unsettled.reason, verdict.unsettled.until)
        ),
    )


def _undated_if_before(cause: float | None, consequence: SecondaryDoc) -> SecondaryDoc:
    """The consequence without its time if it was seen before its cause: a kernel reports a file server late."""
    early = cause is not None and consequence.began is not None and consequence.began < cause
    return msgspec.structs.replace(consequence, began=None) if early else consequence


def _began(finding: Finding) -> float | None:
    family = find_family(finding.family)
    from_start = family is not None and family.often_from_start
    dated = finding.outcome is Outcome.FOUND and finding.role in ("fault", "disposition")
    return finding.since if dated and not from_start else None


def _run(run: Run) -> RunDoc:
    doc = msgspec.convert(run, RunDoc, from_attributes=True)
    return msgspec.structs.replace(doc, end=None, as_of=run.end) if is_active(run.disposition) else doc


def _progress(verdict: Verdict) -> ProgressDoc | None:
    return None if verdict.progress is None else _progress_doc(verdict.progress)


def _progress_doc(progress: Progress) -> ProgressDoc:
    first, last = (PointDoc(plain(step), plain(loss)) for step, loss in (progress.first, progress.last))
    last_run = None if progress.last_run is None else _progress_doc(progress.last_run)
    return ProgressDoc(progress.framework, progress.points, first, last, progress.planned_steps, last_run)


def _last_attempt(verdict: Verdict) -> LastAttemptDoc | None:
    attempt = verdict.last_attempt
    if attempt is None:
        return None
    place = None if attempt.place is None else word(attempt.place.value, attempt.place.unit)
    first, last = plain(attempt.first_loss), plain(attempt.last_loss)
    several, medians = attempt.is_one_of_several, attempt.medians or (None, None)
    return LastAttemptDoc(place, int(attempt.points.number), attempt.points.unit, first, last, several, *medians)


def _appended(verdict: Verdict, writer: _Writer) -> AppendedRunsDoc | None:
    appended = verdict.run.appended
    if appended is None:
        return None
    earlier = [
        EarlierRunDoc(
            run.first,
            run.last,
            run.finding.family,
            run.finding.id,
            None if run.finding.certainty is None else run.finding.certainty.value,
            run.finding.answer(writer.running, writer.zoned),
        )
        for run in verdict.earlier
    ]
    return AppendedRunsDoc(
        appended.path, len(appended.runs), appended.more, appended.runs[-1].first, appended.started, earlier
    )


def encode(doc: object) -> bytes:
    """A document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(doc), indent=2) + b"\n"


def decode(data: bytes) -> VerdictDoc:
    """Parse a published verdict. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(data, type=VerdictDoc)


def json_schema(title: str = SCHEMA, kind: type[msgspec.Struct] = VerdictDoc) -> dict[str, Any]:
    """The JSON Schema of a published document."""
    (schema,), components = schema_components([kind])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **schema, "$defs": components}
