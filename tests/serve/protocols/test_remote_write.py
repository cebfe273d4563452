"""Remote write against the official protobuf runtime: the same samples in each version; clear errors for the rest."""

from __future__ import annotations

import math
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.messages import FIRST, SECOND, UNPACKED
from trackside.serve.protocols import messages, remote_write_1
from trackside.serve.protocols.decoded import BadRequest, PushTooLarge, UnsupportedMedia
from trackside.serve.protocols.remote_write import answer, decode, version_of
from trackside.serve.protocols.samples import STALE as STALE_BITS
from trackside.serve.protocols.series_key import KnownSeries, key_of, labels_of, varint

STALE = struct.unpack("<d", struct.pack("<Q", STALE_BITS))[0]
NOW = 1_795_253_628_000
TIMES = st.one_of(
    st.integers(NOW - 10**9, NOW + 10**9), st.sampled_from([0, -1, 1 << 40, 1 << 42, (1 << 63) - 1, -(1 << 63)])
)
VALUES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, STALE, 5e-324]), st.floats())
SAMPLES = st.lists(st.tuples(TIMES, VALUES), max_size=6)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.just("x" * 200)
LABELS = st.dictionaries(TEXTS.filter(bool).filter(lambda text: text != "__name__"), TEXTS, max_size=4)
SERIES = st.tuples(st.sampled_from(["up", "gpu_power", "température", "n" * 150]), LABELS, SAMPLES)
FRILLS = st.sets(st.sampled_from(["exemplar", "histogram", "metadata", "created", "unknown", "split", "started"]))
REQUESTS = st.lists(st.tuples(SERIES, FRILLS), max_size=6)
UNKNOWN = b"\xf8\x7f\x07\xfa\x7f\x03abc\xf9\x7f12345678\xfd\x7f1234"  # fields 2047 of all kinds


def version_1(series) -> bytes:
    """A request of version 1, encoded with the official runtime."""
    body = b""
    for (name, labels, samples), frills in series:
        message = FIRST["TimeSeries"]()
        for label, value in [("__name__", name), *labels.items()]:
            message.labels.add(name=label.encode(), value=value.encode())
        for time, value in samples:
            message.samples.add(timestamp=time, value=value)
        if "exemplar" in frills:
            message.exemplars.add(value=1, timestamp=5)
        if "histogram" in frills:
            message.histograms.add(count_int=3, sum=1.5, timestamp=5)
        encoded = message.SerializeToString()
        if "unknown" in frills:
            encoded = UNKNOWN + encoded + UNKNOWN
        if "split" in frills:  # labels go on after the samples
            encoded += FIRST["TimeSeries"](labels=[{"name": b"late", "value": b"yes"}]).SerializeToString()
        body += b"\x0a" + _varint(len(encoded)) + encoded
        if "metadata" in frills:
            body += FIRST["WriteRequest"](metadata=[{"type": 1, "metric_family_name": "up"}]).SerializeToString()
    return body


def version_2(series, package=SECOND, unused_count: int = 0) -> bytes:
    """A request of version 2; ``unused_count`` unused symbols precede the others."""
    symbols = {b"": 0} | {b"unused %d" % number: 1 + number for number in range(unused_count)}
    request = package["Request"]()
    for (name, labels, samples), frills in series:
        message = request.timeseries.add()
        for label, value in [("__name__", name), *labels.items()] + ([("late", "yes")] if "split" in frills else []):
            message.labels_refs.extend(symbols.setdefault(text.encode(), len(symbols)) for text in (label, value))
        for time, value in samples:
            message.samples.add(timestamp=time, value=value, start_timestamp=NOW if "started" in frills else 0)
        if "exemplar" in frills:
            message.exemplars.add(value=1, timestamp=5)
        if "histogram" in frills:
            message.histograms.add(count_int=3, sum=1.5, timestamp=5)
        if "metadata" in frills:
            message.metadata.type = 2
            message.metadata.help_ref = 300
        if "created" in frills:
            message.created_timestamp = NOW
    request.symbols.extend(symbols)
    return request.SerializeToString()


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def samples_of(block) -> list:
    """The samples of a block, sorted; floats as bits."""
    labels = [labels_of(key) for key in block.keys]
    rows = zip(block.index.tolist(), block.times_ms.tolist(), block.values.view(np.uint64).tolist(), strict=True)
    return sorted((labels[at][0], sorted(labels[at][1].items()), time, bits) for at, time, bits in rows)


def expected_samples(series) -> list:
    """The samples that decoding these series must give, as of ``samples_of``."""
    return sorted(
        (
            name,
            sorted(
                {**{k: v for k, v in labels.items() if v}, **({"late": "yes"} if "split" in frills else {})}.items()
            ),
            time,
            bits,
        )
        for (name, labels, samples), frills in series
        for time, value in samples
        if (bits := struct.unpack("<Q", struct.pack("<d", value))[0]) != STALE_BITS
    )


def without_reserved_labels(series) -> bool:
    return all("late" not in labels for (_, labels, _), _ in series)


@settings(max_examples=300, deadline=None)
@given(REQUESTS.filter(without_reserved_labels))
@example(
    [(("up", {"gpu": "0"}, [(NOW, struct.unpack("<d", b"abcdef\x12\x07")[0])]), frozenset())]
)  # a value like a sample
@example([(("up", {"gpu": "\x12\x07\x10"}, [(NOW, 1.0), (NOW + 1, 0.0)]), frozenset())] * 3)
def test_both_versions_give_what_was_sent(series):
    expected = expected_samples(series)
    histograms = sum("histogram" in frills for _, frills in series)
    exemplars = sum("exemplar" in frills for _, frills in series)
    official_request = FIRST["WriteRequest"].FromString(version_1(series))
    assert sum(len(message.samples) for message in official_request.timeseries) == sum(
        len(samples) for (_, _, samples), _ in series
    )
    known_series = KnownSeries()
    for body, version in ((version_1(series), 1), (version_2(series), 2), (version_2(series, UNPACKED, 200), 2)):
        for _ in range(2):  # first the series are new, then known
            block = decode(body, version, known_series)
            assert samples_of(block) == expected
            assert (block.skipped, block.exemplars) == (histograms, exemplars)
            assert block.received == sum(len(samples) for (_, _, samples), _ in series)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.sampled_from([1, 2]))
def test_any_bytes_are_read_or_refused(body, version):
    for start in (b"", b"\x0a\x12\x0a\x10\x0a\x08__name__\x12\x04", b"\x22\x00\x22\x08__name__\x22\x01a\x2a"):
        with suppress(BadRequest):
            block = decode(start + body, version)
            assert len(block.times_ms) == len(block.values) == len(block.index)
            assert not len(block.index) or 0 <= block.index.min() <= block.index.max() < len(block.keys)


TICK = [
    (("gpu_power", {"gpu": str(number), "node": f"n{number // 8}"}, [(NOW, float(number % 3))]), frozenset())
    for number in range(500)
]


@pytest.mark.parametrize("cut", [1, 2, 7, 8, 9, 17, 18, 19, 40])
@pytest.mark.parametrize(("encode", "version"), [(version_1, 1), (version_2, 2)])
def test_a_truncated_body_is_refused(encode, version, cut):
    body = encode(TICK)
    decode(body, version)
    with pytest.raises(BadRequest, match=r"truncated|does not end"):
        decode(body[:-cut], version)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_bytes_never_crash(data):
    encode, version = data.draw(st.sampled_from([(version_1, 1), (version_2, 2)]))
    body = bytearray(encode(TICK[:8]))
    for index in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[index] = data.draw(st.integers(0, 255))
    with suppress(BadRequest):
        decode(bytes(body), version)


def test_both_versions_give_the_same_keys():
    known_series = KnownSeries()
    block, reversed_block = (
        decode(version_2(TICK), 2, known_series),
        decode(version_2(TICK[::-1], unused_count=300), 2, known_series),
    )
    assert len(known_series.keys) == len(TICK)
    assert block.keys == reversed_block.keys[::-1]
    assert set(block.keys) == set(decode(version_1(TICK), 1, known_series).keys)


def test_keys_are_correct_after_eviction():
    known_series = KnownSeries(2000)
    for _ in range(3):
        assert (
            samples_of(decode(version_1(TICK), 1, known_series))
            == samples_of(decode(version_2(TICK), 2, known_series))
            == expected_samples(TICK)
        )
        assert 0 < len(known_series.keys) < 20


def test_version_2_decoded_in_pieces_is_the_same(monkeypatch):
    long = [(("up", {"gpu": "0"}, [(NOW + at, at + 0.5) for at in range(99)]), frozenset({"exemplar", "histogram"}))]
    body = version_2([*TICK, *long])
    symbols = SECOND["Request"](symbols=SECOND["Request"].FromString(body).symbols).SerializeToString()
    monkeypatch.setattr(messages, "MAX_PIECE_BYTES", 200)
    for parts in (body, body[len(symbols) :] + symbols):  # symbols may come last
        block = decode(parts, 2)
        assert samples_of(block) == expected_samples([*TICK, *long])
        assert (block.skipped, block.exemplars) == (1, 1)


def test_empty_requests_are_accepted():
    for version in (1, 2):
        assert decode(b"", version).received == 0
        assert answer(decode(b"", version), version).status == 204
    assert decode(version_1([(("up", {}, []), frozenset())]), 1).received == 0


BAD_LABELS = {
    "no label __name__, only {gpu=\"0\"}": [(b"gpu", b"0")],
    "no label __name__": [(b"__name__", b""), (b"gpu", b"0")],
    "duplicate label \"gpu\": \"0\" and \"1\"": [(b"__name__", b"up"), (b"gpu", b"0"), (b"gpu", b"1")],
    "is not UTF-8": [(b"__name__", b"up"), (b"gpu", b"\xff\xfe")],
    "has no name": [(b"__name__", b"up"), (b"", b"0")],
    "its labels take": [(b"__name__", b"up"), (b"gpu", b"x" * 70_000)],
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_LABELS)
def test_invalid_labels_are_refused_with_the_number_of_the_series(message):
    request = FIRST["WriteRequest"].FromString(version_1(TICK[:3]))
    bad = request.timeseries.add(samples=[{"value": 1, "timestamp": NOW}])
    for name, value in BAD_LABELS[message]:
        bad.labels.add(name=name, value=value)
    with pytest.raises(BadRequest, match=f"(?s)series 3.*{message}"):
        decode(request.SerializeToString(), 1)
    table = [b"", *dict.fromkeys(text for pair in BAD_LABELS[message] for text in pair if text)]
    refs = [table.index(text) for pair in BAD_LABELS[message] for text in pair]
    body = SECOND["Request"](
        symbols=table, timeseries=[{"labels_refs": refs, "samples": [{"value": 1, "timestamp": NOW}]}]
    )
    with pytest.raises(BadRequest, match="series 0"):
        decode(body.SerializeToString(), 2)


def test_labels_in_another_order_are_the_same_series_under_another_key():
    keys = {key_of([(b"__name__", b"up"), (b"a", b"1")]), key_of([(b"a", b"1"), (b"__name__", b"up")])}
    assert len(keys) == 2
    assert {repr(labels_of(key)) for key in keys} == {repr(("up", {"a": "1"}))}


@pytest.mark.parametrize(
    ("symbols", "refs", "message"),
    [
        ([b"x"], [0, 0], "must be the empty string"),
        ([], [0, 0], "must be the empty string"),
        ([b"", b"__name__", b"up"], [1, 2, 1], "has 3 references"),
        ([b"", b"__name__", b"up"], [1, 9], "refers to symbol 9, but the request has 3"),
        ([b"", b"__name__", b"y" * 40_000], [1, 2, 2, 2], "its labels take more than"),
    ],
)  # fmt: skip
def test_invalid_symbol_references_are_refused(symbols, refs, message):
    body = SECOND["Request"](symbols=symbols, timeseries=[{"labels_refs": refs, "samples": [{"timestamp": NOW}]}])
    with pytest.raises(BadRequest, match=message):
        decode(body.SerializeToString(), 2)


def test_content_types_select_the_version():
    assert (
        version_of("application/x-protobuf") == version_of("application/x-protobuf;proto=prometheus.WriteRequest") == 1
    )
    assert version_of("application/x-protobuf; proto=io.prometheus.write.v2.Request") == 2
    for content_type in ("", "application/json", "application/x-protobuf;proto=x.Y"):
        with pytest.raises(UnsupportedMedia, match="remote write is application/x-protobuf"):
            version_of(content_type)


def test_the_response_to_version_2_counts_written_samples():
    complete = answer(decode(version_2(TICK), 2), 2)
    assert (complete.status, complete.headers["X-Prometheus-Remote-Write-Samples-Written"]) == (204, "500")
    incomplete = answer(
        decode(version_2([(("up", {}, [(NOW, 1.0), (NOW + 1, STALE)]), {"histogram", "exemplar"})]), 2), 2
    )
    assert incomplete.status == 400
    assert incomplete.headers == {
        "X-Prometheus-Remote-Write-Samples-Written": "2",
        "X-Prometheus-Remote-Write-Histograms-Written": "0",
        "X-Prometheus-Remote-Write-Exemplars-Written": "0",
    }
    assert b"1 native histograms were dropped" in incomplete.body
    assert b"send_exemplars: false" in incomplete.body


def test_the_number_of_unusual_samples_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_write_1, "MAX_MESSAGES", 1000)
    labels = key_of([(b"__name__", b"up")])
    few, many = (labels + b"\x12\x00" * count for count in (1000, 1001))
    assert len(decode(b"\x0a" + varint(len(few)) + few).values) == 1000
    with pytest.raises(PushTooLarge, match="more than 1,000 samples"):
        decode(b"\x0a" + varint(len(many)) + many)
