"""Content-Encoding: a body as it was before it was compressed, never more of it than is allowed.

What a body says of its own size is checked before any memory is taken; what doesn't say is decompressed in steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import cramjam
import zstandard

from trackside.serve.protocols.decoded import BadRequest, TooLarge, Unsupported

MOST_ENCODINGS = 3
_STEP = 64 << 10
_ZSTD_STEP = 256
"""Bytes of zstd handed in at once: a block takes four at least and gives 128 KiB at most."""
_ZSTD_WINDOW = 8 << 20
"""What every decoder is to support."""
_SNAPPY_RATIO = 64
"""Three bytes give 64 at most; a header that says more lies."""
_SNAPPY_SLACK = 64
_STREAM = b"\xff\x06\x00\x00sNaPpY"


def decompress(body: bytes, content_encoding: str, most: int) -> bytes:
    """The body without its encodings, at most ``most`` bytes of it.

    Raises Unsupported for an encoding that is not known, TooLarge, and BadRequest for broken data.
    """
    names = [name.strip().lower() for name in content_encoding.split(",") if name.strip()]
    if len(names) > MOST_ENCODINGS:
        raise BadRequest(f"{len(names)} encodings one in another: at most {MOST_ENCODINGS} are undone")
    for name in reversed(names):
        if name not in _DECODERS:
            raise Unsupported(f"Content-Encoding {name[:40]!r} is not known here: use {', '.join(_DECODERS)}")
        body = _DECODERS[name](body, most)
    if len(body) > most:
        raise _too_large(most)
    return body


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body has more than {most:,} bytes, which is the limit here: send less at once")


def _broken(name: str, why: object) -> BadRequest:
    return BadRequest(f"Content-Encoding says {name}, and the body is no whole {name}: {str(why)[:200]}")


def _snappy(body: bytes, most: int) -> bytes:
    if body.startswith(_STREAM):
        return _snappy_stream(body, most)
    size = _snappy_size(body)
    if size > most:
        raise _too_large(most)
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise _broken("snappy", error) from None


def _snappy_size(block: bytes) -> int:
    try:
        size = int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise _broken("snappy", error) from None
    if not block or size > len(block) * _SNAPPY_RATIO + _SNAPPY_SLACK:
        raise _broken("snappy", f"{len(block):,} bytes can't become the {size:,} that they say")
    return size


def _snappy_stream(body: bytes, most: int) -> bytes:
    """The framed format: remote write forbids it, and some senders use it."""
    at = total = 0
    while at < len(body):
        kind, size = body[at], int.from_bytes(body[at + 1 : at + 4], "little")
        chunk = body[at + 8 : at + 4 + size]  # after a checksum
        total += _snappy_size(chunk) if kind == 0 else len(chunk) if kind == 1 else 0
        if total > most:
            raise _too_large(most)
        at += 4 + size
    try:
        return bytes(cramjam.snappy.decompress(body, output_len=total))
    except cramjam.DecompressionError as error:
        raise _broken("snappy", error) from None


def _gzip(body: bytes, most: int) -> bytes:
    return _inflated(body, most, "gzip", zlib.MAX_WBITS | 16)


def _deflate(body: bytes, most: int) -> bytes:
    """With zlib's header, as the standard has it, or without, as some have it."""
    headed = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflated(body, most, "deflate", zlib.MAX_WBITS if headed else -zlib.MAX_WBITS)


def _inflated(body: bytes, most: int, name: str, window: int) -> bytes:
    out, rest = bytearray(), body
    while True:  # gzip allows several members in a row
        member = zlib.decompressobj(window)
        while not member.eof:
            try:
                step = member.decompress(rest, _STEP)
            except zlib.error as error:
                raise _broken(name, error) from None
            rest = member.unused_data if member.eof else member.unconsumed_tail
            out += step
            if len(out) > most:
                raise _too_large(most)
            if not step and not rest and not member.eof:
                raise _broken(name, "it is cut off")
        if not rest.strip(b"\0"):
            return bytes(out)


def _zstd(body: bytes, most: int) -> bytes:
    out, at = bytearray(), 0
    decoder = zstandard.ZstdDecompressor(max_window_size=max(_ZSTD_WINDOW, most))
    while at < len(body) or not at:
        frame = decoder.decompressobj()
        try:
            if 0 <= most < zstandard.frame_content_size(body[at : at + 18]):
                raise _too_large(most)
            while not frame.eof:
                piece = body[at : at + _ZSTD_STEP]
                if not piece:
                    raise _broken("zstd", "it is cut off")
                out += frame.decompress(piece)
                at += len(piece)
                if len(out) > most:
                    raise _too_large(most)
        except zstandard.ZstdError as error:
            raise _broken("zstd", error) from None
        at -= len(frame.unused_data)
    return bytes(out)


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "identity": lambda body, _: body,
    "snappy": _snappy,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
