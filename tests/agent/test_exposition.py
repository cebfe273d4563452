"""``/metrics``: a scraper reads the latest values, and nothing outdated."""

from __future__ import annotations

import http.client
import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.receiving import T0_MS, samples
from tests.services import HOST, Server, Victoria, prometheus_server, wait_until
from trackside.agent.delivery import scrape
from trackside.agent.delivery.exposition import CONTENT_TYPE, LatestSamples
from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.scrape import MAX_REQUESTS, MetricsServer
from trackside.agent.source import Reading
from trackside.catalog.metrics import METRICS
from trackside.cli import main

pytestmark = pytest.mark.slow


def latest_samples(*sources: tuple[str, Reading]) -> LatestSamples:
    latest = LatestSamples(Identity("n1"))
    for source, reading in sources:
        latest.replace(source, reading)
    return latest


def parse_exposition(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return {
        sample.name: {
            tuple(sorted(metric_sample.labels.items())): metric_sample.value
            for metric_sample in family.samples
            if metric_sample.name == sample.name
        }
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def example_reading() -> Reading:
    reading = Reading()
    reading.sample("gpu_power_watts", 312.5, gpu=0)
    reading.sample("gpu_power_watts", 1e-7, gpu=1)
    reading.sample("host_oom_kills_total", 3)
    return reading


def test_each_metric_has_one_help_and_one_type() -> None:
    first, second = Reading(), Reading()
    first.sample("gpu_energy_joules_total", 5, gpu=0)
    second.sample("gpu_energy_joules_total", 7, gpu=1)
    second.sample("host_load1", 0.25)
    assert latest_samples(("a", first), ("b", second)).text() == (
        "# HELP gpu_energy_joules_total energy since the driver was loaded\n"
        "# TYPE gpu_energy_joules_total counter\n"
        'gpu_energy_joules_total{gpu="0",node="n1"} 5\n'
        'gpu_energy_joules_total{gpu="1",node="n1"} 7\n'
        "# HELP host_load1 run queue and uninterruptible tasks, 1-minute average\n"
        "# TYPE host_load1 gauge\n"
        'host_load1{node="n1"} 0.25\n'
    )


@pytest.mark.parametrize("text", ['a "quoted" one', "back\\slash", "two\nlines", "naïve µ"])
def test_any_label_value_survives(text: str) -> None:
    reading = Reading()
    reading.sample("host_disk_requests", 1, device=text)
    assert parse_exposition(latest_samples(("s", reading)).text()) == {
        "host_disk_requests": {(("device", text), ("node", "n1")): 1.0}
    }


@pytest.mark.parametrize(
    "value", [0.0, -1.5, 1e300, 5e-324, 2.0**53, 1e15, 123456789.125, math.inf, -math.inf, math.nan]
)
def test_any_value_survives(value: float) -> None:
    reading = Reading()
    reading.sample("training_loss", value)
    [(_, parsed_value)] = parse_exposition(latest_samples(("s", reading)).text())["training_loss"].items()
    assert parsed_value == value or (math.isnan(parsed_value) and math.isnan(value))


def test_a_series_of_two_sources_is_shown_once() -> None:
    first, second = Reading(), Reading()
    first.sample("host_load1", 1)
    second.sample("host_load1", 2)
    assert parse_exposition(latest_samples(("a", first), ("b", second)).text())["host_load1"] == {
        (("node", "n1"),): 1.0
    }


def test_outdated_series_disappear() -> None:
    first, second = Reading(), Reading()
    first.sample("host_load1", 1)
    second.sample("gpu_power_watts", 300, gpu=0)
    latest = latest_samples(("a", first), ("b", second))
    latest.forget("b")
    assert set(parse_exposition(latest.text())) == {"host_load1"}
    latest.replace("a", Reading())
    assert latest.text() == ""


def test_trackside_ingests_a_saved_scrape(tmp_path: Path) -> None:
    """A scrape saved as a file can be ingested into a store."""
    reading = Reading()
    for gpu in range(8):
        reading.sample("gpu_sm_active_ratio", gpu / 8, gpu=gpu)
    path = tmp_path / "metrics.prom"
    path.write_text(f"# 2026-03-02T08:00:00Z\n{latest_samples(('gpu', reading)).text()}")
    result = CliRunner().invoke(main, ["ingest", str(path), "--store", str(tmp_path / "store")])
    assert result.exit_code == 0, result.output
    assert samples(tmp_path / "store") == {("gpu_sm_active_ratio", str(gpu), T0_MS, gpu / 8): 1 for gpu in range(8)}


@pytest.fixture
def scrape_server() -> Iterator[tuple[MetricsServer, LatestSamples]]:
    latest = latest_samples(("gpu", example_reading()))
    server = MetricsServer((HOST, 0), latest.text, lambda: "")
    server.start()
    yield server, latest
    server.stop()


def ask(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def test_metrics_and_health_are_served(scrape_server: tuple[MetricsServer, LatestSamples]) -> None:
    server, latest = scrape_server
    status, headers, body = ask(server.server_port, "/metrics")
    assert (status, headers["Content-Type"], body.decode()) == (200, CONTENT_TYPE, latest.text())
    assert ask(server.server_port, "/metrics", "HEAD")[2] == b""
    assert ask(server.server_port, "/-/healthy")[0] == ask(server.server_port, "/-/ready")[0] == 200
    assert ask(server.server_port, "/etc/passwd")[0] == 404
    assert ask(server.server_port, "/metrics", "POST")[0] == 501


def test_a_defect_in_the_exposition_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> str:
        raise RuntimeError("a defect")

    server = MetricsServer((HOST, 0), fail, str)
    server.start()
    try:
        with pytest.raises(http.client.RemoteDisconnected):
            ask(server.server_port, "/metrics")
        wait_until(lambda: "a defect" in caplog.text, "the log message", 5)
    finally:
        server.stop()


def test_readiness_gives_its_reason() -> None:
    server = MetricsServer((HOST, 0), str, lambda: "not read yet: gpu")
    server.start()
    try:
        status, _, body = ask(server.server_port, "/-/ready")
        assert (status, body) == (503, b"not read yet: gpu\n")
        assert ask(server.server_port, "/-/healthy")[0] == 200
    finally:
        server.stop()


def test_slow_and_many_clients_do_not_block_others(
    scrape_server: tuple[MetricsServer, LatestSamples], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = scrape_server
    monkeypatch.setattr(scrape, "REQUEST_S", 2.5)
    connections = [socket.create_connection((HOST, server.server_port), timeout=5) for _ in range(MAX_REQUESTS)]
    try:
        for connection in connections:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        time.sleep(0.2)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server.server_port, "/metrics")  # one too many: refused at once
        for _ in range(45):  # a byte now and then does not extend the time limit
            time.sleep(0.06)
            for connection in connections:
                with suppress(OSError):
                    connection.send(b"X")
        wait_until(lambda: _is_healthy(server.server_port), "a free slot", 20)
    finally:
        for connection in connections:
            connection.close()


def _is_healthy(port: int) -> bool:
    try:
        return ask(port, "/-/healthy")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.service
def test_prometheus_scrapes_it(scrape_server: tuple[MetricsServer, LatestSamples], tmp_path: Path) -> None:
    server, latest = scrape_server
    config = f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: agent, static_configs: [{{targets: ['{HOST}:{server.server_port}']}}]}}]\n"
    with prometheus_server(tmp_path, config=config) as prometheus:
        wait_until(lambda: len(query_by_gpu(prometheus, "gpu_power_watts")) == 2, "a scrape", 20)
        assert query_by_gpu(prometheus, "gpu_power_watts") == {"0": 312.5, "1": 1e-7}
        meta = json.loads(prometheus.ask("GET", "/api/v1/metadata"))["data"]["gpu_power_watts"]
        assert meta == [{"type": "gauge", "help": METRICS["gpu_power_watts"].meaning, "unit": ""}]
        latest.forget("gpu")  # a series that the source no longer gives ends with the next scrape
        wait_until(lambda: query_by_gpu(prometheus, "gpu_power_watts") == {}, "the series' end", 20)


@pytest.mark.service
def test_vmagent_scrapes_it(
    scrape_server: tuple[MetricsServer, LatestSamples], victoria: Victoria, vmagent: Callable[..., Server]
) -> None:
    server, _ = scrape_server
    victoria.clear()
    vmagent(
        f"{victoria.url}/api/v1/write",
        scrape=f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: agent, static_configs: [{{targets: ['{HOST}:{server.server_port}']}}]}}]\n",
    )

    def is_scraped() -> bool:
        victoria.flush()
        return len(query_by_gpu(victoria, "gpu_power_watts")) == 2

    wait_until(is_scraped, "a scrape", 20)
    assert query_by_gpu(victoria, "gpu_power_watts") == {"0": 312.5, "1": 1e-7}


def query_by_gpu(server: Any, query: str) -> dict[str, float]:
    """GPU -> current value."""
    answer = json.loads(server.ask("GET", "/api/v1/query", fields={"query": query}))
    return {series["metric"]["gpu"]: float(series["value"][1]) for series in answer["data"]["result"]}
