"""How one thing that can be asked over HTTP is declared: its route, its parameters and its description (OpenAPI 3.1,
from the declarations that the routes are made of) are one."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, Literal

import msgspec
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trackside.errors import CannotAsk, NoSuchRun, NothingReadable, SeveralRuns
from trackside.http.unavailable import SourceUnavailable
from trackside.serve.limits import Refused
from trackside.serve.problems import MEDIA_TYPE, Problem, ProblemDoc
from trackside.serve.workers import Busy, Slow
from trackside.stores.embedded.layout import StoreError
from trackside.stores.metadata.errors import ArchiveError

log = logging.getLogger(__name__)
Kind = Literal["text", "integer", "time"]
Asked = Mapping[str, Any]
"""The parameters' values by name; None for what was not given and has no default."""
Check = Callable[[Request], None]
"""Raises Refused for a request that may not pass."""
LONGEST = 500
"""Characters of a parameter that says nothing else."""
ZIP_FROM = 2048
_REF = "#/components/schemas/{name}"
EVERYWHERE = (401, 422, 500)
"""Statuses that any operation may be refused with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a path or a query string. ``most``: characters of a text, or the greatest integer."""

    name: str
    about: str
    kind: Kind = "text"
    within: Literal["path", "query"] = "query"
    required: bool = False
    default: int | None = None
    least: int = 0
    most: int = LONGEST
    empty: bool = False
    """Whether a text may have no characters."""
    known: Sequence[str] = ()
    """All that a text may be; none: anything."""

    def read(self, text: str) -> str | int | float:
        """The value of what was sent. Raises Problem."""
        if self.kind == "text":
            if not (0 < len(text) <= self.most or (self.empty and not text)) or not text.isprintable():
                raise Problem(422, f"{self.name} is 1 to {self.most:,} printable characters")
            if self.known and text not in self.known:
                raise Problem(422, f"no {self.name} {text[:40]!r}", f"known: {', '.join(self.known)}")
            return text
        if self.kind == "time":
            return _time(self.name, text)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and self.least <= int(text) <= self.most):
            raise Problem(422, f"{self.name} is a whole number from {self.least:,} to {self.most:,}, not {text[:40]!r}")
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. ``answers``: what a success is, as a type that msgspec describes, or a media type."""

    method: Literal["GET", "POST"]
    path: str
    id: str
    about: str
    answers: Any
    handle: Callable[[Any, Request, Asked], Awaitable[Response]]
    """Given the handlers that the routes are made for."""
    details: str = ""
    parameters: Sequence[Parameter] = ()
    problems: Sequence[int] = ()
    """The statuses that it may be refused with, beside 401, 422 and 500, which all may."""
    also: Mapping[int, str] = field(default_factory=dict)
    """Other statuses that are no refusal."""

    def route(self, handlers: object, check: Check | None) -> Route:

        async def endpoint(request: Request) -> Response:
            try:
                if check is not None:
                    check(request)
                return await self.handle(handlers, request, self._asked(request))
            except Exception as error:  # noqa: BLE001 - the last place where it can be made an answer
                return _problem(error, self.id).response()

        zipped = Middleware(GZipMiddleware, minimum_size=ZIP_FROM, compresslevel=5)
        return Route(self.path, endpoint, methods=[self.method], name=self.id, middleware=[zipped])

    def _asked(self, request: Request) -> Asked:
        given = request.query_params
        queried = [each.name for each in self.parameters if each.within == "query"]
        for name in given:
            if name not in queried:
                near = get_close_matches(name, queried, 1)
                raise Problem(422, f"no parameter {name[:40]!r} here",
                              f"{near[0]} is meant?" if near else f"known: {', '.join(queried) or 'none'}")  # fmt: skip
            if len(given.getlist(name)) > 1:
                raise Problem(422, f"{name} is given twice")
        asked: dict[str, Any] = {}
        for each in self.parameters:
            text = request.path_params[each.name] if each.within == "path" else given.get(each.name)
            if text is None and each.required:
                raise Problem(422, f"{each.name} is missing", f"add ?{each.name}=...")
            asked[each.name] = each.default if text is None else each.read(text)
        return asked


def _time(name: str, text: str) -> float:
    try:
        time = float(text)
    except ValueError:
        try:
            moment = dt.datetime.fromisoformat(text[:40])
            time = (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
        except (ValueError, OverflowError):
            time = float("nan")
    if not abs(time) < 1e12:
        raise Problem(422, f"{name} is no time: {text[:40]!r}", "write 2026-11-21T08:00:00Z or POSIX seconds")
    return time


def _problem(error: Exception, where: str) -> Problem:
    """What to answer in place of an exception."""
    match error:
        case Problem():
            return error
        case Refused():
            return Problem(error.status, str(error))
        case ArchiveError():
            return Problem.of_archive(error)
        case NoSuchRun() | NothingReadable():
            # What follows is for who sits at the machine: a command, and where the store lies.
            return Problem(
                404,
                str(error).partition("; 'trackside ")[0],
                "GET /api/v1/jobs lists the jobs of which there is evidence",
            )
        case CannotAsk():
            return Problem(422, str(error))
        case SeveralRuns():
            return Problem(409, f"several runs go by that: {', '.join(error.jobs[:20])}", "ask for one of them")
        case StoreError() | FileNotFoundError():
            return Problem(503, str(error), "", 30)
        case SourceUnavailable():
            return Problem(504 if error.kind == "timeout" else 502, str(error), "", 30)
        case Busy():
            return Problem(429, "as much as may be is being worked on", "try again later", 5)
        case Slow():
            return Problem(504, "it took too long", "ask for less, or try again", 10)
    log.error("%s failed", where, exc_info=error)
    return Problem(500, f"{where} failed: {type(error).__name__}", "the server's log has the details; please report it")


# -- the description


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The OpenAPI document; JSON Schema 2020-12 of every type under ``components``."""
    types = [each.answers for each in operations if not isinstance(each.answers, str)]
    found, components = msgspec.json.schema_components([*types, ProblemDoc], ref_template=_REF)
    schemas = iter(found)
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        schema = {} if isinstance(each.answers, str) else next(schemas)
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trackside",
            "version": version,
            "summary": "Why GPU training runs ended as they did: runs, verdicts and the evidence behind them.",
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(operation: Operation, schema: Mapping[str, Any]) -> dict[str, Any]:
    media = operation.answers if isinstance(operation.answers, str) else "application/json"
    responses: dict[str, Any] = {"200": {"description": "OK", "content": {media: {"schema": dict(schema)}}}}
    for status, about in operation.also.items():
        responses[str(status)] = {"description": about}
    for status in sorted({*operation.problems, *EVERYWHERE}):
        content = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="ProblemDoc")}}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    told = {
        "operationId": operation.id,
        "summary": operation.about,
        "parameters": [_parameter(each) for each in operation.parameters],
        "responses": responses,
    }
    return {**told, "description": operation.details} if operation.details else told


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any]
    match parameter.kind:
        case "integer":
            schema = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
        case "time":
            schema = {"type": "string"}
        case _:
            schema = {"type": "string", "minLength": 0 if parameter.empty else 1, "maxLength": parameter.most}
            if parameter.known:
                schema = {"type": "string", "enum": list(parameter.known)}
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.within,
        "required": parameter.required or parameter.within == "path",
        "description": parameter.about,
        "schema": schema,
    }
