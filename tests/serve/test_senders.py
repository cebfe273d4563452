"""Real senders: Prometheus, vmagent, and an OpenTelemetry collector."""

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
        """Log nothing."""


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
    samples: dict[str, list[tuple[int, float]]] = {}
    with Snapshot.open(store) as snapshot:
        for gpu, time_ms, value in snapshot.rows(
            f"SELECT json_extract_string(s.labels, '$.gpu'), time_ms, value FROM {snapshot.table('samples')} p"
            f" JOIN {snapshot.table('series')} s USING (series) WHERE s.metric = 'gpu_temperature_celsius' ORDER BY time_ms"
        ):
            samples.setdefault(gpu, []).append((time_ms, value))
    return samples


def complete_scrapes(store: Path) -> int:
    """The number of stored scrapes, after checking that values rise by one per scrape: none missing, none twice."""
    samples = curves(store)
    assert sorted(samples) == [str(number) for number in range(GPUS)]
    for number, (gpu, points) in enumerate(sorted(samples.items())):
        values = [value - number for _, value in points]
        assert values == [values[0] + index for index in range(len(values))], (gpu, values)
    return min(len(points) for points in samples.values())


def stored_scrapes(store: Path) -> set[int]:
    """Numbers of the scrapes whose value of the first GPU is in segments."""
    return {round(value - 30) for _, value in curves(store).get("0", [])}


def scrape_config(target: str) -> str:
    return f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpus
    scrape_interval: {EVERY_S}s
    scrape_timeout: 500ms
    static_configs: [{{targets: ["{target}"]}}]
""".replace(f"{EVERY_S}s", f"{int(EVERY_S * 1000)}ms")


def test_scrapes_of_vmagent_are_stored(store: Path, exporter: str, tmp_path: Path) -> None:
    with (
        receiver(store) as url,
        vm_agent(tmp_path / "vmagent", f"{url}/api/v1/write", scrape=scrape_config(exporter)),
    ):
        wait_until(lambda: metric(url, "samples_total") >= 12 * GPUS, "scrapes")
        assert metric(url, 'unknown_samples_total{name="made_up_here"}') >= 4
        assert metric(url, "failures_total") == 0
    assert complete_scrapes(store) >= 6


def test_scrapes_of_prometheus_are_stored(store: Path, exporter: str, tmp_path: Path) -> None:
    with receiver(store) as url:
        config = (
            scrape_config(exporter)
            + f"remote_write: [{{url: '{url}/api/v1/write', queue_config: {{batch_send_deadline: 200ms}}}}]"
        )
        with prometheus_server(tmp_path / "prometheus", config=config):
            wait_until(lambda: metric(url, "samples_total") >= 12 * GPUS, "scrapes")
        assert metric(url, 'requests_total{protocol="remote_write",code="204"}') >= 1
    assert complete_scrapes(store) >= 6


@contextmanager
def agent(sender: str, target: str, exporter: str, folder: Path) -> Iterator[None]:
    """A sender that scrapes, and soon repeats what was not acknowledged."""
    if sender == "vmagent":
        with vm_agent(folder, target, scrape=scrape_config(exporter)):
            yield
    else:
        queue = "queue_config: {batch_send_deadline: 100ms, min_backoff: 30ms, max_backoff: 200ms}"
        with prometheus_server(folder, config=f"{scrape_config(exporter)}remote_write: [{{url: '{target}', {queue}}}]"):
            yield


@pytest.mark.parametrize("sender", ["vmagent", "prometheus"])
def test_a_receiver_killed_under_a_sender_loses_no_scrape(
    sender: str, store: Path, exporter: str, tmp_path: Path
) -> None:
    """Acknowledged data is stored, the rest is sent again: every scrape is stored exactly once."""
    port = free_port()
    with agent(sender, f"http://127.0.0.1:{port}/api/v1/write", exporter, tmp_path / "agent"):
        for _ in range(2):
            with receiver(store, port, kill=True) as url:
                wait_until(lambda: metric(url, "samples_total") >= 2 * GPUS, "scrapes")
            time.sleep(EVERY_S)
        with receiver(store, port) as url:
            scrapes = set(range(1, Exporter.scrapes))
            wait_until(
                lambda: scrapes <= stored_scrapes(store),
                "what was scraped meanwhile, after the sender's last pause",
                60.0,
            )
    assert complete_scrapes(store) >= 6


@contextmanager
def collector_for(url: str, folder: Path) -> Iterator[str]:
    """A collector that forwards what it receives."""
    options = ("--exporter=otlp", f"--otlp-exporter-endpoint={url}", "--otlp-exporter-protocol=http")
    with rotel_agent(folder, *options) as server:
        yield server.url


def test_metrics_and_lines_of_a_collector_are_stored(store: Path, tmp_path: Path) -> None:
    metrics, logs = ExportMetricsServiceRequest(), ExportLogsServiceRequest()
    gauge = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="DCGM_FI_DEV_GPU_TEMP").gauge
    for number in range(GPUS):
        for index in range(5):
            point = gauge.data_points.add(
                time_unix_nano=(T0_MS + index * 1000) * 10**6, as_double=40.0 + index + number
            )
            point.attributes.add(key="gpu").value.string_value = str(number)
            point.attributes.add(key="Hostname").value.string_value = "gpu017"
    resource = logs.resource_logs.add()
    for name, value in (("slurm.job.id", "4242"), ("host.name", "gpu017")):
        resource.resource.attributes.add(key=name).value.string_value = value
    scope = resource.scope_logs.add()
    for index in range(100):
        scope.log_records.add(time_unix_nano=T0_MS * 10**6 + index).body.string_value = f"step {index} loss 1.0"
    protobuf = {"Content-Type": "application/x-protobuf"}
    with receiver(store) as url, collector_for(url, tmp_path / "rotel") as collector:
        for path, request in (("/v1/metrics", metrics), ("/v1/logs", logs)):
            answer = urllib3.request("POST", collector + path, body=request.SerializeToString(), headers=protobuf)
            assert answer.status == 200, answer.data
        wait_until(lambda: metric(url, "samples_total") >= 5 * GPUS and metric(url, "lines_total") >= 100, "both")
    assert complete_scrapes(store) == 5
    ((path, stored_lines),) = lines(store).items()
    assert path.startswith("job-4242/slurm-4242")
    assert [line.partition(" F ")[2] for line in stored_lines] == [f"step {index} loss 1.0" for index in range(100)]
