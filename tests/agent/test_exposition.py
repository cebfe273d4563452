"""``/metrics``: what a scraper reads is what was measured, and nothing that is no longer so."""

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
from trackside.agent.out import scrape
from trackside.agent.out.exposition import CONTENT_TYPE, LatestSamples
from trackside.agent.out.identity import Identity
from trackside.agent.out.scrape import MAX_REQUESTS, Scrape
from trackside.agent.source import Reading
from trackside.catalog.metrics import METRICS
from trackside.cli import main

pytestmark = pytest.mark.slow


def board(*sources: tuple[str, Reading]) -> LatestSamples:
    made = LatestSamples(Identity("n1"))
    for source, reading in sources:
        made.take(source, reading)
    return made


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return {
        sample.name: {
            tuple(sorted(each.labels.items())): each.value for each in family.samples if each.name == sample.name
        }
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def a_reading() -> Reading:
    reading = Reading()
    reading.sample("gpu_power_watts", 312.5, gpu=0)
    reading.sample("gpu_power_watts", 1e-7, gpu=1)
    reading.sample("host_oom_kills_total", 3)
    return reading


def test_one_help_and_one_type_for_each_metric() -> None:
    first, second = Reading(), Reading()
    first.sample("gpu_energy_joules_total", 5, gpu=0)
    second.sample("gpu_energy_joules_total", 7, gpu=1)
    second.sample("host_load1", 0.25)
    assert board(("a", first), ("b", second)).text() == (
        "# HELP gpu_energy_joules_total energy since the driver was loaded\n"
        "# TYPE gpu_energy_joules_total counter\n"
        'gpu_energy_joules_total{gpu="0",node="n1"} 5\n'
        'gpu_energy_joules_total{gpu="1",node="n1"} 7\n'
        "# HELP host_load1 run queue and uninterruptible tasks, 1-minute average\n"
        "# TYPE host_load1 gauge\n"
        'host_load1{node="n1"} 0.25\n'
    )


@pytest.mark.parametrize("text", ['a "quoted" one', "back\\slash", "two\nlines", "naïve µ"])
def test_any_label_is_read_as_it_was(text: str) -> None:
    reading = Reading()
    reading.sample("host_disk_requests", 1, device=text)
    assert parsed(board(("s", reading)).text()) == {"host_disk_requests": {(("device", text), ("node", "n1")): 1.0}}


@pytest.mark.parametrize(
    "value", [0.0, -1.5, 1e300, 5e-324, 2.0**53, 1e15, 123456789.125, math.inf, -math.inf, math.nan]
)
def test_any_value_is_read_as_it_was(value: float) -> None:
    reading = Reading()
    reading.sample("training_loss", value)
    [(_, found)] = parsed(board(("s", reading)).text())["training_loss"].items()
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_series_that_two_sources_give_stands_there_once() -> None:
    one, other = Reading(), Reading()
    one.sample("host_load1", 1)
    other.sample("host_load1", 2)
    assert parsed(board(("a", one), ("b", other)).text())["host_load1"] == {(("node", "n1"),): 1.0}


def test_what_is_no_longer_so_vanishes() -> None:
    one, other = Reading(), Reading()
    one.sample("host_load1", 1)
    other.sample("gpu_power_watts", 300, gpu=0)
    shown = board(("a", one), ("b", other))
    shown.forget("b")
    assert set(parsed(shown.text())) == {"host_load1"}
    shown.take("a", Reading())
    assert shown.text() == ""


def test_our_own_reader_reads_it(tmp_path: Path) -> None:
    """A scrape that was kept as a file is taken into a store."""
    reading = Reading()
    for gpu in range(8):
        reading.sample("gpu_sm_active_ratio", gpu / 8, gpu=gpu)
    path = tmp_path / "metrics.prom"
    path.write_text(f"# 2026-03-02T08:00:00Z\n{board(('gpu', reading)).text()}")
    done = CliRunner().invoke(main, ["ingest", str(path), "--store", str(tmp_path / "store")])
    assert done.exit_code == 0, done.output
    assert samples(tmp_path / "store") == {("gpu_sm_active_ratio", str(gpu), T0_MS, gpu / 8): 1 for gpu in range(8)}


@pytest.fixture
def served() -> Iterator[tuple[Scrape, LatestSamples]]:
    shown = board(("gpu", a_reading()))
    server = Scrape((HOST, 0), shown.text, lambda: "")
    server.start()
    yield server, shown
    server.stop()


def ask(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def test_it_is_served(served: tuple[Scrape, LatestSamples]) -> None:
    server, shown = served
    status, headers, body = ask(server.server_port, "/metrics")
    assert (status, headers["Content-Type"], body.decode()) == (200, CONTENT_TYPE, shown.text())
    assert ask(server.server_port, "/metrics", "HEAD")[2] == b""
    assert ask(server.server_port, "/-/healthy")[0] == ask(server.server_port, "/-/ready")[0] == 200
    assert ask(server.server_port, "/etc/passwd")[0] == 404
    assert ask(server.server_port, "/metrics", "POST")[0] == 501


def test_not_ready_says_why() -> None:
    server = Scrape((HOST, 0), str, lambda: "not read yet: gpu")
    server.start()
    try:
        status, _, body = ask(server.server_port, "/-/ready")
        assert (status, body) == (503, b"not read yet: gpu\n")
        assert ask(server.server_port, "/-/healthy")[0] == 200
    finally:
        server.stop()


def test_who_asks_slowly_or_in_numbers_takes_nothing_from_others(
    served: tuple[Scrape, LatestSamples], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = served
    monkeypatch.setattr(scrape, "REQUEST_S", 2.5)
    slow = [socket.create_connection((HOST, server.server_port), timeout=5) for _ in range(MAX_REQUESTS)]
    try:
        for each in slow:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        time.sleep(0.2)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server.server_port, "/metrics")  # one too many: turned away at once
        for _ in range(45):  # and a byte now and then buys no time
            time.sleep(0.06)
            for each in slow:
                with suppress(OSError):
                    each.send(b"X")
        wait_until(lambda: _answers(server.server_port), "room again", 20)
    finally:
        for each in slow:
            each.close()


def _answers(port: int) -> bool:
    try:
        return ask(port, "/-/healthy")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.service
def test_a_real_prometheus_scrapes_it(served: tuple[Scrape, LatestSamples], tmp_path: Path) -> None:
    server, shown = served
    config = f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: agent, static_configs: [{{targets: ['{HOST}:{server.server_port}']}}]}}]\n"
    with prometheus_server(tmp_path, config=config) as prometheus:
        wait_until(lambda: len(queried(prometheus, "gpu_power_watts")) == 2, "a scrape", 20)
        assert queried(prometheus, "gpu_power_watts") == {"0": 312.5, "1": 1e-7}
        meta = json.loads(prometheus.ask("GET", "/api/v1/metadata"))["data"]["gpu_power_watts"]
        assert meta == [{"type": "gauge", "help": METRICS["gpu_power_watts"].meaning, "unit": ""}]
        shown.forget("gpu")  # and what the source no longer gives ends there with the next scrape
        wait_until(lambda: queried(prometheus, "gpu_power_watts") == {}, "the series' end", 20)


@pytest.mark.service
def test_a_real_vmagent_scrapes_it(
    served: tuple[Scrape, LatestSamples], victoria: Victoria, vmagent: Callable[..., Server]
) -> None:
    server, _ = served
    victoria.clear()
    vmagent(
        f"{victoria.url}/api/v1/write",
        scrape=f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: agent, static_configs: [{{targets: ['{HOST}:{server.server_port}']}}]}}]\n",
    )

    def there() -> bool:
        victoria.flush()
        return len(queried(victoria, "gpu_power_watts")) == 2

    wait_until(there, "a scrape", 20)
    assert queried(victoria, "gpu_power_watts") == {"0": 312.5, "1": 1e-7}


def queried(server: Any, query: str) -> dict[str, float]:
    """GPU -> value now."""
    answer = json.loads(server.ask("GET", "/api/v1/query", fields={"query": query}))
    return {each["metric"]["gpu"]: float(each["value"][1]) for each in answer["data"]["result"]}
