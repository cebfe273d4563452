"""Failures of a log store are reported with location and remedy; lines read before them are kept.

The servers are stand-ins (servers.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.stores.logs.servers import Answer, Entry, LokiServer, Server, refused, running
from tests.stores.logs.test_contract import SERVERS, T0, line
from trackside.http.options import HttpOptions
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Input
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.site.hits import ReadBudget, sources
from trackside.stores.log_store import (
    LogEntry,
    LogOptions,
    LogRequest,
    Paging,
    allowed_limit,
    name_of,
    open_log_store,
    shorter_window,
)
from trackside.stores.registry import LOGS, kinds

pytestmark = pytest.mark.slow

ALL = pytest.mark.parametrize("kind", sorted(SERVERS))
REQUEST = LogRequest(("4242",), (), T0, T0 + 60)
LINES = [line(second, f"step {second} loss {5 - second / 100:.4f}", job_id="4242", rank="0") for second in range(1, 41)]
LINE_PATHS = ("/loki/api/v1/query_range", "/select/logsql/query", "/_search")


def rows(server: Server, kind: str, **more: object) -> tuple[list[Input], CollectingSink]:
    """The row of each input, and the sink with their content."""
    sink = CollectingSink()
    options = LogOptions(kind=kind, endpoint=HttpOptions(url=server.url, retries=0, timeout_s=1.0), **more)  # type: ignore[arg-type]
    results = sources(open_log_store(options), options, REQUEST)
    return [read_source(result, sink) if isinstance(result, InputSource) else result for result in results], sink


def spoiled(server: Server, from_number: int, spoil: Callable[[Answer], Answer]) -> None:
    """Spoil the answers from the n-th request for lines on; requests for streams stay intact."""
    numbers = itertools.count(1)

    def spoil_later(number: int, path: str, answer: Answer) -> Answer:
        lines = path.endswith(LINE_PATHS) and b"step" in answer.body
        return spoil(answer) if lines and next(numbers) >= from_number else answer

    server.spoil = spoil_later


@ALL
def test_the_name_of_a_store_is_known_before_it_is_opened(kind: str) -> None:
    options = LogOptions(kind=kind, endpoint=HttpOptions(url="http://ann:s3cret@logs:3100/below/"))
    assert name_of(options) == open_log_store(options).name
    assert name_of(options).lower() == f"{kind} http://logs:3100/below"


@ALL
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda answer: refused("<html><body>Sign in</body></html>", 200), "sent"),
        (lambda answer: Answer(200, answer.body, answer.type, cut=len(answer.body) // 2), ""),
        (lambda answer: Answer(200, answer.body, answer.type, drip=0.2), "1 s"),
        (lambda answer: refused("no org id", 401), "401"),
        (lambda answer: refused("too many outstanding requests", 429), "429"),
        (lambda answer: refused("internal", 500), "500"),
        (lambda answer: Answer(200, b'{"status": "success"', answer.type), ""),
    ],
    ids=["html", "dropped", "drips", "unauthorized", "limited", "broken", "cut-off-json"],
)
def test_lines_read_before_a_failure_are_kept(kind: str, spoil: Callable[[Answer], Answer], reason: str) -> None:
    server = SERVERS[kind](*LINES)
    with running(server):
        spoiled(server, 3, spoil)
        ((row,), sink) = rows(server, kind, page=10)
    assert row.status == "partial"
    assert server.url in row.note
    assert reason in row.note
    steps = [event.get("step") for event in sink.events if event.parser == "custom"]
    assert steps
    assert steps == sorted(set(steps))
    assert len(steps) < 40


@ALL
def test_an_unreachable_store_is_reported(kind: str) -> None:
    server = SERVERS[kind]()
    with running(server):
        pass
    ((row,), _) = rows(server, kind)
    assert row.status == "unreadable"
    assert row.note.startswith("unable to check: ")
    assert server.url in row.note


def test_a_line_filter_that_loki_refuses_is_reported() -> None:
    server = LokiServer(*LINES)
    with running(server):
        ((row,), _) = rows(server, "loki", line_filter='|~ "("')
    assert row.status == "unreadable"
    assert "error parsing regexp" in row.note


def test_the_number_of_lines_of_a_verdict_is_limited() -> None:
    server = LokiServer(*LINES)
    with running(server):
        ((row,), sink) = rows(server, "loki", max_lines=15)
    assert row.status == "partial"
    assert "max_lines, 15" in row.note
    assert len([event for event in sink.events if event.parser == "custom"]) == 15


def test_more_lines_at_one_time_than_the_store_returns_are_reported() -> None:
    at_once = [Entry((T0 + 5) * 10**9, f"line {index}", {"job_id": "4242"}) for index in range(30)]
    before = [line(1, "step 1 loss 4.0", job_id="4242")]
    server = LokiServer(*before, *at_once, max_entries=20)
    with running(server):
        ((row,), sink) = rows(server, "loki", page=5)
    assert row.status == "partial"
    assert "more lines at the single time" in row.note
    assert [event.get("step") for event in sink.events if event.parser == "custom"] == [1]


def test_the_page_shrinks_to_the_limit_of_the_store() -> None:
    server = LokiServer(*LINES, max_entries=7)
    with running(server):
        ((row,), sink) = rows(server, "loki", page=5000)
        limits = [int(params["limit"]) for path, params in server.requests if path.endswith("query_range")]
    assert row.status == "read"
    assert limits[:2] == [5000, 7]
    assert len([event for event in sink.events if event.parser == "custom"]) == 40


def test_a_log_is_fetched_as_it_is_read() -> None:
    many = [line(index / 1000, f"{index:09d} " + "x" * 990, job_id="4242") for index in range(3000)]
    server = LokiServer(*many)
    with running(server):
        options = LogOptions(kind="loki", endpoint=HttpOptions(url=server.url), page=100)
        (source,) = sources(open_log_store(options), options, REQUEST)
        assert isinstance(source, InputSource)
        initial_requests = len(server.requests)
        assert initial_requests < 12
        assert len(list(source.lines())) == 3000
        assert len(server.requests) > initial_requests + 20


# -- paging without a server


def paged(times: list[int], limit: int, max_limit: int, end: int = 1000) -> list[int]:
    def fetch(start: int, until: int, limit: int) -> list[LogEntry]:
        assert limit <= max_limit
        return [LogEntry(time, "", {}) for time in sorted(times) if start <= time < until][:limit]

    return [entry.time_ns for batch in Paging(fetch, limit, max_limit).lines(0, end) for entry in batch]


def test_many_lines_at_one_time_raise_the_limit_of_their_request() -> None:
    times = [1, 2, *[3] * 9, 4, 5]
    assert paged(times, 2, 16) == times
    with pytest.raises(SourceUnavailable, match="more lines at the single time 3 ns than the 8"):
        paged(times, 2, 8)


def test_limits_are_read_from_refusals() -> None:
    over = SourceUnavailable(
        "refused", "max entries limit per query exceeded, limit > max_entries_limit_per_query (100000 > 5000)"
    )
    assert allowed_limit(over, 100_000) == 5000
    assert (
        allowed_limit(
            SourceUnavailable("refused", "Result window is too large: less than or equal to: [100] but was [500]"), 500
        )
        == 100
    )
    assert allowed_limit(SourceUnavailable("refused", "parse error"), 100) == 0
    long = SourceUnavailable(
        "refused", "the query time range exceeds the limit (query length: 1440h1m40s, limit: 30d1h)"
    )
    assert shorter_window(long, 10**12, 10**12) == 5 * 10**11
    with pytest.raises(SourceUnavailable):
        shorter_window(long, 10**9, 10**12)
    with pytest.raises(SourceUnavailable, match="parse error"):
        shorter_window(SourceUnavailable("refused", "parse error"), 10**12, 10**12)
    late = SourceUnavailable("timeout", "no answer in 30 s")
    assert shorter_window(late, 10**12, 10**12) == 5 * 10**11
    with pytest.raises(SourceUnavailable, match="no answer"):
        shorter_window(late, 10**12 // 8, 10**12)


def test_unknown_kinds_and_roles_are_refused() -> None:
    endpoint = HttpOptions(url="http://localhost:1")
    with pytest.raises(ValueError, match=f"known: {', '.join(kinds(LOGS))}"):
        LogOptions(kind="splunk", endpoint=endpoint)
    with pytest.raises(ValueError, match="known: "):
        LogOptions(kind="writer", endpoint=endpoint)  # a module that is not a log store
    with pytest.raises(ValueError, match="did you mean 'loki'"):
        LogOptions(kind="Loki", endpoint=endpoint)
    assert set(kinds(LOGS)) == set(SERVERS)
    with pytest.raises(ValueError, match="not 'host'"):
        LogOptions(kind="loki", endpoint=endpoint, labels={"h": "host"})


def test_several_requests_of_one_verdict_share_its_line_limit() -> None:
    server = LokiServer(*LINES)
    with running(server):
        options = LogOptions(kind="loki", endpoint=HttpOptions(url=server.url, retries=0), max_lines=60)
        store, budget, sink = open_log_store(options), ReadBudget(options), CollectingSink()
        rows = [
            read_source(source, sink)
            for _ in range(2)
            for source in sources(store, options, REQUEST, budget)
            if isinstance(source, InputSource)
        ]
    assert [row.status for row in rows] == ["read", "partial"]
    assert len([event for event in sink.events if event.parser == "custom"]) == 60
