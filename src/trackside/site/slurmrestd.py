"""Slurm queried through slurmrestd, over HTTP(S) or a unix socket, by the newest API version that the readers know."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from trackside.http.client import HttpClient
from trackside.http.connections import time_limit
from trackside.http.options import HttpOptions
from trackside.http.unavailable import SourceUnavailable, plain, refusal
from trackside.site.slurm_options import SlurmOptions
from trackside.site.slurm_replies import Replies, Reply, Slurm, failed_row, until_failure

NEWEST, OLDEST = 45, 37
"""API versions v0.0.NN that the readers know; tried from the newest down if the server gives no list."""
MAX_ERROR_BYTES = 1 << 14
"""Maximum bytes read of an error response."""
MAX_SINGLE_NODE_QUERIES = 16
"""Up to this many nodes are queried one by one; for more, all of the cluster's in one request."""
_UNKNOWN = re.compile(r"Invalid job id|Nothing found", re.IGNORECASE)
"""Not "Unable to find JobId": 22.05 says that for every failure."""
_OFFERED = re.compile(rb"\\?/(slurm(?:db)?)\\?/v0\.0\.(\d{1,3})\\?/")


class SlurmRest(Slurm):
    """One cluster, through slurmrestd. Raises ValueError for an unusable URL or certificate."""

    cluster = ""

    def __init__(self, options: SlurmOptions) -> None:
        self._server = _server(options)
        self._versions: dict[str, list[int]] | None = None

    def accounting(self, ids: Sequence[str]) -> Replies:
        return until_failure(self._query("slurmdb", f"job/{quote(id_)}") for id_ in ids)

    def controller(self, id_: str) -> Replies:
        return self._query("slurm", f"job/{quote(id_)}")

    def steps(self, id_: str) -> Replies:
        """slurmrestd has no steps."""
        return []

    def nodes(self, names: Sequence[str]) -> Replies:
        if len(names) > MAX_SINGLE_NODE_QUERIES:
            return self._query("slurm", "nodes")
        return until_failure(self._query("slurm", f"node/{quote(name, safe='')}") for name in names)

    def jobs_named(self, name: str, user: str, since: float, until: float) -> Replies:
        parameters = f"?job_name={quote(name)}&users={quote(user)}&start_time={since:.0f}&end_time={until:.0f}"
        return self._query("slurmdb", "jobs", parameters)

    def script(self, id_: str) -> str:
        """slurmrestd has no batch scripts."""
        return ""

    def _query(self, part: str, resource: str, query: str = "") -> Replies:
        """The first answer, from the newest version down; empty if there is no such thing."""
        label = f"slurmrestd /{part}/{resource}"
        try:
            for version in self._offered_versions()[part]:
                path = f"/{part}/v0.0.{version}/{resource}"
                try:
                    data = self._server.get(path + query)
                except SourceUnavailable as error:
                    if _UNKNOWN.search(str(error)):
                        return []
                    if "answered 404" in str(error):
                        continue  # the server does not support this version
                    raise
                self._offered_versions()[part] = [version]
                return [] if _is_unknown(data) else [Reply(f"slurmrestd {path}", data)]
        except SourceUnavailable as error:
            return [failed_row(label, error, _REMEDY.get(error.kind, ""))]
        none = SourceUnavailable(
            "refused", f"{self._server.name} supports none of the APIs v0.0.{OLDEST} to v0.0.{NEWEST}"
        )
        return [failed_row(label, none, "is it slurmrestd, and are its openapi plugins for slurm and slurmdb loaded?")]

    def _offered_versions(self) -> dict[str, list[int]]:
        """API -> its versions to try, the newest first. Raises SourceUnavailable if the server cannot be reached."""
        if self._versions is None:
            all_versions = range(NEWEST, OLDEST - 1, -1)
            try:
                matches = _OFFERED.findall(self._server.get("/openapi/v3"))
                offered = {(part.decode(), int(number)) for part, number in matches}
            except SourceUnavailable as error:
                if error.kind in ("unreachable", "timeout", "unauthorized"):
                    raise
                offered = set()
            self._versions = {
                part: [version for version in all_versions if (part, version) in offered] or list(all_versions)
                for part in ("slurm", "slurmdb")
            }
        return self._versions


_REMEDY = {
    "unauthorized": "set slurm.user, and slurm.token_file to a file with a fresh token of that user ('scontrol token')",
}


def _is_unknown(data: bytes) -> bool:
    """Whether an answer says that there is no such job. Any other error is reported by the reader."""
    try:
        answer = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    errors: Any = answer.get("errors") if isinstance(answer, dict) else None
    if not errors:
        return isinstance(answer, dict) and answer.get("jobs") == []
    return not answer.get("jobs") and _UNKNOWN.search(str(errors)[:4000]) is not None


class _Http:
    """A server at an HTTP address."""

    def __init__(self, options: SlurmOptions, headers: dict[str, str]) -> None:
        self._endpoint = HttpClient(
            HttpOptions(
                url=options.url, headers=headers, ca=options.ca, cert=options.cert, key=options.key,
                verify=options.verify, timeout_s=options.timeout_s, deadline_s=max(60.0, 3 * options.timeout_s),
                retries=1, max_answer_bytes=options.max_answer_bytes,
            )
        )  # fmt: skip
        self.name = self._endpoint.name

    def get(self, path: str) -> bytes:
        """The body. Raises SourceUnavailable."""
        return self._endpoint.request("GET", path, headers={"Accept": "application/json"}).body


class _UnixConnection(urllib3.connection.HTTPConnection):
    """HTTP over a unix socket, whose path replaces the host."""

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(self.socket_path)
        except OSError:
            connection.close()
            raise
        self.open_socket = connection
        return connection

    def shut(self) -> None:
        """Stop reading. The response may have taken over the socket."""
        if self.open_socket is not None:
            self.open_socket.shutdown(socket.SHUT_RDWR)

    socket_path = ""
    open_socket: socket.socket | None = None


class _Unix:
    """A server at a unix socket. It knows the calling user, so no token is needed (rest_auth/local)."""

    def __init__(self, path: str, options: SlurmOptions, headers: dict[str, str]) -> None:
        self.name = f"unix:{path}"
        self._path = path
        self._max_bytes, self._timeout = options.max_answer_bytes, options.timeout_s
        self._headers = {"Accept": "application/json", **headers}

    def get(self, path: str) -> bytes:
        """The body. Raises SourceUnavailable."""
        connection = _UnixConnection("localhost", timeout=self._timeout)
        connection.socket_path = self._path
        try:
            with time_limit(self._timeout, connection.shut), closing(connection):
                connection.request("GET", path, headers=self._headers, preload_content=False)
                response = connection.getresponse()
                body: bytes = response.read(MAX_ERROR_BYTES if response.status >= 300 else self._max_bytes + 1)
        except (TimeoutError, urllib3.exceptions.TimeoutError):
            raise SourceUnavailable("timeout", f"{self.name} did not answer within {self._timeout:g} s") from None
        except (HTTPError, HTTPException, OSError) as error:
            cause = next((part for part in (error, *error.args) if isinstance(part, OSError)), None)
            message = cause.strerror if cause is not None and cause.strerror else plain(str(error))
            raise SourceUnavailable("unreachable", f"cannot query {self.name}: {message}") from None
        if response.status >= 300:
            raise refusal(f"{self.name}{path.partition('?')[0]}", response.status, {}, body)
        if len(body) > self._max_bytes:
            raise SourceUnavailable("too_large", f"{self.name} sent more than {self._max_bytes:,} bytes")
        return body


def _server(options: SlurmOptions) -> _Http | _Unix:
    headers = {"X-SLURM-USER-NAME": options.user} if options.user else {}
    if options.token:
        headers["X-SLURM-USER-TOKEN"] = options.token
    if options.url.startswith("unix:"):
        return _Unix(options.url.removeprefix("unix:").removeprefix("//"), options, headers)
    return _Http(options, headers)
