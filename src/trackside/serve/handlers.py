"""The handlers of the HTTP API: they look up the archive, diagnose on demand, and query evidence.

A diagnosis runs while its caller waits, since most take a second or two and the document is the answer.
If it takes longer than the maximum wait, the answer is 202: it continues, is recorded, and a repeated request joins it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trackside.facts.fact import closure, derivation
from trackside.families import families, find_family
from trackside.family import Family
from trackside.runs.listing import RunSummary
from trackside.serve.answers import AnswerDoc, answer_query, parse_query
from trackside.serve.diagnoser import Diagnoser
from trackside.serve.operations import Arguments
from trackside.serve.problems import HttpProblem, encode
from trackside.serve.workers import TaskTimeout, Workers
from trackside.settings.price import NO_PRICE, Price
from trackside.show import brief, markdown
from trackside.show import document as published
from trackside.show.sanitize import replace_unsafe
from trackside.stores.metadata.archive import Archive
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.metadata.rows import ArchivedRun, Filters, Lineage, RecordResult
from trackside.verify import CitationCheck, check

log = logging.getLogger(__name__)
VerdictFormat = Literal["json", "short", "markdown"]


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run, the run that it continued, and the runs that continued it."""

    run: ArchivedRun
    """The run."""
    lineage: Lineage
    """The run that it continued, and the runs that continued it."""


class JobDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has evidence."""

    id: str
    """Job id."""
    name: str | None
    """Name of the job."""
    state: str | None
    """State in the scheduler, such as RUNNING."""
    start: float | None
    """Start, POSIX seconds."""
    end: float | None
    """End, POSIX seconds."""
    nodes: list[str]
    """Nodes of the job."""
    n_gpus: int | None
    """Number of GPUs."""
    planes: list[str]
    """Kinds of data that the store has about it: log, metric, scheduler, kernel, collective or trace."""


class JobsDoc(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, latest start first."""

    total: int
    """Number of all jobs, listed or not."""
    jobs: list[JobDoc]
    """The jobs, latest start first."""


class BrokenCitationDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A citation that no longer gives the same value."""

    id: str
    """Key of the citation, such as c12."""
    where: str
    """The cited place."""
    query: str
    """The cited query."""
    was: published.JsonScalar
    """Value in the verdict."""
    now: published.JsonScalar
    """Value now; null if there is none."""
    problem: str
    """Why there is no value now; empty if there is one."""


class VerificationDoc(msgspec.Struct, frozen=True, kw_only=True):
    """The check of a verdict's citations."""

    verdict: int
    """Id of the verdict."""
    cites: int
    """Number of citations that were checked."""
    holding: int
    """Number of those that give the same value."""
    broken: list[BrokenCitationDoc]
    """The citations that no longer give the same value."""
    dangling: list[str]
    """Keys that a sentence cites and the document lacks."""


class FamilyDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A failure family."""

    code: str
    """Code, such as B1."""
    id: str
    """Id, such as cuda-oom."""
    title: str
    """Title of the family."""


class FamilyDetail(FamilyDoc, frozen=True, kw_only=True):
    """A failure family: its page by sections, and the queries behind its facts."""

    sections: dict[str, str]
    """Its documentation by heading."""
    asks: dict[str, str]
    """The queries behind its facts, by name."""


@dataclass(slots=True)
class Handlers:
    """One method per operation. ``diagnosis_workers``: for verdicts and evidence; ``archive_workers``: for the
    archive."""

    archive: Archive
    diagnoser: Diagnoser
    diagnosis_workers: Workers = field(default_factory=lambda: Workers("diagnose", 2, 30, 60.0))
    archive_workers: Workers = field(default_factory=lambda: Workers("archive", 8, 200, 30.0))
    price: Price = NO_PRICE

    def close(self) -> None:
        self.diagnosis_workers.close()
        self.archive_workers.close()

    async def _run(self, arguments: Arguments) -> ArchivedRun:
        id_, cluster = arguments["id"], arguments.get("cluster")
        run = await self.archive_workers.run(lambda: self.archive.find(id_, cluster))
        if run is None:
            raise HttpProblem(404, f"run {id_} is not recorded", f"POST /api/v1/runs/{id_}/diagnose diagnoses it")
        return run

    async def _job(self, arguments: Arguments) -> str:
        """The job's id; the job need not have a verdict yet."""
        id_: str = arguments["id"]
        run = await self.archive_workers.run(lambda: self.archive.find(id_)) if id_[:1] == "r" else None
        return id_ if run is None else run.job

    # -- runs and verdicts

    async def runs(self, _: Request, arguments: Arguments) -> Response:
        values = {name: value for name, value in arguments.items() if name in Filters.__struct_fields__}
        if values["family"] is not None:
            values["family"] = _family(values["family"]).code
        filters, limit, cursor = Filters(**values), arguments["limit"], arguments["cursor"]
        return _json(await self.archive_workers.run(lambda: self.archive.runs(filters, limit, cursor)))

    async def run(self, _: Request, arguments: Arguments) -> Response:
        run = await self._run(arguments)
        return _json(RunDetail(run=run, lineage=await self.archive_workers.run(lambda: self.archive.lineage(run))))

    async def latest(self, request: Request, arguments: Arguments) -> Response:
        run = await self._run(arguments)
        if run.verdict is None:
            raise HttpProblem(
                404, f"run {run.id} has no verdict yet", f"POST /api/v1/runs/{run.id}/diagnose diagnoses it"
            )
        return await self._document(request, run.verdict, "no-cache", arguments["format"])

    async def history(self, _: Request, arguments: Arguments) -> Response:
        run = await self._run(arguments)
        return _json(
            await self.archive_workers.run(
                lambda: self.archive.verdicts(run.id, arguments["limit"], arguments["cursor"])
            )
        )

    async def verdict(self, request: Request, arguments: Arguments) -> Response:
        """One document; it never changes."""
        return await self._document(request, arguments["id"], "private, max-age=86400, immutable", arguments["format"])

    async def _document(self, request: Request, id_: int, cache: str, format_: VerdictFormat | None) -> Response:
        info = await self.archive_workers.run(lambda: self.archive.verdict(id_))
        if info is None:
            raise HttpProblem(404, f"verdict {id_} not found", "GET /api/v1/runs/{id}/verdicts lists a run's verdicts")
        digest = info.digest if format_ in (None, "json") else f"{info.digest[:24]}{format_}"
        headers = _headers(RecordResult(run=info.run, verdict=id_, new=False), digest) | {"Cache-Control": cache}
        sent_tags = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if headers["ETag"] in sent_tags or "*" in sent_tags:
            return Response(status_code=304, headers=headers)
        body = await self.archive_workers.run(lambda: self.archive.document(id_))
        if body is None:
            raise HttpProblem(404, f"verdict {id_} was deleted because of its age")
        return _rendered(body, format_, headers)

    # -- diagnosis and evidence

    async def diagnose(self, _: Request, arguments: Arguments) -> Response:
        job = await self._job(arguments)
        try:
            body, record, reason = await self.diagnosis_workers.run(lambda: self._diagnose(job), ("verdict", job))
        except TaskTimeout:
            headers = {"Retry-After": "10"}
            text = (
                f"the diagnosis of job {job} is still running and will be recorded; repeat the request to wait for it"
            )
            return Response(encode({"status": "running", "detail": text}), 202, headers, "application/json")
        headers = {"Trackside-Not-Recorded": _header(reason)} if record is None else _headers(record)
        return _rendered(body, arguments["format"], {"Cache-Control": "no-store", **headers})

    def _diagnose(self, job: str) -> tuple[bytes, RecordResult | None, str]:
        """(document, record, reason why it was not recorded): a verdict is returned even if the archive is down."""
        with self.diagnoser.session(job) as session:
            verdict = session.verdict()
        body = published.encode(published.document(verdict, self.diagnoser.paths, self.diagnoser.queried, self.price))
        try:
            return body, self.archive.record(verdict, body, job=job), ""
        except ArchiveError as error:
            log.warning("the verdict on job %s was not recorded: %s", job, error)
            return body, None, str(error)

    async def evidence(self, _: Request, arguments: Arguments) -> Response:
        query, job = parse_query(arguments["query"]), await self._job(arguments)

        def ask() -> AnswerDoc:
            with self.diagnoser.session(job) as session:
                return answer_query(session.store, query, arguments["limit"])

        return _json(await self.diagnosis_workers.run(ask))

    async def verify(self, _: Request, arguments: Arguments) -> Response:
        id_ = arguments["id"]
        body = await self.archive_workers.run(lambda: self.archive.document(id_))
        info = await self.archive_workers.run(lambda: self.archive.verdict(id_))
        if body is None or info is None:
            raise HttpProblem(404, f"verdict {id_} not found", "GET /api/v1/runs/{id}/verdicts lists a run's verdicts")
        try:
            doc = published.decode(body)
        except msgspec.MsgspecError as error:
            raise HttpProblem(
                422, f"verdict {id_} has another schema version: {error}", "diagnose the run again"
            ) from error
        job = (await self._run({"id": info.run})).job

        def ask() -> list[CitationCheck]:
            with self.diagnoser.session(job, doc.run.as_of or doc.run.end) as session:
                return list(check(doc.cites, session.store))

        checks = await self.diagnosis_workers.run(ask, ("verify", id_))
        broken = [_broken_doc(citation) for citation in checks if not citation.holds]
        return _json(VerificationDoc(verdict=id_, cites=len(checks), holding=len(checks) - len(broken), broken=broken,
                                 dangling=published.missing_citations(doc)))  # fmt: skip

    async def jobs(self, _: Request, arguments: Arguments) -> Response:
        rows = await self.diagnosis_workers.run(self.diagnoser.runs, "jobs")
        rows = sorted(rows, key=lambda row: (row.start is not None, row.start or 0.0), reverse=True)
        return _json(JobsDoc(total=len(rows), jobs=[_job_doc(row) for row in rows[: arguments["limit"]]]))

    # -- failure families

    async def families(self, _: Request, __: Arguments) -> Response:
        return _json([FamilyDoc(code=family.code, id=family.id, title=family.title) for family in families()])

    async def family(self, _: Request, arguments: Arguments) -> Response:
        family = _family(arguments["code"], 404)
        asks = {
            f"{kind.__name__}.{name}": str(query)
            for kind in closure(family.facts)
            for name, query in derivation(kind).queries.items()
        }
        return _json(
            FamilyDetail(code=family.code, id=family.id, title=family.title, sections=family.sections(), asks=asks)
        )


def _family(name: str, status: int = 422) -> Family:
    family = find_family(name)
    if family is None:
        raise HttpProblem(status, f"unknown family {name!r}", "GET /api/v1/families lists them")
    return family


def _job_doc(row: RunSummary) -> JobDoc:
    return JobDoc(id=row.id, name=row.name, state=row.state, start=row.start, end=row.end, nodes=list(row.nodes),
                  n_gpus=row.n_gpus, planes=list(row.planes))  # fmt: skip


def _broken_doc(citation: CitationCheck) -> BrokenCitationDoc:
    return BrokenCitationDoc(id=citation.id, where=citation.cite.where, query=str(citation.cite.query),
                     was=published.plain(citation.cite.value),
                     now=published.plain(citation.now), problem=citation.problem)  # fmt: skip


def _rendered(body: bytes, format_: VerdictFormat | None, headers: dict[str, str]) -> Response:
    """A verdict's document in the form that was asked for."""
    if format_ in (None, "json"):
        return Response(body, headers=headers, media_type="application/json")
    try:
        doc = published.decode(body)
    except msgspec.ValidationError as error:
        raise HttpProblem(
            422, f"the verdict has another schema version: {error}", "diagnose the run again, or ask for format=json"
        ) from error
    if format_ == "markdown":
        return Response(markdown.render(doc), headers=headers, media_type="text/markdown; charset=utf-8")
    return Response(
        f"{replace_unsafe(brief.paragraph(doc))}\n", headers=headers, media_type="text/plain; charset=utf-8"
    )


def _json(value: object) -> Response:
    return Response(encode(value), headers={"Cache-Control": "no-cache"}, media_type="application/json")


def _headers(record: RecordResult, digest: str = "") -> dict[str, str]:
    headers = {"Trackside-Run": record.run, "Trackside-Verdict": str(record.verdict)}
    headers["Content-Location"] = f"/api/v1/verdicts/{record.verdict}"
    return {**headers, "ETag": f'W/"{digest[:32]}"'} if digest else headers


def _header(text: str) -> str:
    """The text as a single header line."""
    return "".join(char if 32 <= ord(char) < 127 else "?" for char in text)[:500]
