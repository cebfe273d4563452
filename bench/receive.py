"""Measure remote write into the receiver, compared with VictoriaMetrics and Prometheus on this machine, in one run.

    python bench/receive.py [--gpus 512] [--ticks 100] [--only trackside,victoria-metrics,prometheus]

All servers get the same bodies, which are made in advance: 30 metrics per GPU, first one tick at a time (a sample of each
series, as after a scrape), then 100 samples per series (as after an outage). Four connections send their own series in
order of time. Measured are samples per second until the last answer; CPU seconds and peak memory of the server's process
from its start to its end, so that deferred work counts; bytes on disk at its end, and of the store after
``trackside compact``. Everything runs on loopback, in a temporary folder that is deleted.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cramjam
import numpy as np

from bench.processes import folder_bytes, run_measured
from trackside.catalog.dialect import dialects
from trackside.catalog.metrics import METRICS
from trackside.serve.protocols.series_key import key_of
from trackside.stores.embedded.snapshot import Snapshot

METRICS_PER_GPU = 30
CONNECTIONS = 4
BATCH = 100
"""Samples per series in one body of the second stream."""
SERIES_PER_BODY = 500
"""Number of series in such a body."""
STEP_MS = 15_000
SERVE = """
from trackside.serve.app import serve
from trackside.stores.receiver.options import ServeOptions
serve(ServeOptions(store={folder!r}, listen="127.0.0.1:{port}"))
"""


@dataclass(frozen=True, slots=True)
class Server:
    """How to start a server, and where to send. ``alive``: answers 200 once it is ready."""

    name: str
    command: Callable[[Path, int], list[str]]
    path: str
    alive: str


@dataclass(frozen=True, slots=True)
class ServerResult:
    """The cost of one stream for one server. ``packed``: bytes after compaction."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    disk: int
    packed: int


SERVERS = (
    Server(
        "trackside",
        lambda folder, port: [sys.executable, "-c", SERVE.format(folder=str(folder), port=port)],
        "/api/v1/write",
        "/-/ready",
    ),
    Server(
        "victoria-metrics",
        lambda folder, port: [
            "victoria-metrics", f"-storageDataPath={folder}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=100y",
            "-loggerLevel=ERROR",
        ],
        "/api/v1/write",
        "/health",
    ),
    Server(
        "prometheus",
        lambda folder, port: [
            "prometheus", f"--config.file={_empty(folder)}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver", "--log.level=error",
        ],
        "/api/v1/write",
        "/-/ready",
    ),
)  # fmt: skip


def _empty(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    return folder / "prometheus.yml"


# -- the streams


def names() -> list[tuple[str, float]]:
    """Known metrics of DCGM's exporter, each with a plausible value."""
    (dialect,) = [dialect_ for dialect_ in dialects() if dialect_.id == "dcgm"]
    examples, used_metrics = [], set()
    for name, foreign in dialect.names.items():
        metric = METRICS[foreign.metric]
        if foreign.cases or (foreign.metric, *foreign.labels.items()) in used_metrics:
            continue  # several names of one series would give the same samples
        value = next((value for value in (50.0, 0.5, 0.0) if metric.low <= value * foreign.scale <= metric.high), None)
        if name.startswith("DCGM_FI_") and not foreign.guess and value is not None and value * foreign.scale < 1e6:
            examples.append((name, value))
            used_metrics.add((foreign.metric, *foreign.labels.items()))
    return examples[:METRICS_PER_GPU]


def keys(gpus: int) -> list[tuple[bytes, float]]:
    """(labels as in remote write, value) of each series."""
    pairs = []
    for gpu in range(gpus):
        labels = {
            b"Hostname": f"gpu-{gpu // 8:04}".encode(), b"UUID": f"GPU-{gpu:032x}".encode(), b"device": f"nvidia{gpu % 8}".encode(),
            b"gpu": str(gpu % 8).encode(), b"job_id": str(4200 + gpu // 128).encode(), b"modelName": b"NVIDIA H100 80GB HBM3",
        }  # fmt: skip
        pairs += [(key_of([(b"__name__", name.encode()), *labels.items()]), value) for name, value in names()]
    return pairs


def varint(number: int) -> bytes:
    """A number as a varint of protobuf."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def body(series: Sequence[tuple[bytes, float]], times: Sequence[int], noise: np.random.Generator) -> bytes:
    """A compressed request: each series with a sample at each time, values in steps as exporters round them."""
    out = []
    stamps = [b"\x10" + varint(time_ms) for time_ms in times]
    for labels, value in series:
        values = np.round(value * (1 + 0.02 * noise.integers(-3, 4, len(times))), 2).astype("<f8").tobytes()
        samples = b"".join(
            b"\x12" + varint(9 + len(stamp)) + b"\x09" + values[8 * index : 8 * index + 8] + stamp
            for index, stamp in enumerate(stamps)
        )
        out.append(b"\x0a" + varint(len(labels) + len(samples)) + labels + samples)
    return bytes(cramjam.snappy.compress_raw(b"".join(out)))


def streams(gpus: int, ticks: int) -> dict[str, list[list[bytes]]]:
    """Kind of stream -> the bodies of each connection."""
    noise = np.random.default_rng(7)
    series, begin = keys(gpus), int(time.time() * 1000) - 40 * 60_000
    times = [begin + index * STEP_MS for index in range(max(ticks, BATCH))]
    shares = [series[index::CONNECTIONS] for index in range(CONNECTIONS)]
    return {
        "one tick at a time": [[body(part, [time_ms], noise) for time_ms in times[:ticks]] for part in shares],
        f"{BATCH} samples per series": [
            [
                body(part[start : start + SERIES_PER_BODY], times[:BATCH], noise)
                for start in range(0, len(part), SERIES_PER_BODY)
            ]
            for part in shares
        ],
    }


# -- one server


def run_server(server: Server, folder: Path, connections: Sequence[Sequence[bytes]], samples: int) -> ServerResult:
    """Start a server and send everything to it. Raises RuntimeError if it refuses or loses some."""
    shutil.rmtree(folder, ignore_errors=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        server.command(folder, port), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait(server, port)
        wall = _send_all(server, port, connections)
    finally:
        process.send_signal(signal.SIGTERM)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    disk = packed = folder_bytes(folder)
    if server.name == "trackside":
        with Snapshot.open(folder) as snapshot:
            n_rows = sum(segment.rows for segment in snapshot.manifest.of("samples"))
        if n_rows != samples:
            raise RuntimeError(f"{n_rows:,} samples in the store, {samples:,} were sent")
        run_measured([sys.executable, "-m", "trackside", "compact", "--store", str(folder)])
        packed = folder_bytes(folder / "segments")
    return ServerResult(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, disk, packed)


def _wait(server: Server, port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", server.alive)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{server.name} was not ready within 30 s")


def _send_all(server: Server, port: int, connections: Sequence[Sequence[bytes]]) -> float:
    """Seconds until the last answer."""
    failures: list[str] = []

    def send(bodies: Sequence[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        for request_body in bodies:
            while True:
                connection.request("POST", server.path, request_body, headers)
                answer = connection.getresponse()
                reply = answer.read()
                if answer.status != 429:
                    break
                time.sleep(float(answer.headers.get("Retry-After", 1)))
            if answer.status >= 300:
                failures.append(f"{server.name} answered {answer.status}: {reply[:200]!r}")
                return

    threads = [threading.Thread(target=send, args=(bodies,)) for bodies in connections]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])
    return time.perf_counter() - begin


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=512, metavar="N", help="each with 30 series")
    parser.add_argument("--ticks", type=int, default=100, metavar="N", help="of the first stream")
    parser.add_argument("--only", default=",".join(server_.name for server_ in SERVERS), metavar="NAME,NAME")
    options = parser.parse_args()
    servers = [server_ for server_ in SERVERS if server_.name in options.only.split(",")]
    print(
        "| stream | server | samples | samples/s | CPU s a million | peak MiB | bytes a sample | rate, relative to ours |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for kind, connections in streams(options.gpus, options.ticks).items():
        samples = options.gpus * METRICS_PER_GPU * (BATCH if "series" in kind else options.ticks)
        our_rate = 0.0
        for server in servers:
            with tempfile.TemporaryDirectory(prefix="trackside-bench-") as temporary:
                result = run_server(server, Path(temporary) / "data", connections, samples)
            rate = samples / result.wall_s
            our_rate = our_rate or rate
            print(
                f"| {kind} | {server.name} | {samples:,} | {rate:,.0f} | {result.cpu_s / samples * 1e6:.2f} "
                f"| {result.peak_mib:,.0f} | {result.packed / samples:.2f} | {rate / our_rate:.2f} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
