"""Stand-ins for Loki, VictoriaLogs and Elasticsearch over HTTP.

Those for Loki and VictoriaLogs are compared with recorded answers of real servers (test_recorded.py). The one for
Elasticsearch follows its documentation only: no real Elasticsearch or OpenSearch was available. A request that a
server does not know is appended to ``unexpected`` and fails its test.
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
"""Loki's default limit on the time range of a query."""
Params = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line to load. ``more``: structured metadata, which is not part of the stream's labels."""

    time_ns: int
    text: str
    labels: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Answer:
    """A response. ``cut``: bytes after which the connection is dropped; ``drip``: seconds between single bytes."""

    status: int
    body: bytes
    type: str = "application/json"
    cut: int | None = None
    drip: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


def refused(text: str, status: int = 400) -> Answer:
    return Answer(status, text.encode(), "text/plain; charset=utf-8")


class Server:
    """Base of the stand-ins. ``spoil`` may change the answer to the n-th request (from 1)."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = list(entries)
        self.unexpected: list[str] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.spoil: Callable[[int, str, Answer], Answer] = lambda number, path, answer: answer
        self.url = ""

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        raise NotImplementedError

    def unknown(self, description: str) -> Answer:
        self.unexpected.append(description)
        return refused(f"unexpected: {description}", 500)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run the server at its ``url`` until the block ends; fails if a request was unexpected."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            params = parse_qsl(parts.query, keep_blank_values=True)
            if "urlencoded" in (self.headers.get("Content-Type") or ""):
                params += parse_qsl(body.decode(), keep_blank_values=True)
            server.requests.append((parts.path, dict(params)))
            answer = server.answer(self.command, parts.path, params, body)
            self._send(server.spoil(len(server.requests), parts.path, answer))

        do_GET = do_POST = do_DELETE = _serve

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.type)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            body = answer.body if answer.cut is None else answer.body[: answer.cut]
            try:
                if answer.drip:
                    for offset in range(len(body)):
                        self.wfile.write(body[offset : offset + 1])
                        self.wfile.flush()
                        time.sleep(answer.drip)
                else:
                    self.wfile.write(body)
            except OSError:
                return  # the client disconnected
            self.close_connection = answer.cut is not None

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
    """The matchers inside a selector's braces; ValueError if the text is anything else."""
    matchers, position = [], 0
    while position < len(text.rstrip()):
        match = _MATCHER.match(text, position)
        if match is None:
            raise ValueError(f"parse error: {text[position:]!r}")
        matchers.append((match[1], match[2], json.loads(match[3])))
        position = match.end()
    return matchers


def labels_match(labels: Mapping[str, str], matchers: list[tuple[str, str, str]]) -> bool:
    tests: dict[str, Callable[[str, str], bool]] = {
        "=": lambda value, expected: value == expected,
        "!=": lambda value, expected: value != expected,
        "=~": lambda value, expected: re.fullmatch(expected, value) is not None,
        "!~": lambda value, expected: re.fullmatch(expected, value) is None,
    }
    return all(tests[operator](labels.get(name, ""), expected) for name, operator, expected in matchers)


class LokiServer(Server):
    """``max_entries`` and ``max_range_s`` are its limits."""

    def __init__(self, *entries: Entry, max_entries: int = 5000, max_range_s: int = MONTH_S) -> None:
        super().__init__(*entries)
        self.max_entries, self.max_range_s = max_entries, max_range_s

    def answer(self, method: str, path: str, params: Params, body: bytes) -> Answer:
        arguments = dict(params)
        endpoint = path.removeprefix("/loki/api/v1/")
        if method != "GET" or not re.fullmatch(r"labels|label/\w+/values|series|query_range", endpoint):
            return refused("404 page not found\n", 404)
        start, end = int(arguments.get("start", 0)), int(arguments.get("end", 0))
        if end <= start:
            return refused("end timestamp must not be before or equal to start time")
        if end - start > self.max_range_s * SECOND:
            length, limit = _go(end - start), "30d1h" if self.max_range_s == MONTH_S else f"{self.max_range_s}s"
            return refused(f"the query time range exceeds the limit (query length: {length}, limit: {limit})")
        # Labels and series come from the index, which has a resolution of days: they may name streams without lines.
        if endpoint == "labels":
            return _data(sorted({name for entry in self.entries for name in entry.labels}))
        if match := re.fullmatch(r"label/(\w+)/values", endpoint):
            return _data(sorted({entry.labels[match[1]] for entry in self.entries if match[1] in entry.labels}))
        if endpoint == "series":
            selectors = [self._selector(value)[0] for name, value in params if name == "match[]"]
            sets = {
                tuple(entry.labels.items())
                for entry in self.entries
                if any(labels_match(entry.labels, s) for s in selectors)
            }
            return _data([dict(labels) for labels in sets])
        return self._query_range(arguments, start, end)

    def _selector(self, query: str) -> tuple[list[tuple[str, str, str]], str]:
        match = _SELECTOR.fullmatch(query)
        if match is None:
            raise ValueError(query)
        return matchers_of(match[1]), match[2]

    def _query_range(self, arguments: Mapping[str, str], start: int, end: int) -> Answer:
        try:
            matchers, stages = self._selector(arguments["query"])
        except ValueError:
            return self.unknown(arguments["query"])
        if all(operator in ("!=", "!~") or (operator == "=" and not value) or (operator == "=~" and re.fullmatch(value, ""))
               for _, operator, value in matchers):  # fmt: skip
            return refused(
                "parse error : queries require at least one regexp or equality matcher that does not have an "
                'empty-compatible value. For instance, app=~".*" does not meet this requirement, but app=~".+" will'
            )
        limit = int(arguments.get("limit", 100))
        if limit > self.max_entries:
            return refused(
                "max entries limit per query exceeded, limit > max_entries_limit_per_query "
                f"({limit} > {self.max_entries})"
            )
        entries = [
            entry for entry in self.entries if start <= entry.time_ns < end and labels_match(entry.labels, matchers)
        ]
        for kind, pattern_text, name, value in _STAGE.findall(stages):
            if name:
                entries = [
                    entry for entry in entries if entry.more.get(name, entry.labels.get(name)) == json.loads(value)
                ]
            elif kind == "=":
                entries = [entry for entry in entries if json.loads(pattern_text) in entry.text]
            else:
                try:
                    pattern = re.compile(json.loads(pattern_text))
                except re.error:
                    return refused(f"parse error : stage '{stages}' : error parsing regexp: missing closing ): `(`")
                entries = [entry for entry in entries if pattern.search(entry.text)]
        if _STAGE.sub("", stages).strip():
            return self.unknown(arguments["query"])
        backward = arguments.get("direction", "backward") == "backward"
        entries.sort(key=lambda entry: entry.time_ns, reverse=backward)
        groups: dict[tuple[tuple[str, str], ...], list[list[str]]] = {}
        for entry in entries[:limit]:
            labels = {**entry.labels, **entry.more, "detected_level": "unknown"}
            groups.setdefault(tuple(sorted(labels.items())), []).append([str(entry.time_ns), entry.text])
        result = [{"stream": dict(labels), "values": values} for labels, values in sorted(groups.items())]
        return _data({"resultType": "streams", "result": result, "stats": {}})


def _data(data: Any) -> Answer:
    return Answer(200, json.dumps({"status": "success", "data": data}, ensure_ascii=False).encode())


def _go(ns: int) -> str:
    seconds = ns // SECOND
    return f"{seconds // 3600}h{seconds % 3600 // 60}m{seconds % 60}s"
