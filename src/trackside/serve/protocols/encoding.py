"""Content-Encoding: decompresses a body within a size limit.

If the body states its own size, that is checked before any memory is allocated; otherwise it is decompressed in steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import cramjam
import zstandard

from trackside.serve.protocols.decoded import BadRequest, PushTooLarge, UnsupportedMedia

MAX_ENCODINGS = 3
_STEP = 64 << 10
_ZSTD_STEP = 256
"""Bytes of zstd decompressed at once: a block has at least four and becomes at most 128 KiB."""
_ZSTD_WINDOW = 8 << 20
"""The window that every decoder must support."""
_SNAPPY_RATIO = 64
"""Three bytes become at most 64, so a header that states more is wrong."""
_SNAPPY_SLACK = 64
_STREAM = b"\xff\x06\x00\x00sNaPpY"


def decompress(body: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """The body without its encodings, at most ``max_bytes``.

    Raises UnsupportedMedia for an unknown encoding, PushTooLarge, and BadRequest for damaged data.
    """
    names = [name.strip().lower() for name in content_encoding.split(",") if name.strip()]
    if len(names) > MAX_ENCODINGS:
        raise BadRequest(f"{len(names)} nested encodings: at most {MAX_ENCODINGS} are supported")
    for name in reversed(names):
        if name not in _DECODERS:
            raise UnsupportedMedia(f"Content-Encoding {name[:40]!r} is not supported: use {', '.join(_DECODERS)}")
        body = _DECODERS[name](body, max_bytes)
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> PushTooLarge:
    return PushTooLarge(f"the body has more than {max_bytes:,} bytes, the limit of this server: send smaller batches")


def _damage(name: str, reason: object) -> BadRequest:
    return BadRequest(f"the body is not valid {name}: {str(reason)[:200]}")


def _snappy(body: bytes, max_bytes: int) -> bytes:
    if body.startswith(_STREAM):
        return _snappy_stream(body, max_bytes)
    size = _snappy_size(body)
    if size > max_bytes:
        raise _too_large(max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise _damage("snappy", error) from None


def _snappy_size(block: bytes) -> int:
    try:
        size = int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise _damage("snappy", error) from None
    if not block or size > len(block) * _SNAPPY_RATIO + _SNAPPY_SLACK:
        raise _damage("snappy", f"{len(block):,} bytes cannot decompress to the {size:,} that their header states")
    return size


def _snappy_stream(body: bytes, max_bytes: int) -> bytes:
    """The framed format: remote write forbids it, but some senders use it."""
    offset = total = 0
    while offset < len(body):
        kind, size = body[offset], int.from_bytes(body[offset + 1 : offset + 4], "little")
        chunk = body[offset + 8 : offset + 4 + size]  # after a checksum
        total += _snappy_size(chunk) if kind == 0 else len(chunk) if kind == 1 else 0
        if total > max_bytes:
            raise _too_large(max_bytes)
        offset += 4 + size
    try:
        return bytes(cramjam.snappy.decompress(body, output_len=total))
    except cramjam.DecompressionError as error:
        raise _damage("snappy", error) from None


def _gzip(body: bytes, max_bytes: int) -> bytes:
    return _inflate(body, max_bytes, "gzip", zlib.MAX_WBITS | 16)


def _deflate(body: bytes, max_bytes: int) -> bytes:
    """With zlib's header, as the standard says, or without, as some senders do."""
    has_header = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflate(body, max_bytes, "deflate", zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


def _inflate(body: bytes, max_bytes: int, name: str, window: int) -> bytes:
    out, remaining = bytearray(), body
    while True:  # gzip allows several members in a row
        member = zlib.decompressobj(window)
        while not member.eof:
            try:
                step = member.decompress(remaining, _STEP)
            except zlib.error as error:
                raise _damage(name, error) from None
            remaining = member.unused_data if member.eof else member.unconsumed_tail
            out += step
            if len(out) > max_bytes:
                raise _too_large(max_bytes)
            if not step and not remaining and not member.eof:
                raise _damage(name, "it is truncated")
        if not remaining.strip(b"\0"):
            return bytes(out)


def _zstd(body: bytes, max_bytes: int) -> bytes:
    out, offset = bytearray(), 0
    decoder = zstandard.ZstdDecompressor(max_window_size=max(_ZSTD_WINDOW, max_bytes))
    while offset < len(body) or not offset:
        frame = decoder.decompressobj()
        try:
            if 0 <= max_bytes < zstandard.frame_content_size(body[offset : offset + 18]):
                raise _too_large(max_bytes)
            while not frame.eof:
                piece = body[offset : offset + _ZSTD_STEP]
                if not piece:
                    raise _damage("zstd", "it is truncated")
                out += frame.decompress(piece)
                offset += len(piece)
                if len(out) > max_bytes:
                    raise _too_large(max_bytes)
        except zstandard.ZstdError as error:
            raise _damage("zstd", error) from None
        offset -= len(frame.unused_data)
    return bytes(out)


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "identity": lambda body, _: body,
    "snappy": _snappy,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
