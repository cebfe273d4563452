"""Remote write 2.0: labels are references to the symbols of the request."""

from __future__ import annotations

import numpy as np

from trackside.serve.protocols.decoded import BadRequest, PushTooLarge
from trackside.serve.protocols.messages import MessageShape, parse_messages
from trackside.serve.protocols.samples import SampleRows
from trackside.serve.protocols.schema import Symbols, WriteRequest
from trackside.serve.protocols.series_key import MAX_KEY_BYTES, KnownSeries, key_of
from trackside.serve.protocols.wire import MAX_MESSAGES
from trackside.stores.receiver.arrivals import MetricBlock

MAX_SAMPLES = 1 << 23
"""Samples in one request, about what fits in the queue; an empty sample has two bytes and takes 20."""
_SHAPE: MessageShape = {4: {}, 5: {2: {}, 3: {}, 4: {}}}
_POINTER_BYTES = 16
"""Memory of a symbol in a tuple; the symbol itself is shared by many series."""


def decode(body: bytes, known_series: KnownSeries) -> MetricBlock:
    """The samples of a decompressed request. Raises BadRequest."""
    symbols, rows, keys = _symbols(body), SampleRows(), list[bytes]()
    add_index, add_time, add_value = rows.index.append, rows.times_ms.append, rows.values.append
    get = known_series.keys.get
    for request in parse_messages(WriteRequest, body, _SHAPE):
        if request.timeseries and (not symbols or symbols[0]):
            raise BadRequest("the first symbol must be the empty string: without it all references may be off by one")
        for series in request.timeseries:
            index = len(keys)
            try:
                labels = tuple([symbols[ref] for ref in series.labels_refs])
            except IndexError:
                raise BadRequest(
                    f"series {index:,}: labels_refs refers to symbol {max(series.labels_refs):,}, but the request has "
                    f"{len(symbols):,}"
                ) from None
            keys.append(get(labels) or _new_key(known_series, labels, index))
            for sample in series.samples:
                add_index(index)
                add_time(sample.timestamp)
                add_value(sample.value)
            rows.histograms += len(series.histograms)
            rows.exemplars += len(series.exemplars)
        if len(rows.index) > MAX_SAMPLES:
            raise PushTooLarge(f"more than {MAX_SAMPLES:,} samples: send smaller batches")
    return rows.block(keys, np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64))


def _symbols(body: bytes) -> list[bytes]:
    symbols: list[bytes] = []
    for request in parse_messages(Symbols, body, _SHAPE):
        symbols += request.symbols
        if len(symbols) > MAX_MESSAGES:
            raise BadRequest(
                f"{len(symbols):,} symbols in one request, but at most {MAX_MESSAGES:,} are accepted: "
                "send smaller batches"
            )
    return symbols


def _new_key(known_series: KnownSeries, labels: tuple[bytes, ...], index: int) -> bytes:
    if len(labels) % 2:
        raise BadRequest(
            f"series {index:,}: labels_refs has {len(labels):,} references, but names and values come in pairs"
        )
    if sum(map(len, labels)) > MAX_KEY_BYTES:
        raise BadRequest(f"series {index:,}: its labels take more than {MAX_KEY_BYTES:,} bytes: drop the longest")
    key = key_of(zip(labels[::2], labels[1::2], strict=True))
    return known_series.add_checked(labels, key, _POINTER_BYTES * len(labels), index)
