"""Labels of remote write 2.0: numbers of symbols, which are other ones in each request.

Each symbol has a number of ours for good. A series' references, put in those, are the same bytes in all requests, and
lead to its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from trackside.serve.protocols.decoded import BadRequest
from trackside.serve.protocols.series_key import MOST_BYTES, Known, key_of
from trackside.serve.protocols.wire import BYTES, SIX, SIX_MASK, VARINT, Offsets, bytes_of, split, varint, words_of

MOST = 1 << 20
"""Symbols of one request; and symbols that are remembered, beyond which all are forgotten."""
REMEMBERED = 64 << 20
"""Bytes of symbols that are remembered."""
BATCH = 4 << 20
"""Bytes of a request whose references are worked on at once: they take forty times their size while that lasts."""
_METADATA = 0x2A
_CREATED = SIX | 0x3000


class _Numbers:
    """A number for each symbol, and the keys of series by such numbers."""

    def __init__(self) -> None:
        self.known = Known()
        self._of: dict[bytes, int] = {}
        self._next = count()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._of) > MOST or self._bytes > REMEMBERED

    def of(self, symbols: Sequence[bytes]) -> NDArray[np.int32]:
        """The numbers of symbols; two threads that meet the same new one agree on it."""
        found = list(map(self._of.get, symbols))
        if None in found:
            for place, symbol in enumerate(symbols):
                if found[place] is None:
                    found[place] = self._of.setdefault(symbol, next(self._next))
                    self._bytes += len(symbol)
        return np.array(found, dtype=np.int32)


_numbers = _Numbers()
_swap = Lock()


def _current() -> _Numbers:
    """The numbers for one request; where too many are remembered, new ones."""
    global _numbers
    with _swap:
        if _numbers.is_full:
            _numbers = _Numbers()
        return _numbers


def read(body: bytes) -> tuple[Table, Offsets, Offsets]:
    """The symbols of a request, and where its series begin and end."""
    spans, (starts, ends) = split(body, 0, len(body), 4, 5)
    if len(spans[0]) > MOST:
        raise BadRequest(f"{len(spans[0]):,} symbols in one request, at most {MOST:,} are taken: send less at once")
    symbols = [body[start:end] for start, end in zip(spans[0].tolist(), spans[1].tolist(), strict=True)]
    if len(starts) and (not symbols or symbols[0]):
        raise BadRequest("the first symbol must be the empty string: without it all references may be off by one")
    numbers = _current()  # once: another thread may begin anew, and keys are by the numbers of one table alone
    return Table(body, symbols, numbers.of(symbols), numbers.known), starts, ends


def after_refs(body: bytes, starts: Offsets, ends: Offsets) -> Offsets:
    """Where the references end that a series begins with, as nearly all do; where it begins otherwise."""
    octets = bytes_of(body)
    final = len(octets) - 1
    lengths = octets[np.minimum(starts + 1, final)].astype(np.int64)
    stops = starts + 2 + lengths
    plain = (stops <= ends) & (octets[np.minimum(starts, final)] == 0x0A) & (lengths < 0x80)
    return np.where(plain, stops, starts)


def after_metadata(body: bytes, at: Offsets, ends: Offsets) -> Offsets:
    """Where metadata and a creation time end, if they follow and nothing else does; else the same place."""
    if len(body) < 8:
        return at
    octets, words = bytes_of(body), words_of(body)
    final = len(octets) - 1
    lengths = octets[np.minimum(at + 1, final)].astype(np.int64)
    stops = at + 2 + lengths
    stops = np.where(
        (octets[np.minimum(at, final)] == _METADATA) & (lengths < 0x80) & (at + 1 < ends) & (stops <= ends), stops, at
    )
    created = (stops + 7 == ends) & (words[np.maximum(ends - 8, 0)] & SIX_MASK == _CREATED)
    return np.where(created | (stops == ends), ends, at)


@dataclass(frozen=True, slots=True)
class Table:
    """The symbols of one request, and the number of each."""

    body: bytes
    symbols: Sequence[bytes]
    numbers: NDArray[np.int32]
    known: Known = field(repr=False)

    def keys(
        self, starts: Offsets, begins: Offsets, ends: Offsets, more: Mapping[int, Sequence[tuple[int, int, int, int]]]
    ) -> list[bytes]:
        """The keys of all series: their references stand from ``starts`` to ``begins``, and in ``more`` of them."""
        keys: list[bytes] = []
        cuts = np.searchsorted(ends, np.arange(BATCH, len(self.body) + BATCH, BATCH), "right").tolist()
        for first, last in pairwise([0, *cuts]):
            spans = zip(starts[first:last].tolist(), begins[first:last].tolist(), strict=True)
            packed = [self.body[start + 2 : begin] for start, begin in spans]
            for place in more.keys() & range(first, last) if more else ():
                packed[place - first] += self._packed(more[place], place)
            keys += self._found(packed, first)
        return keys

    def _packed(self, labels: Sequence[tuple[int, int, int, int]], place: int) -> bytes:
        """The references in fields as one packed field holds them, whether or not they were sent so."""
        packed = b"".join(
            self.body[value:stop] if kind == BYTES else self.body[varint(self.body, tag, stop)[1] : stop]
            for tag, kind, value, stop in labels
            if kind in (BYTES, VARINT)
        )
        if len(packed) > MOST_BYTES:
            raise BadRequest(
                f"series {place:,}: labels_refs takes {len(packed):,} bytes, at most {MOST_BYTES:,} are taken"
            )
        return packed

    def _found(self, packed: Sequence[bytes], first: int) -> list[bytes]:
        refs, bounds = _unpacked(packed, first)
        if len(refs) and refs.max() >= len(self.symbols):
            place = first + int(np.searchsorted(bounds, refs.argmax(), "right")) - 1
            raise BadRequest(
                f"series {place:,}: labels_refs names symbol {refs.max():,}, and the request has {len(self.symbols):,}"
            )
        numbers, get = self.numbers[refs].tobytes(), self.known.keys.get
        raws = [numbers[start:end] for start, end in pairwise((bounds * 4).tolist())]
        return [
            get(raw) or self._new(raw, refs[bounds[place] : bounds[place + 1]].tolist(), first + place)
            for place, raw in enumerate(raws)
        ]

    def _new(self, raw: bytes, refs: Sequence[int], place: int) -> bytes:
        texts = [self.symbols[ref] for ref in refs]
        if sum(map(len, texts)) > MOST_BYTES:
            raise BadRequest(f"series {place:,}: its labels take more than {MOST_BYTES:,} bytes: drop the longest")
        return self.known.judged(raw, key_of(zip(texts[::2], texts[1::2], strict=True)), place)


def _unpacked(packed: Sequence[bytes], first: int) -> tuple[Offsets, Offsets]:
    """All references in a row, and where each series' begin among them (one more than there are series)."""
    octets = bytes_of(b"".join(packed))
    lengths = np.fromiter(map(len, packed), dtype=np.int64, count=len(packed))
    ends = np.flatnonzero(octets < 0x80)
    bounds = np.concatenate([[0], np.searchsorted(ends, np.cumsum(lengths))])
    widths = np.diff(ends, prepend=-1)
    counts = np.diff(bounds)
    wrong = counts % 2 != 0
    wrong[lengths > 0] |= octets[np.cumsum(lengths)[lengths > 0] - 1] >= 0x80
    if wrong.any() or (len(widths) and widths.max() > 5):
        place = int(wrong.argmax() if wrong.any() else np.searchsorted(bounds, widths.argmax(), "right") - 1)
        raise BadRequest(
            f"series {first + place:,}: labels_refs holds {counts[place]:,} references in {lengths[place]:,} bytes; "
            "they must be whole numbers of up to 32 bits, and names and values come in pairs"
        )
    refs = octets[ends].astype(np.int64)  # the highest seven bits stand last
    for part in range(1, int(widths.max()) if len(widths) else 0):
        more = np.flatnonzero(widths > part)
        refs[more] = refs[more] << 7 | octets[ends[more] - part] & 0x7F
    return refs, bounds
