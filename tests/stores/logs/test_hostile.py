"""Any answer of a log store gives lines or a reason why not, never another error.

No server runs: the answers are generated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trackside.http.client import Response
from trackside.http.options import HttpOptions
from trackside.http.unavailable import SourceUnavailable
from trackside.read.format import InputSource
from trackside.site.hits import sources
from trackside.stores.log_store import LogEntry, LogOptions, LogRequest, LogStream, nanoseconds, open_log_store, stamp
from trackside.stores.registry import LOGS, kinds

T0 = 1_795_253_600
REQUEST = LogRequest(("4242",), ("gpu-00",), T0, T0 + 60)
STREAM = LogStream("job", {"job_id": "4242"}, '{"filter": []}', T0 * 10**9, (T0 + 60) * 10**9)
TIME = "2026-11-21T09:33:21.5Z"


class ScriptedEndpoint:
    """An endpoint that gives one answer to every request, or one per path."""

    def __init__(self, answer: bytes | Callable[[str], bytes]) -> None:
        self._answer = answer
        self.name = "http://store"
        self.n_requests = 0

    def request(self, method: str, path: str, **_: object) -> Response:
        self.n_requests += 1
        body = self._answer if isinstance(self._answer, bytes) else self._answer(path)
        return Response(body, f"http://store{path}")


def store_answering(kind: str, answer: bytes | Callable[[str], bytes]) -> tuple[Any, LogOptions]:
    options = LogOptions(kind=kind, endpoint=HttpOptions(url="http://store"), page=100)
    store: Any = open_log_store(options)
    store.endpoint = ScriptedEndpoint(answer)
    return store, options


def lines(kind: str, answer: bytes) -> list[LogEntry]:
    return [line for batch in store_answering(kind, answer)[0].lines(STREAM) for line in batch]


def query_everything(kind: str, answer: bytes) -> None:
    """Make every kind of request to a store. Only SourceUnavailable may be raised."""
    store, options = store_answering(kind, answer)
    start, end = STREAM.start_ns, STREAM.end_ns
    questions: Sequence[Callable[[], object]] = (
        lambda: store.names(start, end),
        lambda: store.values("node", start, end),
        lambda: store.groups(("job_id", "node"), ((),), start, end),
        lambda: [list(batch) for batch in store.lines(STREAM)],
    )
    reasons = []
    for question in questions:
        try:
            question()
        except SourceUnavailable as error:
            reasons.append(str(error))
    assert all("\n" not in reason and len(reason) < 1000 for reason in reasons)
    for result in sources(store, options, REQUEST):
        if isinstance(result, InputSource):
            result.stream.read()


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(),
    st.sampled_from([TIME, "2026-13-21T09:33:21Z", "2026-11-21T29:33:21Z", "0000-01-01T00:00:00Z", "", "9" * 25,
                     "\u0661795253601000000000", f"{T0 + 1}000000000", "streams", "4242", "job_id", "gpu-00"]),
)  # fmt: skip
WORDS = st.sampled_from(
    ["data", "result", "resultType", "stream", "values", "warnings", "value", "hits", "timestamps", "_time", "_msg",
     "_source", "fields", "aggregations", "groups", "buckets", "key", "after_key", "_shards", "failed", "timed_out",
     "@timestamp", "message", "keyword", "job_id", "node", "f0", "f1", "status"]
)  # fmt: skip
ANY = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=5)
)


def near_answers(kind: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Answers of the right shape whose parts are ``inner``."""
    lists, texts = st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)
    if kind == "loki":
        entry = st.one_of(inner, st.tuples(inner, inner), st.tuples(SCALARS, st.text(), texts))
        result = st.fixed_dictionaries({"stream": texts | inner, "values": st.lists(entry, max_size=3) | inner})
        data = st.fixed_dictionaries({"resultType": st.just("streams") | inner, "result": st.lists(result) | inner})
        return st.fixed_dictionaries({"data": data | inner | st.lists(texts)}, optional={"warnings": inner})
    if kind == "victorialogs":
        group = st.fixed_dictionaries({"timestamps": lists | inner, "values": lists | inner})
        listed = st.fixed_dictionaries({"values": st.lists(st.fixed_dictionaries({"value": inner}))})
        return st.one_of(texts, listed, st.fixed_dictionaries({"hits": st.lists(group) | inner}))
    hit = st.fixed_dictionaries(
        {}, optional={"_source": texts | inner, "fields": st.dictionaries(st.just("@timestamp"), lists | inner)}
    )
    bucket = st.fixed_dictionaries({"key": texts | inner})
    groups = st.fixed_dictionaries({"buckets": st.lists(bucket) | inner}, optional={"after_key": texts | inner})
    return st.fixed_dictionaries(
        {"hits": st.fixed_dictionaries({"hits": st.lists(hit) | inner}) | inner},
        optional={"aggregations": st.fixed_dictionaries({"groups": groups | inner}) | inner, "_shards": texts | inner,
                  "timed_out": inner, "fields": st.dictionaries(st.text(), texts | inner)},
    )  # fmt: skip


def body(value: object) -> bytes:
    return json.dumps(value).encode()


DEEP = b'{"a":' * 500 + b"1" + b"}" * 500
DEEPER = b"[" * 100_000
ODD = [
    DEEPER,
    b"\xff\xfe\x00",
    b'{"hits": null}',
    b'{"hits": {"hits": null}}',
    b'{"hits": {"hits": [{"_source": ' + DEEP + b', "fields": {"@timestamp": ["' + TIME.encode() + b'"]}}]}}',
    body({"hits": {"hits": [{"_source": {"@timestamp": 1e300, "message": 5}}]}}),
    body({"hits": {"hits": [{"_source": {"@timestamp": "2026-13-01T00:00:00Z"}}]}}),
    body({"hits": {"hits": []}, "aggregations": {"groups": {"buckets": [{}], "after_key": {"f0": "a"}}}}),
    body({"hits": {"hits": []}, "aggregations": {"groups": {"buckets": [], "after_key": {"f0": "a"}}}}),
    body({"fields": {"job_id": {"keyword": {}}, "node": {}}}),
    body({"data": {"resultType": "streams", "result": [{"stream": {}, "values": [["1" * 30, "x"]]}]}}),
    body({"data": {"resultType": "streams", "result": [{"stream": {}, "values": [[5, "x"], []]}]}}),
    body({"data": {"resultType": "streams", "result": [{"stream": {"a": 5}, "values": []}]}}),
    body({"data": [5, None]}),
    body({"data": [{"a": 5}]}),
    body({"data": None}),
    body({"values": [{"value": 5}]}),
    body({"values": [{}]}),
    body({"_time": "2026-13-01T00:00:00Z", "_msg": "x"}),
    body({"_msg": "x"}),
    body({"hits": [{"timestamps": ["2026-13-01T00:00:00Z"], "values": [10**30]}]}),
]


@pytest.mark.parametrize("kind", kinds(LOGS))
@pytest.mark.parametrize("answer", ODD, ids=lambda answer: answer[:40].decode("ascii", "replace"))
def test_malformed_answers_give_lines_or_a_reason(kind: str, answer: bytes) -> None:
    query_everything(kind, answer)


@pytest.mark.parametrize("kind", kinds(LOGS))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nearly_valid_answers_give_lines_or_a_reason(kind: str, data: st.DataObject) -> None:
    query_everything(kind, body(data.draw(near_answers(kind, ANY))))


@pytest.mark.parametrize("kind", kinds(LOGS))
@settings(max_examples=100, deadline=None)
@given(answer=st.binary(max_size=200) | ANY.map(body))
@example(answer=b"")
@example(answer=b"null")
def test_any_bytes_give_lines_or_a_reason(kind: str, answer: bytes) -> None:
    query_everything(kind, answer)


STRAY: dict[str, bytes] = {
    "loki": body({"data": {"resultType": "streams", "result": [
        {"stream": {}, "values": [[f"{T0 + 1}000000000", "before STRAY after"], [f"{T0 + 2}000000000", "next"]]}]}}),
    "victorialogs": body({"_time": stamp((T0 + 1) * 10**9), "_msg": "before STRAY after"}) + b"\n"
    + body({"_time": stamp((T0 + 2) * 10**9), "_msg": "next"}) + b"\n",
    "elasticsearch": body({"hits": {"hits": [
        {"_source": {"message": text}, "fields": {"@timestamp": [stamp((T0 + second) * 10**9)]}}
        for second, text in ((1, "before STRAY after"), (2, "next"))]}}),
}  # fmt: skip


@pytest.mark.parametrize("kind", kinds(LOGS))
def test_an_invalid_byte_does_not_lose_the_lines(kind: str) -> None:
    entries = lines(kind, STRAY[kind].replace(b"STRAY", b"\xe9"))
    assert [line.text for line in entries] == ["before \ufffd after", "next"]
    assert [line.time_ns // 10**9 - T0 for line in entries] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("elasticsearch", b"{}"),
        ("elasticsearch", b'{"hits": null}'),
        ("elasticsearch", b'{"acknowledged": true}'),
        ("loki", b'{"status": "success"}'),
        ("victorialogs", b'{"error": "x"}'),
    ],
)
def test_an_answer_without_results_is_an_error_and_not_an_empty_log(kind: str, answer: bytes) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        lines(kind, answer)
    assert caught.value.kind == "broken"


def test_endless_groups_of_elasticsearch_are_cut_off() -> None:
    groups = {"buckets": [{"key": {"f0": "4242"}}], "after_key": {"f0": "4242"}}
    store, _ = store_answering("elasticsearch", body({"hits": {"hits": []}, "aggregations": {"groups": groups}}))
    with pytest.raises(SourceUnavailable, match=r"more than 200,000 streams") as caught:
        store.groups(("job_id",), ((),), STREAM.start_ns, STREAM.end_ns)
    assert caught.value.kind == "partial"
    assert store.endpoint.n_requests == 200


def test_invalid_label_names_of_loki_are_dropped() -> None:
    store, _ = store_answering("loki", body({"data": ["node", "../../admin?x", ""]}))
    assert store.names(0, 1) == ["node"]


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("2026-11-21T09:33:21.000000001Z", 1_795_253_601_000_000_001),
        ("2026-11-21T09:33:21.5+00:00", 1_795_253_601_500_000_000),
        ("2026-13-21T09:33:21Z", None),
        ("2026-11-31T09:33:21Z", None),
        ("2026-11-21T09:33:61Z", None),
        ("0000-11-21T09:33:21Z", None),
        ("2026-11-21T09:33:21+01:00", None),
        ("\u0662026-11-21T09:33:21Z", None),
        ("", None),
    ],
)
def test_only_a_valid_time_in_utc_is_read(text: str, time_ns: int | None) -> None:
    assert nanoseconds(text) == time_ns
