"""Log stores for tests, none of them real: stand-ins of our own for Loki, VictoriaLogs and Elasticsearch, over HTTP.

Those of Loki and VictoriaLogs are held to answers recorded of real ones (test_recorded.py). That of Elasticsearch is
held to its documentation alone: no real Elasticsearch or OpenSearch was ever asked. A question that a server
doesn't know is kept in ``unexpected`` and fails the test that asked it.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

SECOND = 1_000_000_000
MONTH_S = 30 * 86400 + 3600
"""Loki's own limit on a question's range."""
Params = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line as it is loaded. ``more``: structured metadata, which is no label of a stream."""

    time_ns: int
    text: str
    labels: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Answer:
    """What goes back. ``cut``: bytes after which the connection is dropped; ``drip``: seconds between single bytes."""

    status: int
    body: bytes
    type: str = "application/json"
    cut: int | None = None
    drip: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


def refused(text: str, status: int = 400) -> Answer:
    return Answer(status, text.encode(), "text/plain; charset=utf-8")


class Server:
    """What all share. ``spoil`` may change the answer to the n-th request (from 1)."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = list(entries)
        self.unexpected: list[str] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.spoil: Callable[[int, str, Answer], Answer] = lambda number, path, answer: answer
        self.url = ""

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        raise NotImplementedError

    def unknown(self, what: str) -> Answer:
        self.unexpected.append(what)
        return refused(f"unexpected: {what}", 500)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server at its ``url``, until the block ends; then no question may have been unexpected."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            params = parse_qsl(parts.query, keep_blank_values=True)
            if "urlencoded" in (self.headers.get("Content-Type") or ""):
                params += parse_qsl(body.decode(), keep_blank_values=True)
            server.asked.append((parts.path, dict(params)))
            got = server.answer(self.command, parts.path, params, body)
            self._send(server.spoil(len(server.asked), parts.path, got))

        do_GET = do_POST = do_DELETE = _serve

        def _send(self, got: Answer) -> None:
            self.send_response(got.status)
            self.send_header("Content-Type", got.type)
            self.send_header("Content-Length", str(len(got.body)))
            for name, value in got.headers.items():
                self.send_header(name, value)
            self.end_headers()
            whole = got.body if got.cut is None else got.body[: got.cut]
            try:
                if got.drip:
                    for place in range(len(whole)):
                        self.wfile.write(whole[place : place + 1])
                        self.wfile.flush()
                        time.sleep(got.drip)
                else:
                    self.wfile.write(whole)
            except OSError:
                return  # the client has gone
            self.close_connection = got.cut is not None

        def log_message(self, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{listener.server_port}"
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
    assert server.unexpected == []


# -- Loki

_SELECTOR = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}\s*(.*)', re.DOTALL)
_MATCHER = re.compile(r'\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")\s*(?:,|$)')
_STAGE = re.compile(r'\|\s*(?:(~|=)\s*("(?:[^"\\]|\\.)*")|(\w+)\s*=\s*("(?:[^"\\]|\\.)*"))\s*')


def matchers_of(text: str) -> list[tuple[str, str, str]]:
    """The matchers of a selector's inside, all of it; ValueError for what is none."""
    found, place = [], 0
    while place < len(text.rstrip()):
        match = _MATCHER.match(text, place)
        if match is None:
            raise ValueError(f"parse error: {text[place:]!r}")
        found.append((match[1], match[2], json.loads(match[3])))
        place = match.end()
    return found


def meets(labels: Mapping[str, str], matchers: list[tuple[str, str, str]]) -> bool:
    tests: dict[str, Callable[[str, str], bool]] = {
        "=": lambda value, wanted: value == wanted,
        "!=": lambda value, wanted: value != wanted,
        "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
        "!~": lambda value, wanted: re.fullmatch(wanted, value) is None,
    }
    return all(tests[how](labels.get(name, ""), wanted) for name, how, wanted in matchers)


class LokiServer(Server):
    """``most_entries`` and ``longest_s`` are its limits."""

    def __init__(self, *entries: Entry, most_entries: int = 5000, longest_s: int = MONTH_S) -> None:
        super().__init__(*entries)
        self.most_entries, self.longest_s = most_entries, longest_s

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        asked = dict(params)
        what = path.removeprefix("/loki/api/v1/")
        if method != "GET" or not re.fullmatch(r"labels|label/\w+/values|series|query_range", what):
            return refused("404 page not found\n", 404)
        start, end = int(asked.get("start", 0)), int(asked.get("end", 0))
        if end <= start:
            return refused("end timestamp must not be before or equal to start time")
        if end - start > self.longest_s * SECOND:
            length, limit = _go(end - start), "30d1h" if self.longest_s == MONTH_S else f"{self.longest_s}s"
            return refused(f"the query time range exceeds the limit (query length: {length}, limit: {limit})")
        # Labels and series come from the index, which knows days, not seconds: more may be named than lines are there.
        if what == "labels":
            return _data(sorted({name for entry in self.entries for name in entry.labels}))
        if found := re.fullmatch(r"label/(\w+)/values", what):
            return _data(sorted({entry.labels[found[1]] for entry in self.entries if found[1] in entry.labels}))
        if what == "series":
            selectors = [self._selector(value)[0] for name, value in params if name == "match[]"]
            sets = {
                tuple(entry.labels.items()) for entry in self.entries if any(meets(entry.labels, s) for s in selectors)
            }
            return _data([dict(each) for each in sets])
        return self._query_range(asked, start, end)

    def _selector(self, query: str) -> tuple[list[tuple[str, str, str]], str]:
        match = _SELECTOR.fullmatch(query)
        if match is None:
            raise ValueError(query)
        return matchers_of(match[1]), match[2]

    def _query_range(self, asked: Mapping[str, str], start: int, end: int) -> Answer:
        try:
            matchers, stages = self._selector(asked["query"])
        except ValueError:
            return self.unknown(asked["query"])
        if all(how in ("!=", "!~") or (how == "=" and not value) or (how == "=~" and re.fullmatch(value, ""))
               for _, how, value in matchers):  # fmt: skip
            return refused(
                "parse error : queries require at least one regexp or equality matcher that does not have an "
                'empty-compatible value. For instance, app=~".*" does not meet this requirement, but app=~".+" will'
            )
        limit = int(asked.get("limit", 100))
        if limit > self.most_entries:
            return refused(
                "max entries limit per query exceeded, limit > max_entries_limit_per_query "
                f"({limit} > {self.most_entries})"
            )
        here = [entry for entry in self.entries if start <= entry.time_ns < end and meets(entry.labels, matchers)]
        for kind, words, name, value in _STAGE.findall(stages):
            if name:
                here = [each for each in here if each.more.get(name, each.labels.get(name)) == json.loads(value)]
            elif kind == "=":
                here = [each for each in here if json.loads(words) in each.text]
            else:
                try:
                    pattern = re.compile(json.loads(words))
                except re.error:
                    return refused(f"parse error : stage '{stages}' : error parsing regexp: missing closing ): `(`")
                here = [each for each in here if pattern.search(each.text)]
        if _STAGE.sub("", stages).strip():
            return self.unknown(asked["query"])
        backward = asked.get("direction", "backward") == "backward"
        here.sort(key=lambda each: each.time_ns, reverse=backward)
        groups: dict[tuple[tuple[str, str], ...], list[list[str]]] = {}
        for each in here[:limit]:
            labels = {**each.labels, **each.more, "detected_level": "unknown"}
            groups.setdefault(tuple(sorted(labels.items())), []).append([str(each.time_ns), each.text])
        result = [{"stream": dict(labels), "values": values} for labels, values in sorted(groups.items())]
        return _data({"resultType": "streams", "result": result, "stats": {}})


def _data(data: Any) -> Answer:
    return Answer(200, json.dumps({"status": "success", "data": data}, ensure_ascii=False).encode())


def _go(ns: int) -> str:
    seconds = ns // SECOND
    return f"{seconds // 3600}h{seconds % 3600 // 60}m{seconds % 60}s"
