"""Decompression of bodies: every encoding, never beyond the limit, whatever size they declare."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from contextlib import suppress

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.serve.protocols.decoded import BadRequest, PushTooLarge, UnsupportedMedia
from trackside.serve.protocols.encoding import decompress

TEXT = b"step 10 loss 4.5455\n" * 5000


def _raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def _streamed_zstd(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()  # as collectors do: the frame does not declare its size
    return compressor.compress(data) + compressor.flush()


ENCODED = {
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "Snappy": lambda data: bytes(cramjam.snappy.compress(data)) or b"\xff\x06\x00\x00sNaPpY",
    "gzip": gzip.compress,
    "x-gzip": lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
    "deflate": zlib.compress,
    "DEFLATE": _raw_deflate,
    "zstd": zstandard.ZstdCompressor().compress,
    "ZSTD": _streamed_zstd,
    "identity": bytes,
    "": bytes,
}


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(range(256)) * 3000], ids=len)
def test_encoded_bodies_are_decompressed(name, data):
    assert decompress(ENCODED[name](data), name, len(data)) == data


@pytest.mark.parametrize("name", ENCODED)
def test_one_byte_more_than_allowed_is_too_large(name):
    with pytest.raises(PushTooLarge, match="more than 99,999 bytes"):
        decompress(ENCODED[name](TEXT), name, len(TEXT) - 1)


@pytest.mark.parametrize("name", [name for name in ENCODED if name not in ("", "identity")])
def test_a_truncated_body_is_refused(name):
    encoded = ENCODED[name](TEXT)
    with pytest.raises(BadRequest, match=f"the body is not valid {name.lower().removeprefix('x-')}"):
        decompress(encoded[: len(encoded) - 9], name, 1 << 20)


@pytest.mark.parametrize("name", ["gzip", "deflate", "zstd", "ZSTD"])
def test_memory_of_a_decompression_bomb_is_bounded(name):
    bomb = ENCODED[name](bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(PushTooLarge):
            decompress(bomb, name, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_a_wrong_size_in_a_snappy_header_is_refused():
    with pytest.raises(BadRequest, match="cannot decompress"):
        decompress(b"\xff\xff\xff\x7f\x00", "snappy", 1 << 30)
    with pytest.raises(BadRequest, match="0 bytes cannot decompress"):
        decompress(b"", "snappy", 1 << 20)


def test_nested_encodings_are_limited():
    assert decompress(gzip.compress(zlib.compress(TEXT)), "deflate, gzip", 1 << 20) == TEXT
    with pytest.raises(BadRequest, match="at most 3"):
        decompress(b"", "gzip,gzip,gzip,gzip", 10)


def test_an_unknown_encoding_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedMedia, match=r"'br' is not supported: use identity, snappy, gzip") as caught:
        decompress(b"", "br", 10)
    assert caught.value.status == 415


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(ENCODED)), body=st.binary(max_size=200))
def test_any_bytes_are_decompressed_or_refused(name, body):
    for start in (b"", b"\xff\x06\x00\x00sNaPpY", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", b"\x28\xb5\x2f\xfd"):
        with suppress(BadRequest):
            assert len(decompress(start + body, name, 1 << 16)) <= 1 << 16
