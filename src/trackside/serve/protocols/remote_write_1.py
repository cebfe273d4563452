"""Remote write 1.0, read in place: the only wire format with a decoder of our own.

A series is a message that usually consists of labels, then of samples in a row without a gap (a chain). The bytes of
the labels are the key of the series: if the bytes before the last chain are a known key, only the samples are decoded.
Only new and unusual series are read field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from trackside.serve.protocols.decoded import PushTooLarge
from trackside.serve.protocols.samples import SampleRows, SampleScan
from trackside.serve.protocols.series_key import KnownSeries
from trackside.serve.protocols.wire import BYTES, FIXED64, MAX_MESSAGES, VARINT, fields, split_messages, to_signed
from trackside.stores.receiver.arrivals import MetricBlock

_DOUBLE = struct.Struct("<d")


def decode(body: bytes, known_series: KnownSeries) -> MetricBlock:
    """The samples of a decompressed request. Raises BadRequest."""
    scan, rows = SampleScan.of(body), SampleRows()
    starts, ends = scan.messages() or split_messages(body, 1)
    begins = scan.leading_to(starts, ends)
    get = known_series.keys.get
    keys = [get(body[start:end]) for start, end in zip(starts.tolist(), begins.tolist(), strict=True)]
    new = [index for index, key in enumerate(keys) if key is None] if None in keys else []
    for index in new:
        begins[index] = _after_labels(body, int(starts[index]), int(ends[index]))
    first, counts, stops = scan.chains(begins, ends)
    late_labels = {
        index: list(_late_labels(rows, body, index, int(stops[index]), int(ends[index])))
        for index in np.flatnonzero(stops < ends).tolist()
    }
    for index in new:
        raw = b"".join([body[starts[index] : begins[index]], *late_labels.get(index, ())])
        keys[index] = get(raw) or known_series.add_checked(raw, raw, len(raw), index)
    series = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return rows.block([key for key in keys if key is not None], series, *scan.read(first, counts))


def _after_labels(body: bytes, offset: int, end: int) -> int:
    """The end of the labels at the beginning of a series."""
    begin = offset
    while offset + 1 < end and body[offset] == 0x0A:
        length = body[offset + 1]
        offset = next(fields(body, offset, end))[3] if length >= 0x80 else offset + 2 + length
    return offset if offset <= end else begin  # a label is longer than the series: fields() reports it


def _late_labels(rows: SampleRows, body: bytes, index: int, offset: int, end: int) -> Iterator[bytes]:
    """The labels of a series that follow a chain of samples; adds samples of any other form to the rows."""
    for number, kind, value, stop in fields(body, offset, end):
        if kind == BYTES and number == 1:
            yield body[offset:stop]
        elif kind == BYTES and number == 2:
            _add_sample(rows, body, index, value, stop)
        elif kind == BYTES and number == 3:
            rows.exemplars += 1
        elif kind == BYTES and number == 4:
            rows.histograms += 1
        offset = stop


def _add_sample(rows: SampleRows, body: bytes, index: int, offset: int, end: int) -> None:
    time, reading = 0, 0.0
    for number, kind, content, _ in fields(body, offset, end):
        if number == 1 and kind == FIXED64:
            reading = _DOUBLE.unpack_from(body, content)[0]
        elif number == 2 and kind == VARINT:
            time = to_signed(content)
    if len(rows.index) >= MAX_MESSAGES:
        raise PushTooLarge(f"more than {MAX_MESSAGES:,} samples in an unusual encoding: send smaller batches")
    rows.index.append(index)
    rows.times_ms.append(time)
    rows.values.append(reading)
