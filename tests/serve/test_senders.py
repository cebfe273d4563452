"""The programs that people send with, for real: Prometheus, vmagent, and an OpenTelemetry collector."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import urllib3
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.serve.receiving import T0_MS, end_all, lines, served
from tests.services import free_port, prometheus_server, rotel_agent, vm_agent, wait_until
from trackside.stores.embedded.snapshot import Snapshot

pytestmark = pytest.mark.service
GPUS = 4
EVERY_S = 0.5


class Exporter(BaseHTTPRequestHandler):
    """An exporter of GPUs whose temperature rises by one with each scrape."""

    scrapes = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        type(self).scrapes += 1
        text = "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n" + "".join(
            f'DCGM_FI_DEV_GPU_TEMP{{gpu="{number}",Hostname="gpu017"}} {30 + self.scrapes % 50 + number}\n'
            for number in range(GPUS)
        )
        text += "# TYPE made_up_here gauge\nmade_up_here 1\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def exporter() -> Iterator[str]:
    Exporter.scrapes = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    end_all()


@contextmanager
def receiver(store: Path, port: int = 0, kill: bool = False) -> Iterator[str]:
    """``trackside serve`` in a process of its own, and its address."""
    process, url = served(f"store={str(store)!r}", "keeping=RetentionOptions(flush_s=0.3)", port=port)
    try:
        yield url
    finally:
        if kill:
            process.kill()
        else:
            process.terminate()
        _, errors = process.communicate(timeout=40)
        assert kill or process.returncode == 0, errors


def metric(url: str, name: str) -> float:
    text = urllib3.request("GET", f"{url}/metrics").data.decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"trackside_receiver_{name}"))


def curves(store: Path) -> dict[str, list[tuple[int, float]]]:
    """(time, value) of the temperature of each GPU, in order of time."""
    found: dict[str, list[tuple[int, float]]] = {}
    with Snapshot.open(store) as snapshot:
        for gpu, time_ms, value in snapshot.rows(
            f"SELECT json_extract_string(s.labels, '$.gpu'), time_ms, value FROM {snapshot.table('samples')} p"
            f" JOIN {snapshot.table('series')} s USING (series) WHERE s.metric = 'gpu_temperature_celsius' ORDER BY time_ms"
        ):
            found.setdefault(gpu, []).append((time_ms, value))
    return found


def risen(store: Path) -> int:
    """That each GPU's values rise by one a scrape, so that none is missing or there twice; how many there are."""
    found = curves(store)
    assert sorted(found) == [str(number) for number in range(GPUS)]
    for number, (gpu, told) in enumerate(sorted(found.items())):
        values = [value - number for _, value in told]
        assert values == [values[0] + place for place in range(len(values))], (gpu, values)
    return min(len(told) for told in found.values())


def seen(store: Path) -> set[int]:
    """The scrapes of which the first GPU's value is in segments."""
    return {round(value - 30) for _, value in curves(store).get("0", [])}


def scraping(target: str) -> str:
    return f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpus
    scrape_interval: {EVERY_S}s
    scrape_timeout: 500ms
    static_configs: [{{targets: ["{target}"]}}]
""".replace(f"{EVERY_S}s", f"{int(EVERY_S * 1000)}ms")


def test_vmagent(store: Path, exporter: str, tmp_path: Path) -> None:
    with (
        receiver(store) as url,
        vm_agent(tmp_path / "vmagent", f"{url}/api/v1/write", scrape=scraping(exporter)),
    ):
        wait_until(lambda: metric(url, "samples_total") >= 12 * GPUS, "scrapes")
        assert metric(url, 'unknown_samples_total{name="made_up_here"}') >= 4
        assert metric(url, "failures_total") == 0
    assert risen(store) >= 6


def test_prometheus(store: Path, exporter: str, tmp_path: Path) -> None:
    with receiver(store) as url:
        config = (
            scraping(exporter)
            + f"remote_write: [{{url: '{url}/api/v1/write', queue_config: {{batch_send_deadline: 200ms}}}}]"
        )
        with prometheus_server(tmp_path / "prometheus", config=config):
            wait_until(lambda: metric(url, "samples_total") >= 12 * GPUS, "scrapes")
        assert metric(url, 'requests_total{protocol="remote_write",code="204"}') >= 1
    assert risen(store) >= 6


@contextmanager
def agent(sender: str, target: str, exporter: str, folder: Path) -> Iterator[None]:
    """A sender that scrapes and soon sends again what was not answered for."""
    if sender == "vmagent":
        with vm_agent(folder, target, scrape=scraping(exporter)):
            yield
    else:
        queue = "queue_config: {batch_send_deadline: 100ms, min_backoff: 30ms, max_backoff: 200ms}"
        with prometheus_server(folder, config=f"{scraping(exporter)}remote_write: [{{url: '{target}', {queue}}}]"):
            yield


@pytest.mark.parametrize("sender", ["vmagent", "prometheus"])
def test_killed_and_started_again_under_a_sender(sender: str, store: Path, exporter: str, tmp_path: Path) -> None:
    """What the sender was answered for is there, what it wasn't it sends again: every scrape, each once."""
    port = free_port()
    with agent(sender, f"http://127.0.0.1:{port}/api/v1/write", exporter, tmp_path / "agent"):
        for _ in range(2):
            with receiver(store, port, kill=True) as url:
                wait_until(lambda: metric(url, "samples_total") >= 2 * GPUS, "scrapes")
            time.sleep(EVERY_S)
        with receiver(store, port) as url:
            there = set(range(1, Exporter.scrapes))
            wait_until(lambda: there <= seen(store), "what was scraped meanwhile, after the sender's last pause", 60.0)
    assert risen(store) >= 6


@contextmanager
def collecting(url: str, folder: Path) -> Iterator[str]:
    """A collector that hands on what it is sent."""
    options = ("--exporter=otlp", f"--otlp-exporter-endpoint={url}", "--otlp-exporter-protocol=http")
    with rotel_agent(folder, *options) as server:
        yield server.url


def test_a_collector_hands_on_metrics_and_lines(store: Path, tmp_path: Path) -> None:
    metrics, logs = ExportMetricsServiceRequest(), ExportLogsServiceRequest()
    gauge = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="DCGM_FI_DEV_GPU_TEMP").gauge
    for number in range(GPUS):
        for place in range(5):
            point = gauge.data_points.add(
                time_unix_nano=(T0_MS + place * 1000) * 10**6, as_double=40.0 + place + number
            )
            point.attributes.add(key="gpu").value.string_value = str(number)
            point.attributes.add(key="Hostname").value.string_value = "gpu017"
    resource = logs.resource_logs.add()
    for name, value in (("slurm.job.id", "4242"), ("host.name", "gpu017")):
        resource.resource.attributes.add(key=name).value.string_value = value
    scope = resource.scope_logs.add()
    for place in range(100):
        scope.log_records.add(time_unix_nano=T0_MS * 10**6 + place).body.string_value = f"step {place} loss 1.0"
    protobuf = {"Content-Type": "application/x-protobuf"}
    with receiver(store) as url, collecting(url, tmp_path / "rotel") as collector:
        for path, request in (("/v1/metrics", metrics), ("/v1/logs", logs)):
            answer = urllib3.request("POST", collector + path, body=request.SerializeToString(), headers=protobuf)
            assert answer.status == 200, answer.data
        wait_until(lambda: metric(url, "samples_total") >= 5 * GPUS and metric(url, "lines_total") >= 100, "both")
    assert risen(store) == 5
    ((path, told),) = lines(store).items()
    assert path.startswith("job-4242/slurm-4242")
    assert [line.partition(" F ")[2] for line in told] == [f"step {place} loss 1.0" for place in range(100)]
