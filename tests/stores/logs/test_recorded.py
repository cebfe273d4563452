"""The stand-in servers give the recorded answers of real ones: Loki 3.7.6 and VictoriaLogs 1.26.0.

There is no recording of Elasticsearch: its stand-in follows the documentation.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.stores.logs.servers import Answer, Entry, LokiServer, running
from tests.stores.logs.victorialogs_server import VictoriaLogsServer, nanoseconds
from tools.cases import CORPUS
from trackside.http.options import HttpOptions
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.site.hits import sources
from trackside.stores.log_store import LogOptions, LogRequest, open_log_store

ROOT = CORPUS.parent / "data" / "log-store-responses"
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not (ROOT / "index.json").is_file(), reason="no recorded answers of log stores here"),
]
EXCHANGES: list[dict[str, Any]] = (
    json.loads((ROOT / "index.json").read_text()) if (ROOT / "index.json").is_file() else []
)
START, END = 1795253628, 1795253669
"""Times of the recorded job, POSIX seconds."""


def entries(server: str, name: str) -> list[Entry]:
    """The entries of a recorded push."""
    body = (ROOT / server / name).read_bytes()
    body = gzip.decompress(body) if "gzip" in name else body
    return [
        Entry(int(value[0]), value[1], stream["stream"], value[2] if len(value) > 2 else {})
        for stream in json.loads(body)["streams"]
        for value in stream["values"]
    ]


def loki() -> LokiServer:
    """With the recorded push. It was sent twice, and Loki stores exact repeats in a stream once. Loki added the
    ``service_name`` of each stream."""
    pushed = entries("loki", "push.request.json")
    return LokiServer(
        *(
            Entry(entry.time_ns, entry.text, {"service_name": entry.labels["job"], **entry.labels}, entry.more)
            for entry in pushed
        )
    )


def victorialogs() -> VictoriaLogsServer:
    """With both pushes, whose streams have different labels, and the JSON lines."""
    server = VictoriaLogsServer(*entries("victorialogs", "push.request.json"))
    for pushed in entries("victorialogs", "push-gzip.request.txt"):
        server.load(pushed, ("job", "node", "rank"))
    for text in (ROOT / "victorialogs" / "jsonline.request.json").read_text().splitlines():
        row = json.loads(text)
        entry = Entry(nanoseconds(row.pop("_time")), row.pop("_msg"), row)
        server.load(entry, ("job", "node", "rank"))
    return server


def exchange(server: str, name: str) -> dict[str, Any]:
    return next(recorded for recorded in EXCHANGES if recorded["server"] == server and recorded["name"] == name)


def replay(recorded: dict[str, Any], server: LokiServer | VictoriaLogsServer) -> Answer:
    """The stand-in's answer to a recorded request."""
    params = [(name, value) for name, value in recorded["query"]]
    if recorded.get("request_body"):
        params += parse_qsl((ROOT / recorded["server"] / recorded["request_body"]).read_text(), keep_blank_values=True)
    return server.answer(recorded["method"], recorded["path"], params, b"")


def body(recorded: dict[str, Any]) -> bytes:
    return (ROOT / recorded["server"] / recorded["response_body"]).read_bytes()


def streams(text: bytes) -> dict[tuple[tuple[str, str], ...], list[list[str]]]:
    results = json.loads(text)["data"]["result"]
    return {tuple(sorted(stream["stream"].items())): stream["values"] for stream in results}


@pytest.mark.parametrize(
    "name", ["range-all", "range-line-filter", "range-structured-metadata", "range-page-1", "range-empty"]
)
def test_the_stand_in_of_loki_gives_the_recorded_lines(name: str) -> None:
    recorded = exchange("loki", name)
    assert streams(replay(recorded, loki()).body) == streams(body(recorded))


@pytest.mark.parametrize("name", ["labels", "label-values", "series"])
def test_the_stand_in_of_loki_gives_the_recorded_labels(name: str) -> None:
    recorded = exchange("loki", name)

    def items(text: bytes) -> list[str]:
        return sorted(json.dumps(item, sort_keys=True) for item in json.loads(text)["data"])

    assert items(replay(recorded, loki()).body) == items(body(recorded))


@pytest.mark.parametrize(
    "name",
    [
        "range-bad-query",
        "range-no-matcher",
        "range-limit-too-high",
        "range-too-long",
        "range-end-before-start",
        "not-found",
    ],
)
def test_the_stand_in_of_loki_refuses_with_the_recorded_text(name: str) -> None:
    recorded = exchange("loki", name)
    answer = replay(recorded, loki())
    assert answer.status == recorded["status"]
    assert answer.body == body(recorded)


QUERIES = ["query-filter", "query-regex", "query-empty", "query-stats", "query-sorted", "query-no-time-field-order"]


@pytest.mark.parametrize("name", QUERIES)
def test_the_stand_in_of_victorialogs_gives_the_recorded_rows(name: str) -> None:
    recorded = exchange("victorialogs", name)

    def rows(text: bytes) -> list[Any]:
        return [
            {name_: value for name_, value in json.loads(line).items() if name_ != "_stream_id"}
            for line in text.splitlines()
        ]

    actual, expected = rows(replay(recorded, victorialogs()).body), rows(body(recorded))
    assert Counter(map(str, map(sorted, map(dict.items, actual)))) == Counter(
        map(str, map(sorted, map(dict.items, expected)))
    )
    if "sort" in name or "order" in name:
        assert [row["_time"] for row in actual] == [row["_time"] for row in expected]


@pytest.mark.parametrize("name", ["field-names", "field-values", "streams"])
def test_the_stand_in_of_victorialogs_gives_the_recorded_names(name: str) -> None:
    recorded = exchange("victorialogs", name)

    def counts(text: bytes) -> Counter[str]:
        # The real server counts field names by blocks of rows, some of which may lack the field.
        return Counter({value["value"]: name == "field-names" or value["hits"] for value in json.loads(text)["values"]})

    assert counts(replay(recorded, victorialogs()).body) == counts(body(recorded))


def test_the_stand_in_of_victorialogs_counts_as_recorded() -> None:
    recorded = exchange("victorialogs", "hits")
    assert json.loads(replay(recorded, victorialogs()).body) == json.loads(body(recorded))


def test_the_stand_in_of_victorialogs_refuses_as_recorded() -> None:
    for name in ("query-bad", "not-found"):
        recorded = exchange("victorialogs", name)
        answer = replay(recorded, victorialogs())
        assert answer.status == recorded["status"]
        assert answer.body.split(b";")[0].strip() == body(recorded).split(b";")[0].strip()


def lines_of(server: LokiServer | VictoriaLogsServer, kind: str, **more: Any) -> dict[str, list[str]]:
    with running(server):
        options = LogOptions(kind=kind, endpoint=HttpOptions(url=server.url, retries=0), **more)
        results = list(
            sources(open_log_store(options), options, LogRequest(("4242",), ("gpu-00", "gpu-01"), START, END))
        )
        return {
            source.path: source.stream.read().decode().split("\n")[:-1] for source in results if isinstance(source, InputSource)
        }  # fmt: skip


@pytest.mark.parametrize("page", [5, 100, 5000])
@pytest.mark.parametrize("kind", ["loki", "victorialogs"])
def test_all_lines_of_the_recorded_job_are_read(kind: str, page: int) -> None:
    times = 1 if kind == "loki" else 2
    lines = lines_of(loki() if kind == "loki" else victorialogs(), kind, page=page)
    paths = [f"job-4242/slurm-4242.rank{rank}@gpu-0{rank // 2}.log" for rank in range(4)]
    assert sorted(lines) == [*paths, "nodes/gpu-00/system.log"]
    for path in paths:
        assert len(lines[path]) == 22 * times
        assert lines[path] == sorted(lines[path], key=lambda line: line[:30])
        assert lines[path][0] == "2026-11-21T09:33:48.000000000Z stdout F step 0 loss 5.0000 grad_norm 1.20 lr 3.0e-04"
    assert set(lines["nodes/gpu-00/system.log"]) == {
        "2026-11-21T09:34:08.000000020Z gpu-00 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=4002, name=python, "
        "GPU has fallen off the bus."
    }


def test_the_recorded_job_gives_its_events() -> None:
    server = loki()
    with running(server):
        options = LogOptions(kind="loki", endpoint=HttpOptions(url=server.url))
        sink = CollectingSink()
        rows = [
            read_source(source, sink) if isinstance(source, InputSource) else source
            for source in sources(
                open_log_store(options), options, LogRequest(("4242",), ("gpu-00", "gpu-01"), START, END)
            )
        ]
    assert [row.status for row in rows] == ["read"] * 5
    assert {row.plane for row in rows} == {"log", "kernel"}
    timed = {(event.kind, event.rank, event.node, event.time) for event in sink.events}
    assert ("cuda_oom", 2, "gpu-01", 1795253649.000000021) in timed
    assert ("xid", None, "gpu-00", 1795253648.00000002) in timed
    assert {rank for kind, rank, _, _ in timed if kind == "progress"} == {0, 1, 2, 3}


# -- the recorded bytes, replayed to the client


@pytest.mark.parametrize("name", ["range-bad-query", "range-no-matcher", "not-found"])
def test_recorded_refusals_of_loki_are_reported(name: str) -> None:
    recorded = exchange("loki", name)
    server = loki()
    server.spoil = lambda number, path, answer: Answer(recorded["status"], body(recorded), "text/plain; charset=utf-8")
    with running(server):
        options = LogOptions(kind="loki", endpoint=HttpOptions(url=server.url, retries=0))
        (row,) = sources(open_log_store(options), options, LogRequest(("4242",), (), START, END))
    assert not isinstance(row, InputSource)
    assert row.status == "unreadable"
    assert body(recorded).decode().strip()[:60] in row.note
