"""Any bytes give at most a note, never an undocumented exception, and take no more memory than a few blocks."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read.metrics.reading import T0, metric, only, read
from trackside.model import Samples
from trackside.read import blocks
from trackside.read.detect import formats, read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, Format, InputSource, InputTooLarge, Result
from trackside.read.walk import walk

METRIC_FORMATS = ("dstat-csv", "metric-parquet", "metric-table", "other-table", "prometheus-json", "prometheus-text",
          "superbench-monitor", "victoria-export")  # fmt: skip
READERS = [format_ for format_ in formats() if format_.id in METRIC_FORMATS]
UTIL = "DCGM_FI_DEV_GPU_UTIL"
PHRASES = [
    f'{UTIL}{{gpu="0",Hostname="n1"}} 97 {T0}', f"{UTIL}{{", f'{UTIL}{{gpu="', '"} 5', " 1e999 ", "# TYPE x gauge", "# EOF",
    "Fri Nov 31 12:56:00 UTC 2025", "# 2025-13-45T99:99:99Z", "1763729760", "9" * 400, "-", "NaN", "\0" * 20, "\r", "\n", ",",
    f"timestamp,gpu,{UTIL}", f"time,metric,value\n1763729760,{UTIL},5", '"', '""', "1763729760,0,97", ";", "\t", "\x1f",
    '{"status":"success","data":{"resultType":"matrix","result":[', '{"status":"error"', "]}}", "[1763729760,\"5\"]",
    f'{{"metric":{{"__name__":"{UTIL}"}},"values":[1],"timestamps":[{T0}]}}', "1e400", "null",
    '"Dstat 0.7.2 CSV output"', '"Host:","n1"', '"Cmdline:","dstat 5",,,,"Date:","21 Nov 2025 12:56:00 UTC"',
    '"total cpu usage",,"epoch"', '"usr","idl","epoch"', "1.0,50.0,1e30", '{"time": "2025-11-21 12:56:00", "gpu_usage:0": 5}',
    '{"time": "x", "gpu_usage:0": 1e999}', "PAR1", "\ufeff", "é", "\u2028",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PHRASES), st.text(max_size=12)), max_size=25).flatmap(
    lambda parts: st.sampled_from(["", "\n", " ", ","]).map(
        lambda glue: glue.join(parts).encode("utf-8", "surrogatepass")
    )
)
BYTES = st.one_of(TEXTS, st.binary(max_size=300), st.tuples(TEXTS, st.binary(max_size=40)).map(b"".join))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.id)
@settings(max_examples=150)
@given(data=BYTES, size=st.sampled_from([8 << 20, 30]))
def test_readers_of_any_bytes_raise_only_documented_errors(reader: Format, data: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        source = InputSource("x", data[:HEAD_BYTES], io.BytesIO(data), len(data), T0 / 1000)
        sink = CollectingSink()
        reader.sniff(source)
        try:
            result = reader.read(source, sink)
        except (ValueError, OSError, EOFError, InputTooLarge, RecursionError):
            return
    assert isinstance(result, Result)
    assert result.rows == sum(map(len, sink.blocks))
    for block in sink.blocks:
        assert len(block.index) == len(block.times_ms) == len(block.values)
        assert block.index.min() >= 0
        assert block.index.max() < len(block.series)


class GeneratedFile(io.RawIOBase):
    """A file that is generated while it is read."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._rest = parts, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._rest = self._rest or next(self._parts, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class DiscardingSink(CollectingSink):
    """A sink that keeps no samples."""

    def samples(self, samples: Samples) -> None:
        return None


def peak_mib(parts: Iterator[bytes]) -> tuple[float, str]:
    """(peak memory of reading in MiB, format, status and note of the file)."""
    stream = io.BufferedReader(GeneratedFile(parts), HEAD_BYTES)
    source = InputSource("big", stream.peek(HEAD_BYTES)[:HEAD_BYTES], stream)  # type: ignore[arg-type]
    tracemalloc.start()
    row = read_source(source, DiscardingSink())
    peak = tracemalloc.get_traced_memory()[1] / (1 << 20)
    tracemalloc.stop()
    return peak, f"{row.format} {row.status}: {row.note}"


@pytest.mark.slow  # every allocation is traced
def test_memory_of_an_endless_line_is_bounded() -> None:
    def chunks() -> Iterator[bytes]:
        yield f'{UTIL}{{gpu="0"}} 97 {T0}\n'.encode() * 1000
        for _ in range(100):
            yield b"x" * (1 << 20)

    peak, summary = peak_mib(chunks())
    assert "1 line longer than 1 MiB (first: line 1,001)" in summary
    assert peak < 60


@pytest.mark.slow  # every allocation is traced
def test_memory_of_distinct_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("measurements", "formats.prometheus_text"):
        monkeypatch.setattr(f"trackside.read.{module}.MAX_SERIES", 5000)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 20)

    def chunks(name: str) -> Iterator[bytes]:
        for block in range(60):
            yield "".join(
                f'{name}{{gpu="0",pid="{block * 1000 + number}"}} 97 {T0}\n' for number in range(1000)
            ).encode()

    peak_of_known, summary = peak_mib(chunks(UTIL))
    assert "prometheus-text partial" in summary
    assert "more than 5,000 series" in summary
    peak_of_unknown, summary = peak_mib(chunks(f'{UTIL}{{gpu="1"}} 5 {T0}\nacme_threads'))
    assert "1 of 2 metrics are known" in summary
    assert max(peak_of_known, peak_of_unknown) < 40


def test_memory_of_metric_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("measurements", "formats.prometheus_text"):
        monkeypatch.setattr(f"trackside.read.{module}.MAX_NAMES", 100)
    text = "".join(f"acme_{number} 5 {T0}\n" for number in range(500))
    row, _ = read(f'{UTIL}{{gpu="0"}} 5 {T0}\n{text}')
    assert row.rows == 1


LINES = {
    "prometheus-text": [f'{UTIL}{{gpu="{gpu}",Hostname="n1"}} {5 + gpu} {T0}' for gpu in range(3)],
    "metric-table": [f"timestamp,gpu,{UTIL}", *(f"{T0},{gpu},{5 + gpu}" for gpu in range(3))],
    "victoria-export": [
        f'{{"metric":{{"__name__":"{UTIL}","gpu":"{gpu}"}},"values":[{5 + gpu}],"timestamps":[{T0}]}}' for gpu in range(3)
    ],
    "nvidia-smi-csv": ["timestamp, index, utilization.gpu [%]",
                       *(f"2025/11/21 12:56:00.000, {gpu}, {5 + gpu} %" for gpu in range(3))],
    "nvidia-smi-dmon": ["#Date       Time        gpu     sm", "#YYYYMMDD   HH:MM:SS    Idx      %",
                        *(f" 20251121   12:56:00      {gpu}      {5 + gpu}" for gpu in range(3))],
    "dcgmi-dmon": ["2025-11-21T12:56:00Z", "#Entity   GPUTL", "ID", *(f"GPU {gpu}     {5 + gpu}" for gpu in range(3))],
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("end", ["\n", "\r\n", "mixed"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_line_ends_and_encodings_change_nothing(name: str, end: str, encoding: str, tmp_path: Path) -> None:
    ends = itertools.cycle(["\r\n", "\n"] if end == "mixed" else [end])
    text = "".join(line + next(ends) for line in LINES[name])
    (tmp_path / "file").write_bytes(text.encode(encoding))
    (source,) = walk([tmp_path])
    assert isinstance(source, InputSource)
    sink = CollectingSink()
    row = read_source(source, sink)
    assert (row.format, row.status) == (name, "read")
    series_curves = metric(sink, "gpu_utilization_ratio")
    assert {dict(labels)["gpu"]: curve for labels, curve in series_curves.items()} == {
        str(gpu): [(T0, pytest.approx((5 + gpu) / 100))] for gpu in range(3)
    }


@pytest.mark.parametrize("name", LINES)
def test_lines_with_undecodable_bytes_are_skipped(name: str) -> None:
    text = "\n".join([*LINES[name], *LINES[name][-3:] * 20]).encode()
    row, sink = read(text + b"\n" + b"\xff\xfe\xe9\x80" * 10 + b"\0\n", "file")
    assert row.format == name
    assert "defect" not in row.note
    assert len(metric(sink, "gpu_utilization_ratio")) == 3


def test_unordered_and_duplicate_samples_are_kept() -> None:
    """The store sorts them; duplicates count twice."""
    text = "".join(f'{UTIL}{{gpu="0"}} {number} {T0 - 1000 * number}\n' for number in [3, 2, 1, 1, 0])
    row, sink = read(text)
    assert [time for time, _ in only(sink, "gpu_utilization_ratio")] == [T0 - 3000, T0 - 2000, T0 - 1000, T0 - 1000, T0]
    assert (row.status, row.rows) == ("read", 5)


@pytest.mark.parametrize(
    "data",
    [b"PAR1" + b"\x15" * 5000 + b"PAR1", b"PAR1" + bytes(200_000) + (199_000).to_bytes(4, "little") + b"PAR1",
     b"PAR1" + (1 << 31).to_bytes(4, "little") + b"PAR1", b"PAR1PAR1", b"PAR1"],
)  # fmt: skip
def test_damaged_parquet_is_reported_as_such(data: bytes) -> None:
    row, _ = read(data, "table.parquet")
    assert (row.format, row.status) == ("metric-parquet", "unreadable")
    assert row.note.startswith("damaged or truncated")
    assert "/" not in row.note
