"""An HTTP server that asks another and may change what it says: the faults of servers, not of the network."""

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
"""(path, what was asked, the true answer) -> the answer that is given."""


class Rewriting(Server):
    """Stands before the server at ``behind``. ``rewrite`` changes its answers; ``changed`` counts those that it did."""

    def __init__(self, behind: str) -> None:
        super().__init__()
        self._behind = behind
        self._http = urllib3.PoolManager(retries=False, timeout=60, maxsize=8)
        self._lock = threading.Lock()
        self.rewrite: Rewrite = true
        self.changed = 0

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        """What the other says, rewritten."""
        if method == "POST":
            got = self._http.request_encode_body(method, self._behind + path, fields=params, encode_multipart=False)
        else:
            got = self._http.request_encode_url(method, self._behind + path, fields=params)
        was = Answer(got.status, got.data, got.headers.get("Content-Type", "text/plain"))
        told = self.rewrite(path, dict(params), was)
        with self._lock:
            self.changed += told != was
        return told

    def become(self, rewrite: Rewrite) -> None:
        """From now on answers are changed so."""
        self.rewrite, self.changed = rewrite, 0


@contextmanager
def rewriting(behind: str) -> Iterator[Rewriting]:
    """One before the server at this address, until the block ends."""
    server = Rewriting(behind)
    with running(server):
        yield server


# -- what is answered


def true(path: str, asked: Mapping[str, str], was: Answer) -> Answer:
    """As it is."""
    return was


def always(status: int, body: bytes = b"", **headers: str) -> Rewrite:
    """This, whatever is asked."""
    kind = "text/html" if body.startswith(b"<") else "text/plain"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda path, asked, was: Answer(status, body, kind, headers=named)


def first(count: int, spoilt: Rewrite) -> Rewrite:
    """The first answers so, and the others as they are."""
    left = iter(range(count))
    return lambda path, asked, was: was if next(left, None) is None else spoilt(path, asked, was)


def about(word: str, spoilt: Rewrite, *paths: str) -> Rewrite:
    """Only what is asked about something; with ``paths``, only there."""

    def rewrite(path: str, asked: Mapping[str, str], was: Answer) -> Answer:
        meant = word in asked.get("query", "").lower() and (not paths or path.rpartition("/")[2] in paths)
        return spoilt(path, asked, was) if meant else was

    return rewrite


def of_json(change: Callable[[str, Mapping[str, str], Any], None]) -> Rewrite:
    """Answers in JSON, changed in place."""

    def rewrite(path: str, asked: Mapping[str, str], was: Answer) -> Answer:
        if was.status >= 300:
            return was
        document = json.loads(was.body)
        before = deepcopy(document)
        change(path, asked, document)
        return was if document == before else Answer(was.status, json.dumps(document).encode(), was.type)

    return rewrite


def partial(path: str, asked: Mapping[str, str], told: Any) -> None:
    """What VictoriaMetrics says where one of its storage nodes is away."""
    told["isPartial"] = True


def warned(path: str, asked: Mapping[str, str], told: Any) -> None:
    """What Thanos says then."""
    told["warnings"] = ["No StoreAPIs matched for this query"]


def tenfold(path: str, asked: Mapping[str, str], told: Any) -> None:
    """Nine series of others beside each that was asked for and itself once more; points of other times, and twice."""
    data = told.get("data")
    if path.endswith("/series") and isinstance(data, list):
        told["data"] = [{**each, **_stranger(each, copy)} for each in data for copy in (*range(10), 0)]
    elif isinstance(data, dict) and isinstance(data.get("result"), list):
        for each in data["result"]:
            if "values" in each:
                each["values"] = _more(each["values"], 2 if path.endswith("_range") else 1)
        data["result"] = [
            {**each, "metric": {**each["metric"], **_stranger(each["metric"], copy)}}
            for each in data["result"]
            for copy in ((*range(10), 0) if each["metric"] else (0,))
        ]


def _stranger(labels: Mapping[str, str], copy: int) -> dict[str, str]:
    """What makes a series one of another node's, and of another job's."""
    other = {
        "Hostname": f"other{copy}",
        "node": f"other{copy}",
        "instance": f"other{copy}:9400",
        "job": f"{900 + copy}",
    }
    return {name: other[name] for name in other if name in labels} if copy else {}


def _more(points: list[list[Any]], times: int) -> list[list[Any]]:
    """Each so often, and some of before and after. Of samples, two at one time are two in every store."""
    before, after = [points[0][0] - 86400, "1e9"], [points[-1][0] + 86400, "1e9"]
    return [before, *(point for point in points for _ in range(times)), after]
