"""An HTTP server that forwards requests and may change the answers: faults of servers, not of the network."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import urllib3

from tests.stores.logs.servers import Answer, Params, Server, running

LOGIN = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in</body></html>"
JSON = {"Content-Type": "application/json"}
Rewrite = Callable[[str, Mapping[str, str], Answer], Answer]
"""(path, parameters of the request, the real answer) -> the answer to send."""


class RewritingServer(Server):
    """Forwards to the server at ``upstream``. ``rewrite`` changes its answers; ``changed`` counts the changed ones."""

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self._upstream = upstream
        self._http = urllib3.PoolManager(retries=False, timeout=60, maxsize=8)
        self._lock = threading.Lock()
        self.rewrite: Rewrite = unchanged
        self.changed = 0

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        """The upstream server's answer, rewritten."""
        if method == "POST":
            response = self._http.request_encode_body(
                method, self._upstream + path, fields=params, encode_multipart=False
            )
        else:
            response = self._http.request_encode_url(method, self._upstream + path, fields=params)
        original = Answer(response.status, response.data, response.headers.get("Content-Type", "text/plain"))
        rewritten = self.rewrite(path, dict(params), original)
        with self._lock:
            self.changed += rewritten != original
        return rewritten

    def use(self, rewrite: Rewrite) -> None:
        """Change answers with this function from now on."""
        self.rewrite, self.changed = rewrite, 0


@contextmanager
def rewriting_server(upstream: str) -> Iterator[RewritingServer]:
    """A server that forwards to the one at this address while the block runs."""
    server = RewritingServer(upstream)
    with running(server):
        yield server


# -- rewrites


def unchanged(path: str, params: Mapping[str, str], answer: Answer) -> Answer:
    """The real answer."""
    return answer


def always(status: int, body: bytes = b"", **headers: str) -> Rewrite:
    """This answer to every request."""
    kind = "text/html" if body.startswith(b"<") else "text/plain"
    answer_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda path, params, answer: Answer(status, body, kind, headers=answer_headers)


def for_first(count: int, failure: Rewrite) -> Rewrite:
    """Rewrite only the first ``count`` answers."""
    remaining = iter(range(count))
    return lambda path, params, answer: answer if next(remaining, None) is None else failure(path, params, answer)


def for_queries_with(word: str, failure: Rewrite, *paths: str) -> Rewrite:
    """Rewrite only answers to queries that contain ``word``; with ``paths``, only at these endpoints."""

    def rewrite(path: str, params: Mapping[str, str], answer: Answer) -> Answer:
        is_target = word in params.get("query", "").lower() and (not paths or path.rpartition("/")[2] in paths)
        return failure(path, params, answer) if is_target else answer

    return rewrite


def of_json(change: Callable[[str, Mapping[str, str], Any], None]) -> Rewrite:
    """Rewrite answers in JSON; ``change`` edits the document in place."""

    def rewrite(path: str, params: Mapping[str, str], answer: Answer) -> Answer:
        if answer.status >= 300:
            return answer
        document = json.loads(answer.body)
        original = deepcopy(document)
        change(path, params, document)
        return answer if document == original else Answer(answer.status, json.dumps(document).encode(), answer.type)

    return rewrite


def partial(path: str, params: Mapping[str, str], document: Any) -> None:
    """The mark that VictoriaMetrics sets when one of its storage nodes is down."""
    document["isPartial"] = True


def warned(path: str, params: Mapping[str, str], document: Any) -> None:
    """The warning that Thanos gives when a store is down."""
    document["warnings"] = ["No StoreAPIs matched for this query"]


def tenfold(path: str, params: Mapping[str, str], document: Any) -> None:
    """Add nine foreign series and a duplicate to each series; add points outside the range, and duplicate points."""
    data = document.get("data")
    if path.endswith("/series") and isinstance(data, list):
        document["data"] = [
            {**series, **_labels_of_others(series, copy)} for series in data for copy in (*range(10), 0)
        ]
    elif isinstance(data, dict) and isinstance(data.get("result"), list):
        for series in data["result"]:
            if "values" in series:
                series["values"] = _with_other_points(series["values"], 2 if path.endswith("_range") else 1)
        data["result"] = [
            {**series, "metric": {**series["metric"], **_labels_of_others(series["metric"], copy)}}
            for series in data["result"]
            for copy in ((*range(10), 0) if series["metric"] else (0,))
        ]


def _labels_of_others(labels: Mapping[str, str], copy: int) -> dict[str, str]:
    """Labels that assign a copy of a series to another node and job."""
    other = {
        "Hostname": f"other{copy}",
        "node": f"other{copy}",
        "instance": f"other{copy}:9400",
        "job": f"{900 + copy}",
    }
    return {name: other[name] for name in other if name in labels} if copy else {}


def _with_other_points(points: list[list[Any]], times: int) -> list[list[Any]]:
    """Each point this many times, and points before and after. Stores return two samples of one time as two."""
    before, after = [points[0][0] - 86400, "1e9"], [points[-1][0] + 86400, "1e9"]
    return [before, *(point for point in points for _ in range(times)), after]
