"""Declares HTTP operations: the route, its parameters and its description (OpenAPI 3.1) come from one declaration."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, Literal

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trackside.errors import InvalidSiteRequest, NoSuchRun, NothingReadable, SeveralRuns, StoreError
from trackside.http.unavailable import SourceUnavailable
from trackside.serve.limits import RequestRefused
from trackside.serve.problems import MEDIA_TYPE, HttpProblem, ProblemDoc
from trackside.serve.workers import TaskTimeout, WorkersBusy
from trackside.show.schema import schema_components
from trackside.stores.metadata.errors import ArchiveError

log = logging.getLogger(__name__)
ParameterKind = Literal["text", "integer", "time"]
Arguments = Mapping[str, Any]
"""ApiParameter values by name; None for a missing parameter without default."""
Check = Callable[[Request], None]
"""Raises RequestRefused for an unauthorized request."""
MAX_TEXT_CHARS = 500
"""Maximum characters of a text parameter, unless it sets another."""
MIN_GZIP_BYTES = 2048
_REF = "#/components/schemas/{name}"
EVERYWHERE = (401, 422, 500)
"""Error statuses that any operation may return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParameter:
    """One parameter of a path or a query string. ``maximum``: characters of a text, or the largest integer."""

    name: str
    about: str
    kind: ParameterKind = "text"
    within: Literal["path", "query"] = "query"
    required: bool = False
    default: int | None = None
    minimum: int = 0
    maximum: int = MAX_TEXT_CHARS
    empty: bool = False
    """Whether a text may be empty."""
    allowed: Sequence[str] = ()
    """The allowed values of a text; empty: any."""

    def read(self, text: str) -> str | int | float:
        """Parse the sent value. Raises HttpProblem."""
        if self.kind == "text":
            if not (0 < len(text) <= self.maximum or (self.empty and not text)) or not text.isprintable():
                raise HttpProblem(422, f"{self.name} must be 1 to {self.maximum:,} printable characters")
            if self.allowed and text not in self.allowed:
                raise HttpProblem(422, f"unknown {self.name} {text[:40]!r}", f"known: {', '.join(self.allowed)}")
            return text
        if self.kind == "time":
            return _time(self.name, text)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and self.minimum <= int(text) <= self.maximum):
            raise HttpProblem(
                422, f"{self.name} must be an integer from {self.minimum:,} to {self.maximum:,}, not {text[:40]!r}"
            )
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. ``answers``: type of a successful response for msgspec, or a media type."""

    method: Literal["GET", "POST"]
    path: str
    id: str
    about: str
    answers: Any
    handle: Callable[[Any, Request, Arguments], Awaitable[Response]]
    """Called with the handlers object that the routes were made for."""
    details: str = ""
    parameters: Sequence[ApiParameter] = ()
    problems: Sequence[int] = ()
    """Error statuses it may return, besides 401, 422 and 500, which all may."""
    also: Mapping[int, str] = field(default_factory=dict)
    """Other statuses that are not errors."""

    def route(self, handlers: object, check: Check | None) -> Route:

        async def endpoint(request: Request) -> Response:
            try:
                if check is not None:
                    check(request)
                return await self.handle(handlers, request, self._arguments(request))
            except Exception as error:  # noqa: BLE001 - the last place where it can become a response
                return _problem(error, self.id).response()

        zipped = Middleware(GZipMiddleware, minimum_size=MIN_GZIP_BYTES, compresslevel=5)
        return Route(self.path, endpoint, methods=[self.method], name=self.id, middleware=[zipped])

    def _arguments(self, request: Request) -> Arguments:
        params = request.query_params
        allowed_names = [parameter.name for parameter in self.parameters if parameter.within == "query"]
        for name in params:
            if name not in allowed_names:
                close_names = get_close_matches(name, allowed_names, 1)
                known = f"known: {', '.join(allowed_names)}" if allowed_names else "this operation takes no parameters"
                remedy = f"did you mean {close_names[0]}?" if close_names else known
                raise HttpProblem(422, f"unknown parameter {name[:40]!r}", remedy)
            if len(params.getlist(name)) > 1:
                raise HttpProblem(422, f"{name} is given more than once")
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            text = request.path_params[parameter.name] if parameter.within == "path" else params.get(parameter.name)
            if text is None and parameter.required:
                raise HttpProblem(422, f"{parameter.name} is missing", f"add ?{parameter.name}=...")
            values[parameter.name] = parameter.default if text is None else parameter.read(text)
        return values


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
        raise HttpProblem(422, f"{name} is not a time: {text[:40]!r}", "write 2026-11-21T08:00:00Z or POSIX seconds")
    return time


def _problem(error: Exception, operation: str) -> HttpProblem:
    """The problem response for an exception."""
    match error:
        case HttpProblem():
            return error
        case RequestRefused():
            return HttpProblem(error.status, str(error))
        case ArchiveError():
            return HttpProblem.of_archive(error)
        case NoSuchRun() | NothingReadable():
            # The rest of the message is for the user of the command line: a command, and where the store is.
            return HttpProblem(
                404,
                str(error).partition("; 'trackside ")[0],
                "GET /api/v1/jobs lists the jobs that have evidence",
            )
        case InvalidSiteRequest():
            return HttpProblem(422, str(error))
        case SeveralRuns():
            return HttpProblem(409, f"several runs match: {', '.join(error.jobs[:20])}", "use the id of one of them")
        case StoreError() | FileNotFoundError():
            return HttpProblem(503, str(error), "", 30)
        case SourceUnavailable():
            return HttpProblem(504 if error.kind == "timeout" else 502, str(error), "", 30)
        case WorkersBusy():
            return HttpProblem(429, "too many requests in progress", "try again later", 5)
        case TaskTimeout():
            return HttpProblem(504, "the request took too long", "ask for less, or try again", 10)
    log.error("%s failed", operation, exc_info=error)
    return HttpProblem(
        500, f"{operation} failed: {type(error).__name__}", "see the server's log for details; please report it"
    )


# -- the description


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The OpenAPI document; JSON Schema 2020-12 of every type under ``components``."""
    types = [operation.answers for operation in operations if not isinstance(operation.answers, str)]
    type_schemas, components = schema_components([*types, ProblemDoc], _REF)
    schemas = iter(type_schemas)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        schema = {} if isinstance(operation.answers, str) else next(schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trackside",
            "version": version,
            "summary": "Why GPU training runs failed: runs, verdicts and the evidence behind them.",
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
    description = {
        "operationId": operation.id,
        "summary": operation.about,
        "parameters": [_parameter(parameter) for parameter in operation.parameters],
        "responses": responses,
    }
    return {**description, "description": operation.details} if operation.details else description


def _parameter(parameter: ApiParameter) -> dict[str, Any]:
    schema: dict[str, Any]
    match parameter.kind:
        case "integer":
            schema = {"type": "integer", "minimum": parameter.minimum, "maximum": parameter.maximum}
        case "time":
            schema = {"type": "string"}
        case _:
            schema = {"type": "string", "minLength": 0 if parameter.empty else 1, "maxLength": parameter.maximum}
            if parameter.allowed:
                schema = {"type": "string", "enum": list(parameter.allowed)}
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.within,
        "required": parameter.required or parameter.within == "path",
        "description": parameter.about,
        "schema": schema,
    }
