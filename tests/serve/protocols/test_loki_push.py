"""Loki's push against the official protobuf runtime and recorded pushes."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.messages import PUSH
from tools.cases import CORPUS
from trackside.serve.protocols import loki_push, messages
from trackside.serve.protocols.decoded import BadRequest, UnsupportedMedia
from trackside.serve.protocols.loki_push import decode

PROTOBUF, JSON = "application/x-protobuf", "application/json"
RECORDED = CORPUS.parent / "data" / "log-store-responses"
NOW = 1_795_253_628_000_000_000
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["x" * 200, "y" * 20_000])
TIMES = st.integers(NOW - 10**15, NOW + 10**15) | st.sampled_from(
    [0, 1, -1, NOW, 10**9 - 1, 10**18, (1 << 63) - 1, -(1 << 63)]
)
METADATA = st.dictionaries(st.sampled_from(["rank", "pid", "traceID"]), st.sampled_from(["0", "1", ""]), max_size=2)
ENTRIES = st.lists(st.tuples(TIMES, TEXTS, METADATA), max_size=5)
STREAMS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(["job", "node", "a.b"]), TEXTS, max_size=2), ENTRIES), max_size=3
)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def push_of(streams) -> bytes:
    request = PUSH["PushRequest"]()
    for labels, entries in streams:
        stream = request.streams.add(
            labels="{" + ", ".join(f"{name}={_quoted(value)}" for name, value in labels.items()) + "}", hash=7
        )
        for time, line, metadata in entries:
            entry = stream.entries.add(line=line)
            entry.timestamp.seconds, entry.timestamp.nanos = divmod(time, 10**9)
            for name, value in metadata.items():
                entry.structuredMetadata.add(name=name, value=value)
    return request.SerializeToString()


def as_json(streams) -> bytes:
    return json.dumps(
        {
            "streams": [
                {
                    "stream": labels,
                    "values": [
                        [str(time), line, *([metadata] if metadata else [])] for time, line, metadata in entries
                    ],
                }
                for labels, entries in streams
            ]
        }
    ).encode()


def entries_of(streams) -> list:
    return sorted(
        (sorted(stream.labels.items()), time, line)
        for stream in streams
        for time, line in zip(stream.times_ns, stream.lines, strict=True)
    )


@settings(max_examples=300, deadline=None)
@given(STREAMS)
@example([({"job": "4242"}, [(NOW + at, f"line {at}", {}) for at in range(30)])])
@example([({"job": "4242"}, [(NOW, "\x1a\x02", {"rank": "0"}), (NOW, "", {}), (NOW, "x", {"pid": "1"})])])
def test_protobuf_and_json_give_what_was_sent(streams):
    expected = sorted(
        (
            sorted({**labels, **{name: value for name, value in metadata.items() if name == "rank" and value}}.items()),
            time,
            line,
        )
        for labels, entries in streams
        for time, line, metadata in entries
    )
    assert entries_of(decode(push_of(streams), PROTOBUF)) == expected
    assert entries_of(decode(as_json(streams), JSON)) == expected


def test_lines_stay_in_order_and_ranks_become_streams():
    entries = [(NOW + at, f"line {at}", {"rank": str(at % 2)} if at % 3 else {}) for at in range(90)]
    for body, content_type in (
        (push_of([({"job": "1"}, entries)]), PROTOBUF),
        (as_json([({"job": "1"}, entries)]), JSON),
    ):
        streams = decode(body, content_type)
        assert [stream.labels for stream in streams] == [
            {"job": "1"},
            {"job": "1", "rank": "1"},
            {"job": "1", "rank": "0"},
        ]
        assert all(stream.times_ns == sorted(stream.times_ns) for stream in streams)


def test_decoding_in_pieces_gives_the_same_streams(monkeypatch):
    streams = [
        ({"job": str(job)}, [(NOW + at, f"line {at}", {"rank": str(at % 2)} if at % 3 else {}) for at in range(90)])
        for job in range(3)
    ]
    monkeypatch.setattr(messages, "MAX_PIECE_BYTES", 150)
    split = decode(push_of(streams), PROTOBUF)
    assert [(stream.labels, stream.times_ns, stream.lines) for stream in split] == [
        (stream.labels, stream.times_ns, stream.lines) for stream in decode(as_json(streams), JSON)
    ]


def test_a_line_of_4_mb_is_accepted_and_a_longer_one_is_too_large():
    (stream,) = decode(push_of([({"job": "1"}, [(NOW, "x" * (4_000_000), {})])]), PROTOBUF)
    assert len(stream.lines[0]) == 4_000_000
    with pytest.raises(BadRequest, match="at most 4,194,304 are accepted") as caught:
        decode(push_of([({"job": "1"}, [(NOW, "x" * (4 << 20), {})])]), PROTOBUF)
    assert caught.value.status == 413


def test_invalid_utf8_is_replaced_and_the_rest_is_kept():
    body = push_of([({"job": "1"}, [(NOW, "line", {}), (NOW, "more", {})])]).replace(b"line", b"\xffine")
    assert [stream.lines for stream in decode(body, PROTOBUF)] == [["\ufffdine", "more"]]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{}", {}),
        ('{job="a\\"b\\n\\x41\\u00e9\\\\",node=`raw\\n`, }', {"job": 'a"b\nAé\\', "node": "raw\\n"}),
        ('{a="\\U00110000\\ud800\\101"}', {"a": "\ufffd\ufffdA"}),
    ],
)
def test_selectors_are_parsed(text, labels):
    body = PUSH["PushRequest"](streams=[{"labels": text, "entries": [{"line": "x"}]}]).SerializeToString()
    assert [stream.labels for stream in decode(body, PROTOBUF)] == [labels]


@pytest.mark.parametrize("text", ["job", '{job="x"', "{job=x}", '{job="x" node="y"}', '{job="x", job="y"}', '{="x"}'])
def test_invalid_labels_are_refused_with_the_number_of_the_stream(text):
    streams = [{"labels": "{}"}, {"labels": text, "entries": [{"line": "x"}]}]
    with pytest.raises(BadRequest, match="stream 1: labels"):
        decode(PUSH["PushRequest"](streams=streams).SerializeToString(), PROTOBUF)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"streams": [', "not a push in JSON: .*truncated"),
        (b"{}", "missing required field `streams`"),
        (b'{"streams": [{"values": [["x", "line"]]}]}', "stream 0, value 0: its time 'x' is not a number"),
        (b'{"streams": [{"values": [["1", "line"], ["1"]]}]}', "stream 0, value 1: it must be"),
        (b'{"streams": [{"stream": {"job": 1}}]}', r"\$.streams\[0\].stream"),
        (b'{"streams": [{"values": [["99999999999999999999", "line"]]}]}', "is it in nanoseconds"),
        (b'{"streams": ' + b"[" * 5000, "not a push in JSON"),
    ],
)
def test_invalid_json_is_refused_with_the_place(body, message):
    with pytest.raises(BadRequest, match=message):
        decode(body, JSON)


def test_other_content_types_are_unsupported():
    with pytest.raises(UnsupportedMedia, match="a push is application/x-protobuf"):
        decode(b"", "text/plain")
    assert loki_push.answer().status == 204


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_read_or_refused(data):
    entries = [(NOW, "one", {}), (NOW + 1, "two", {"rank": "3"})]
    body = bytearray(
        push_of([({"job": "1"}, entries)])
        if data.draw(st.booleans())
        else data.draw(st.binary(min_size=1, max_size=80))
    )
    for index in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[index] = data.draw(st.integers(0, 255))
    for content_type in (PROTOBUF, JSON):
        with suppress(BadRequest):
            decode(bytes(body), content_type)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_truncated_push_is_refused(cut):
    body = push_of([({"job": "1"}, [(NOW + at, "line", {}) for at in range(9)])])
    with pytest.raises(BadRequest, match=r"truncated|does not end"):
        decode(body[:-cut], PROTOBUF)


@pytest.mark.corpus
def test_recorded_pushes_are_accepted_as_loki_accepts_them():
    if not RECORDED.is_dir():
        pytest.skip(f"no recorded pushes at {RECORDED}")
    accepted = refused = 0
    for entry in json.loads((RECORDED / "index.json").read_text()):
        if not entry["path"].endswith("/push"):
            continue
        body = (RECORDED / entry["server"] / entry["request_body"]).read_bytes()
        if entry["request_headers"].get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if entry["name"] == "push-bad-json":
            refused += 1
            with pytest.raises(BadRequest, match="not a push in JSON"):
                decode(body, JSON)
        else:
            accepted += 1
            sent_streams = json.loads(body)["streams"]
            assert sum(len(stream.lines) for stream in decode(body, JSON)) == sum(
                len(stream["values"]) for stream in sent_streams
            )
    assert (accepted, refused) == (7, 2)
