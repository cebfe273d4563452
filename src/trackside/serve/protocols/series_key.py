"""The key of a series: its labels as remote write 1.0 encodes them, for every protocol.

A key is checked once, when it is new; after that a sample costs one dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from trackside.serve.protocols.decoded import BadRequest
from trackside.serve.protocols.wire import BYTES, fields

NAME = b"__name__"
MAX_KEY_BYTES = 64 << 10
"""Bytes of one series' labels: far more than senders have, and small enough for a million of them."""
MAX_CACHE_BYTES = 128 << 20
"""Approximate bytes of cached keys; when it is exceeded, the cache is emptied."""
_ENTRY_BYTES = 200
"""Memory of a dictionary entry and two byte strings, in addition to their content."""
MAX_QUOTED_BYTES = 80


class KnownSeries:
    """A cache: labels of a series as a protocol writes them -> their checked key.

    A receiver has one, shared by its threads and protocols: remote write 1.0 looks up bytes, the others tuples.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.keys: dict[Hashable, bytes] = {}
        self._max_bytes = self._free_bytes = max_bytes

    def add(self, raw: Hashable, key: bytes, raw_bytes: int) -> bytes:
        """Cache a key; returns it. ``raw_bytes``: memory of ``raw``."""
        size = raw_bytes + len(key) + _ENTRY_BYTES
        self._free_bytes -= size
        if self._free_bytes < 0:
            self.keys.clear()
            self._free_bytes = self._max_bytes - size
        self.keys[raw] = key
        return key

    def add_checked(self, raw: Hashable, key: bytes, raw_bytes: int, index: int) -> bytes:
        """Check and cache the key of a series of the request. Raises BadRequest: see :func:`check_key`."""
        check_key(key, f"series {index:,} of the request, counted from 0")
        return self.add(raw, key, raw_bytes)


def varint(number: int) -> bytes:
    """A number as a varint."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def key_of(labels: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key of labels, including ``__name__``, in the given order."""
    parts = []
    for name, value in labels:
        label = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
        parts.append(b"\x0a" + varint(len(label)) + label)
    return b"".join(parts)


def pairs(key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The labels of a key as they were sent."""
    offset, end = 0, len(key)
    while offset + 4 < end:
        # The common case: name and value of less than 128 bytes, and nothing else. fields() reads the rest.
        stop, middle = offset + 2 + key[offset + 1], offset + 4 + key[offset + 3]
        if not (key[offset] == key[offset + 2] == 0x0A and stop <= min(end, offset + 0x81) and middle + 1 < stop):
            break
        if key[middle] != 0x12 or middle + 2 + key[middle + 1] != stop:
            break
        yield key[offset + 4 : middle], key[middle + 2 : stop]
        offset = stop
    for number, kind, begin, stop in fields(key, offset, end):
        if number == 1 and kind == BYTES:
            yield _pair(key, begin, stop)


def _pair(key: bytes, offset: int, end: int) -> tuple[bytes, bytes]:
    name = value = b""
    for number, kind, begin, stop in fields(key, offset, end):
        if kind == BYTES and number == 1:
            name = key[begin:stop]
        elif kind == BYTES and number == 2:
            value = key[begin:stop]
    return name, value


def labels_of(key: bytes) -> tuple[str, dict[str, str]]:
    """Name and labels of a series, without empty labels."""
    labels = {name.decode(): value.decode() for name, value in pairs(key) if value}
    return labels.pop(NAME.decode(), ""), labels


def check_key(key: bytes, where: str) -> None:
    """Raise BadRequest for invalid labels; ``where`` begins the message."""
    if len(key) > MAX_KEY_BYTES:
        raise BadRequest(
            f"{where}: its labels take {len(key):,} bytes, but at most {MAX_KEY_BYTES:,} are accepted: drop the longest"
        )
    labels: dict[bytes, bytes] = {}
    for name, value in pairs(key):
        for text in (name, value):
            if not (text.isascii() or _is_utf8(text)):
                raise BadRequest(f"{where}: {_quote(text)} in its labels is not UTF-8")
        if not name:
            raise BadRequest(f"{where}: a label with the value {_quote(value)} has no name")
        if name in labels:
            raise BadRequest(f"{where}: duplicate label {_quote(name)}: {_quote(labels[name])} and {_quote(value)}")
        labels[name] = value
    if not labels.get(NAME):
        labels_text = ", ".join(f"{_quote(name)[1:-1]}={_quote(value)}" for name, value in list(labels.items())[:8])
        raise BadRequest(f"{where}: there is no label __name__, only {{{labels_text}}}")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _quote(text: bytes) -> str:
    whole = text[:MAX_QUOTED_BYTES].decode("utf-8", "backslashreplace")
    return f'"{whole}{"..." if len(text) > MAX_QUOTED_BYTES else ""}"'
