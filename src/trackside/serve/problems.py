"""Errors over HTTP: problem details (RFC 9457), with a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trackside.errors import TracksideError
from trackside.stores.metadata.errors import ArchiveError, ArchiveErrorKind

MEDIA_TYPE = "application/problem+json"
_ARCHIVE: Mapping[ArchiveErrorKind, int] = {
    "unreachable": 503,
    "busy": 503,
    "newer": 503,
    "refused": 422,
    "ambiguous": 409,
}


class ProblemDoc(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed (RFC 9457)."""

    type: str
    """The kind of problem as a URN, such as urn:trackside:not-found."""
    title: str
    """The status in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What happened."""
    remedy: str
    """What may help; empty if nothing is known."""


class HttpProblem(TracksideError):
    """An error to be returned as the response."""

    def __init__(self, status: int, detail: str, remedy: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.remedy, self.retry_after_s = status, detail, remedy, retry_after_s

    @classmethod
    def of_archive(cls, error: ArchiveError) -> HttpProblem:
        """The problem for an archive error: a temporary one is 503, with a time to retry."""
        detail, _, remedy = str(error).rpartition("; ")
        status = _ARCHIVE[error.kind]
        return cls(status, detail or remedy, remedy if detail else "", 5 if status == 503 else None)

    def response(self) -> Response:
        title = HTTPStatus(self.status).phrase
        name = title.lower().replace(" ", "-")
        body = ProblemDoc(type=f"urn:trackside:{name}", title=title, status=self.status, detail=self.detail,
                          remedy=self.remedy)  # fmt: skip
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(encode(body), self.status, headers, MEDIA_TYPE)


async def not_found(request: Request, error: Exception) -> Response:
    """Response for unknown paths and methods: below ``/api/`` in the API's format."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    headers = error.headers if isinstance(error, HTTPException) else None
    if not request.url.path.startswith("/api/"):
        return PlainTextResponse(f"{HTTPStatus(status).phrase}\n", status, headers)
    detail = f"no such path: {request.url.path[:200]}" if status == 404 else f"{request.method} is not supported here"
    response = HttpProblem(status, detail, "GET /api/v1/openapi.json lists all operations").response()
    response.headers.update(headers or {})
    return response


def encode(value: object) -> bytes:
    """JSON of a value that may contain foreign text: invalid Unicode becomes question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_with_valid_text(msgspec.to_builtins(value)))


def _with_valid_text(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_with_valid_text(name): _with_valid_text(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_valid_text(item) for item in value]
    return value
