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
_SHOWN = 80


class KnownSeries:
    """A cache: labels of a series as a protocol writes them -> their checked key.

    A receiver has one, shared by its threads and protocols: remote write 1.0 looks up bytes, the others tuples.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.keys: dict[Hashable, bytes] = {}
        self._max = self._room = max_bytes

    def add(self, raw: Hashable, key: bytes, raw_bytes: int) -> bytes:
        """Cache a key; returns it. ``raw_bytes``: memory of ``raw``."""
        size = raw_bytes + len(key) + _ENTRY_BYTES
        self._room -= size
        if self._room < 0:
            self.keys.clear()
            self._room = self._max - size
        self.keys[raw] = key
        return key

    def add_checked(self, raw: Hashable, key: bytes, raw_bytes: int, index: int) -> bytes:
        """Check and cache the key of a series of the request. Raises BadRequest: see :func:`check_key`."""
        check_key(key, f"series {index:,} of the request, counted from 0")
        return self.add(raw, key, raw_bytes)


def length(number: int) -> bytes:
    """A length as a varint."""
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
        label = b"\x0a" + length(len(name)) + name + b"\x12" + length(len(value)) + value
        parts.append(b"\x0a" + length(len(label)) + label)
    return b"".join(parts)


def pairs(key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The labels of a key as they were sent."""
    at, end = 0, len(key)
    while at + 4 < end:
        # The common case: name and value of less than 128 bytes, and nothing else. fields() reads the rest.
        stop, middle = at + 2 + key[at + 1], at + 4 + key[at + 3]
        if not (key[at] == key[at + 2] == 0x0A and stop <= min(end, at + 0x81) and middle + 1 < stop):
            break
        if key[middle] != 0x12 or middle + 2 + key[middle + 1] != stop:
            break
        yield key[at + 4 : middle], key[middle + 2 : stop]
        at = stop
    for number, kind, begin, stop in fields(key, at, end):
        if number == 1 and kind == BYTES:
            yield _pair(key, begin, stop)


def _pair(key: bytes, at: int, end: int) -> tuple[bytes, bytes]:
    name = value = b""
    for number, kind, begin, stop in fields(key, at, end):
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
                raise BadRequest(f"{where}: {_shown(text)} in its labels isn't UTF-8")
        if not name:
            raise BadRequest(f"{where}: a label with the value {_shown(value)} has no name")
        if name in labels:
            raise BadRequest(f"{where}: duplicate label {_shown(name)}: {_shown(labels[name])} and {_shown(value)}")
        labels[name] = value
    if not labels.get(NAME):
        others = ", ".join(f"{_shown(name)[1:-1]}={_shown(value)}" for name, value in list(labels.items())[:8])
        raise BadRequest(f"{where}: there is no label __name__, only {{{others}}}")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shown(text: bytes) -> str:
    whole = text[:_SHOWN].decode("utf-8", "backslashreplace")
    return f'"{whole}{"..." if len(text) > _SHOWN else ""}"'
