"""Shared by tests of the receiver: bodies as senders make them, and the content of a store."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import cramjam
import urllib3
import uvicorn

from trackside.serve.app import application
from trackside.serve.connections import Connection
from trackside.serve.limits import load_tokens
from trackside.serve.line_file_reader import StoreLineFileReader
from trackside.serve.protocols import remote_write
from trackside.serve.protocols.series_key import key_of, labels_of
from trackside.serve.receive import decoder
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.receiver.arrivals import IntakeResult
from trackside.stores.receiver.intake import Intake
from trackside.stores.receiver.options import ReceiverLimits, RetentionOptions, ServeOptions
from trackside.stores.receiver.pending import Decoded, LineStream
from trackside.stores.receiver.write_ahead import Entry, Header

T0_MS = 1_772_438_400_000
"""2026-03-02T08:00:00Z"""
UTIL = "DCGM_FI_DEV_GPU_UTIL"
Sample = tuple[int, float]


def key(name: str, **labels: str) -> bytes:
    """The key of a series in remote write."""
    return key_of((label.encode(), value.encode()) for label, value in sorted({"__name__": name, **labels}.items()))


def gpu(name: str = UTIL, number: int = 0, node: str = "gpu017", **labels: str) -> bytes:
    """The key of a series of a GPU."""
    return key(name, gpu=str(number), Hostname=node, **labels)


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_request(series: Iterable[tuple[bytes, Sequence[Sample]]]) -> bytes:
    """A remote write 1.0 request, not compressed."""
    out = bytearray()
    for labels, samples in series:
        body = bytearray(labels)
        for time_ms, value in samples:
            body += b"\x12" + varint(10 + len(varint(time_ms))) + b"\x09" + struct.pack("<d", value)
            body += b"\x10" + varint(time_ms)
        out += b"\x0a" + varint(len(body)) + body
    return bytes(out)


def tick(number: int, gpus: int = 4, name: str = UTIL, value: float = 50.0) -> list[tuple[bytes, list[Sample]]]:
    """One sample of each GPU, 15 s after the previous tick."""
    return [(gpu(name, gpu_number), [(T0_MS + number * 15_000, value + gpu_number)]) for gpu_number in range(gpus)]


def decode_entry(entry: Entry) -> Decoded:
    """Decode an entry: remote write in its own format, lines as JSON."""
    header, body = entry
    if header.protocol == "lines":
        return [LineStream(*stream) for stream in json.loads(body)]
    return remote_write.decode(body, 1)


def opened(store: Path, limits: ReceiverLimits | None = None, retention: RetentionOptions | None = None) -> Intake:
    """An intake of this store that flushes only on request."""
    return Intake(
        store,
        decode_entry,
        labels_of,
        limits or ReceiverLimits(),
        retention or RetentionOptions(flush_s=3600.0),
        StoreLineFileReader,
    )


def sent(intake: Intake, series: Iterable[tuple[bytes, Sequence[Sample]]]) -> Future[IntakeResult]:
    """Hand samples to an intake."""
    body = write_request(series)
    return intake.accept(Header("remote_write", received_ns=1), body, remote_write.decode(body, 1))


def push_lines(intake: Intake, labels: Mapping[str, str], lines: Sequence[tuple[int, str]]) -> Future[IntakeResult]:
    """Hand lines to an intake; times in ns since T0."""
    times = [T0_MS * 1_000_000 + time_ns for time_ns, _ in lines]
    body = json.dumps([[dict(labels), times, [text for _, text in lines]]]).encode()
    header = Header("lines", received_ns=1)
    return intake.accept(header, body, decode_entry((header, body)))


def flushed(intake: Intake, read: bool = True) -> None:
    """Write everything to segments."""
    intake.flush(read).result(30)


def samples(store: Path) -> Counter[tuple[str, str, int, float]]:
    """(metric, GPU, time, value) of all samples -> how often each is stored."""
    with Snapshot.open(store) as snapshot:
        sql = (
            f"SELECT s.metric, coalesce(json_extract_string(s.labels, '$.gpu'), ''), time_ms, value"
            f" FROM {snapshot.table('samples')} JOIN {snapshot.table('series')} s USING (series)"
        )
        return Counter(snapshot.rows(sql))


def expected(series: Iterable[tuple[bytes, Sequence[Sample]]], scale: float = 0.01) -> set[tuple[str, int, float]]:
    """(GPU, time, value in our unit) of the samples sent."""
    return {
        (labels_of(labels)[1]["gpu"], time_ms, value * scale) for labels, points in series for time_ms, value in points
    }


def lines(store: Path) -> dict[str, list[str]]:
    """File -> its lines."""
    folder = store / "received" / "logs"
    return {str(path.relative_to(folder)): path.read_text().splitlines() for path in sorted(folder.rglob("*.log"))}


PROTOBUF = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
JSON = {"Content-Type": "application/json"}


def packed(body: bytes) -> bytes:
    """The body compressed as remote write sends it."""
    return bytes(cramjam.snappy.compress_raw(body))


class RunningReceiver:
    """``trackside serve`` in a thread of this process; ``ask`` sends a request."""

    def __init__(self, options: ServeOptions) -> None:
        write, read = load_tokens(options)
        self.intake = Intake(
            options.store, decoder(options.limits), labels_of, options.limits, options.keeping, StoreLineFileReader
        )
        config = uvicorn.Config(
            application(self.intake, write, read, hosts=options.hosts), http=Connection, ws="none", log_config=None
        )
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        self.http = urllib3.PoolManager(retries=False, timeout=30.0)

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str = ""
    ) -> urllib3.BaseHTTPResponse:
        """GET without a body, POST with one."""
        verb = method or ("GET" if body is None else "POST")
        return self.http.request(verb, self.url + path, body=body, headers=dict(headers or {}))

    def write(self, series: Iterable[tuple[bytes, Sequence[Sample]]]) -> urllib3.BaseHTTPResponse:
        """A remote write."""
        return self.ask("/api/v1/write", packed(write_request(series)), PROTOBUF)

    def close(self) -> None:
        """Stop as SIGTERM would."""
        self._server.should_exit = True
        self._thread.join(30)
        self.intake.close()
        self._socket.close()
        self.http.clear()


STARTED: list[subprocess.Popen[str]] = []
"""Servers of the current test, which may have failed before ending them."""


def end_all() -> None:
    """End all servers that a test has left running."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def served(*arguments: object, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    """``serve`` in a process of its own, and its URL. ``arguments``: of ServeOptions, as Python source."""
    program = (
        "from trackside.serve.app import serve\nfrom trackside.stores.receiver.options import RetentionOptions, ReceiverLimits, ServeOptions\n"
        f"serve(ServeOptions(listen='127.0.0.1:{port}', {', '.join(map(str, arguments))}))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    STARTED.append(process)
    assert process.stderr is not None
    output: list[str] = []
    for line in process.stderr:
        output.append(line)
        if match := re.search(r"listening on (https?://\S+),", line):
            return process, match[1]
    raise AssertionError(f"it did not start: {''.join(output)}")
