"""What each path of the HTTP API does: looks up the archive, judges on demand, asks for evidence.

A verdict is judged while its caller waits, since most take a second or two and the document is what was asked for.
One that takes longer than the caller is made to wait is 202: it goes on, is recorded, and asking again joins it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trackside.facts.fact import closure, derivation
from trackside.families import families, find_family
from trackside.family import Family
from trackside.runs.listing import Listed
from trackside.serve.answers import AnswerDoc, answered, parsed
from trackside.serve.diagnoser import Diagnoser
from trackside.serve.operations import Asked
from trackside.serve.problems import Problem, encoded
from trackside.serve.workers import Slow, Workers
from trackside.settings.price import NO_PRICE, Price
from trackside.show import document as published
from trackside.stores.metadata.archive import Archive
from trackside.stores.metadata.errors import ArchiveError
from trackside.stores.metadata.rows import ArchivedRun, Filters, Lineage, RecordResult
from trackside.verify import Checked, check

log = logging.getLogger(__name__)


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run, what it continued and what continued it."""

    run: ArchivedRun
    lineage: Lineage


class JobDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A job of which there is evidence; times are POSIX seconds, ``planes`` what there is something of it on."""

    id: str
    name: str | None
    state: str | None
    start: float | None
    end: float | None
    nodes: list[str]
    n_gpus: int | None
    planes: list[str]


class JobsDoc(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, the last to start first. ``total`` counts all."""

    total: int
    jobs: list[JobDoc]


class BrokenDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A citation that no longer gives the same value. ``problem``: why it gives none."""

    id: str
    where: str
    query: str
    was: published.Json
    now: published.Json
    problem: str


class VerifiedDoc(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a verdict's citations were asked again, and those that do not hold. ``dangling``: ids that a sentence
    cites and the document does not hold."""

    verdict: int
    cites: int
    holding: int
    broken: list[BrokenDoc]
    dangling: list[str]


class FamilyDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A failure family."""

    code: str
    id: str
    title: str


class FamilyDetail(FamilyDoc, frozen=True, kw_only=True):
    """A failure family: its page by sections, and the questions behind the facts that it rests on."""

    sections: dict[str, str]
    asks: dict[str, str]


@dataclass(slots=True)
class Handlers:
    """What is asked. ``judging`` has the threads of verdicts and evidence, ``looking`` those of the archive."""

    archive: Archive
    diagnoser: Diagnoser
    judging: Workers = field(default_factory=lambda: Workers("judging", 2, 30, 60.0))
    looking: Workers = field(default_factory=lambda: Workers("looking", 8, 200, 30.0))
    price: Price = NO_PRICE

    def close(self) -> None:
        self.judging.close()
        self.looking.close()

    async def _run(self, asked: Asked) -> ArchivedRun:
        id_, cluster = asked["id"], asked.get("cluster")
        found = await self.looking.run(lambda: self.archive.find(id_, cluster))
        if found is None:
            raise Problem(404, f"no run {id_} was recorded", f"POST /api/v1/runs/{id_}/diagnose judges it")
        return found

    async def _job(self, asked: Asked) -> str:
        """The job's id, of a job that may not have been recorded."""
        id_: str = asked["id"]
        found = await self.looking.run(lambda: self.archive.find(id_)) if id_[:1] == "r" else None
        return id_ if found is None else found.job

    # -- runs and verdicts

    async def runs(self, _: Request, asked: Asked) -> Response:
        told = {name: value for name, value in asked.items() if name in Filters.__struct_fields__}
        if told["family"] is not None:
            told["family"] = _family(told["family"]).code
        filters = Filters(**told)
        return _json(await self.looking.run(lambda: self.archive.runs(filters, asked["limit"], asked["cursor"])))

    async def run(self, _: Request, asked: Asked) -> Response:
        run = await self._run(asked)
        return _json(RunDetail(run=run, lineage=await self.looking.run(lambda: self.archive.lineage(run))))

    async def latest(self, request: Request, asked: Asked) -> Response:
        run = await self._run(asked)
        if run.verdict is None:
            raise Problem(404, f"{run.id} has no verdict yet", f"POST /api/v1/runs/{run.id}/diagnose judges it")
        return await self._document(request, run.verdict, "no-cache")

    async def history(self, _: Request, asked: Asked) -> Response:
        run = await self._run(asked)
        return _json(await self.looking.run(lambda: self.archive.verdicts(run.id, asked["limit"], asked["cursor"])))

    async def verdict(self, request: Request, asked: Asked) -> Response:
        """One document, which never changes."""
        return await self._document(request, asked["id"], "private, max-age=86400, immutable")

    async def _document(self, request: Request, id_: int, cache: str) -> Response:
        about = await self.looking.run(lambda: self.archive.verdict(id_))
        if about is None:
            raise Problem(404, f"no verdict {id_}", "GET /api/v1/runs/{id}/verdicts lists those of a run")
        headers = _headers(RecordResult(run=about.run, verdict=id_, new=False), about.digest) | {"Cache-Control": cache}
        had = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if headers["ETag"] in had or "*" in had:
            return Response(status_code=304, headers=headers)
        body = await self.looking.run(lambda: self.archive.document(id_))
        if body is None:
            raise Problem(404, f"verdict {id_} was deleted for its age")
        return Response(body, headers=headers, media_type="application/json")

    # -- judging and evidence

    async def diagnose(self, _: Request, asked: Asked) -> Response:
        job = await self._job(asked)
        try:
            body, kept, lost = await self.judging.run(lambda: self._judge(job), ("verdict", job))
        except Slow:
            headers = {"Retry-After": "10"}
            text = f"job {job} is still being judged and will be recorded: ask again, or later for its verdict"
            return Response(encoded({"status": "running", "detail": text}), 202, headers, "application/json")
        headers = {"Trackside-Not-Recorded": _header(lost)} if kept is None else _headers(kept)
        return Response(body, headers={"Cache-Control": "no-store", **headers}, media_type="application/json")

    def _judge(self, job: str) -> tuple[bytes, RecordResult | None, str]:
        """The document; where it was recorded, or why it was not: a verdict is told though the archive is down."""
        with self.diagnoser.session(job) as session:
            verdict = session.verdict()
        body = published.encode(published.document(verdict, self.diagnoser.paths, self.diagnoser.asked, self.price))
        try:
            return body, self.archive.record(verdict, body, job=job), ""
        except ArchiveError as error:
            log.warning("the verdict on job %s was not recorded: %s", job, error)
            return body, None, str(error)

    async def evidence(self, _: Request, asked: Asked) -> Response:
        query, job = parsed(asked["query"]), await self._job(asked)

        def ask() -> AnswerDoc:
            with self.diagnoser.session(job) as session:
                return answered(session.store, query, asked["limit"])

        return _json(await self.judging.run(ask))

    async def verify(self, _: Request, asked: Asked) -> Response:
        id_ = asked["id"]
        body = await self.looking.run(lambda: self.archive.document(id_))
        about = await self.looking.run(lambda: self.archive.verdict(id_))
        if body is None or about is None:
            raise Problem(404, f"no verdict {id_}", "GET /api/v1/runs/{id}/verdicts lists those of a run")
        try:
            doc = published.decode(body)
        except msgspec.MsgspecError as error:
            raise Problem(422, f"verdict {id_} is of another version: {error}", "judge the run again") from error
        job = (await self._run({"id": about.run})).job

        def ask() -> list[Checked]:
            with self.diagnoser.session(job, doc.run.as_of or doc.run.end) as session:
                return list(check(doc.cites, session.store))

        checked = await self.judging.run(ask, ("verify", id_))
        broken = [_broken(each) for each in checked if not each.holds]
        return _json(VerifiedDoc(verdict=id_, cites=len(checked), holding=len(checked) - len(broken), broken=broken,
                                 dangling=published.uncited(doc)))  # fmt: skip

    async def jobs(self, _: Request, asked: Asked) -> Response:
        rows = await self.judging.run(self.diagnoser.runs, "jobs")
        rows = sorted(rows, key=lambda row: (row.start is not None, row.start or 0.0), reverse=True)
        return _json(JobsDoc(total=len(rows), jobs=[_job_doc(row) for row in rows[: asked["limit"]]]))

    # -- what is known beforehand

    async def families(self, _: Request, __: Asked) -> Response:
        return _json([FamilyDoc(code=each.code, id=each.id, title=each.title) for each in families()])

    async def family(self, _: Request, asked: Asked) -> Response:
        found = _family(asked["code"], 404)
        asks = {
            f"{kind.__name__}.{name}": str(query)
            for kind in closure(found.facts)
            for name, query in derivation(kind).asks.items()
        }
        return _json(
            FamilyDetail(code=found.code, id=found.id, title=found.title, sections=found.sections(), asks=asks)
        )


def _family(name: str, status: int = 422) -> Family:
    found = find_family(name)
    if found is None:
        raise Problem(status, f"no family {name!r}", "GET /api/v1/families lists them")
    return found


def _job_doc(row: Listed) -> JobDoc:
    return JobDoc(id=row.id, name=row.name, state=row.state, start=row.start, end=row.end, nodes=list(row.nodes),
                  n_gpus=row.n_gpus, planes=list(row.planes))  # fmt: skip


def _broken(each: Checked) -> BrokenDoc:
    return BrokenDoc(id=each.id, where=each.cite.where, query=str(each.cite.query),
                     was=published.plain(each.cite.value),
                     now=published.plain(each.now), problem=each.problem)  # fmt: skip


def _json(value: object) -> Response:
    return Response(encoded(value), headers={"Cache-Control": "no-cache"}, media_type="application/json")


def _headers(kept: RecordResult, digest: str = "") -> dict[str, str]:
    told = {"Trackside-Run": kept.run, "Trackside-Verdict": str(kept.verdict)}
    told["Content-Location"] = f"/api/v1/verdicts/{kept.verdict}"
    return {**told, "ETag": f'W/"{digest[:32]}"'} if digest else told


def _header(text: str) -> str:
    """One line that a header may hold."""
    return "".join(each if 32 <= ord(each) < 127 else "?" for each in text)[:500]
