"""The source ``dcgm_exporter``: what an exporter says in our terms, and how NVML's sources stand back and come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.agent.nvml import HERE, played
from tests.agent.readings import conform, exposition, held_against, opened
from trackside.agent.out.exposition import LatestSamples
from trackside.agent.out.identity import Identity
from trackside.agent.owners import Owner, Owners
from trackside.agent.source import Collector, Reading, Unavailable
from trackside.agent.sources import dcgm_exporter, gpm, gpu

PAGE = (HERE / "exporter.prom").read_text("utf-8")
SCRAPES = Path(__file__).resolve().parents[3] / "shared/data/dcgm-exporter-scrapes"
Answer = Callable[[BaseHTTPRequestHandler], None]


def page(text: str, status: int = 200) -> Answer:
    """What an exporter sends."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return send


class Exporter:
    """A server on loopback that answers as it is told to."""

    def __init__(self) -> None:
        self.answer: Answer = page(PAGE)
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *arguments: None  # type: ignore[method-assign]  # who asked hung up
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    server = Exporter()
    yield server
    server.end()


class Known(Owners):
    def of_gpu(self, gpu: str) -> Owner | None:
        return Owner(job="42", rank=0, user="ada")


def opened_at(url: str) -> Collector:
    return opened(dcgm_exporter.SOURCE, owners=Known(), options=dcgm_exporter.DcgmExporterOptions(url))


def read(collector: Collector) -> Reading:
    reading = Reading()
    collector.collect(reading)
    return reading


def test_what_it_says_in_our_terms(exporter: Exporter, rewrite: bool) -> None:
    collector = opened_at(f"{exporter.url}/metrics?collect[]=gpu")
    reading = read(collector)
    conform(reading, dcgm_exporter.SOURCE)
    held_against(HERE / "exporter.txt", exposition(reading), rewrite)
    assert set(exporter.asked) == {"/metrics?collect[]=gpu"}
    collector.close()


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["l4-kops-1", "l4-kops-2", "l40s-upcloud"])
def test_real_exporters_say_their_default_fields(name: str, exporter: Exporter) -> None:
    text = (SCRAPES / f"{name}.prom").read_text("utf-8")
    exporter.answer = page(text)
    collector = opened_at(exporter.url)
    reading = read(collector)
    conform(reading, dcgm_exporter.SOURCE)
    fields = {line.partition("{")[0] for line in text.splitlines() if line.startswith("DCGM_")}
    assert len(reading.samples) >= len(fields - {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"})
    collector.close()


# -- its place among the others


def test_nvml_stands_back_while_it_serves_and_returns_when_it_dies(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = played(monkeypatch, tmp_path, gpus=2)
    script.at(0, "*", utilization=12, sm_active=30)
    board = LatestSamples(Identity("n1"))
    sources = {each.id: opened(each, newest=board.newest) for each in (gpu.SOURCE, gpm.SOURCE)}
    sources["dcgm_exporter"] = opened_at(exporter.url)

    def once() -> dict[tuple[str, str, str], list[str]]:
        """(metric, GPU, kind) -> the sources that give it; each in its turn, as in one interval."""
        found: dict[tuple[str, str, str], list[str]] = {}
        time.sleep(0.11)
        for name in ("dcgm_exporter", "gpu", "gpm"):
            reading = Reading()
            try:
                sources[name].collect(reading)
            except Unavailable:
                board.forget(name)
                continue
            board.take(name, reading)
            for sample in reading.samples:
                labels = dict(sample.labels)
                own = (
                    labels.get("kind", "")
                    + labels.get("reason", "")
                    + labels.get("cause", "")
                    + labels.get("level", "")
                )
                found.setdefault((sample.metric, labels.get("gpu", ""), own), []).append(name)
        return found

    once()
    both = once()
    assert all(len(names) == 1 for names in both.values()), "no curve comes from two"
    assert both["gpu_power_watts", "0", ""] == ["dcgm_exporter"]
    assert both["gpu_sm_active_ratio", "0", ""] == ["dcgm_exporter"]
    assert both["gpu_sm_active_ratio", "1", ""] == ["gpm"], "what it leaves out NVML still tells"
    assert both["gpu_energy_joules_total", "1", ""] == ["gpu"]
    assert both["gpu_memory_temperature_celsius", "0", ""] == ["gpu"], "its blank is no value"
    curves = set(both)

    exporter.end()
    alone = once()
    assert set(alone) == curves - {("gpu_xid_events", "0", "")}
    assert {name for names in alone.values() for name in names} == {"gpu", "gpm"}
    assert all(len(names) == 1 for names in alone.values())
    for each in sources.values():
        each.close()


# -- what goes wrong


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b"# HELP a b\n")
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page("", 503), "answers 503"),
        (page("<html>hello</html>\n"), "has no GPU metrics"),
        (page('DCGM_FI_DEV_GPU_TEMP{gpu="0"} NaN\n'), "has no GPU metrics"),
        (page("# a comment\n" * 2000), "larger than 0 MiB"),
        (drip, "took longer than|timed out"),
        (lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"), "no dcgm-exporter answers"),
    ],
    ids=["503", "another", "nothing", "too-long", "drips", "no-http"],
)
def test_what_is_no_exporter_is_told(
    answer: Answer, reason: str, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm_exporter, "SCRAPE_TIMEOUT_S", 0.3 if answer is drip else 10.0)
    monkeypatch.setattr(dcgm_exporter, "MAX_BYTES", 20_000)
    exporter.answer = answer
    with pytest.raises(Unavailable, match=reason) as raised:
        opened_at(exporter.url)
    assert "[collect.dcgm_exporter]" in raised.value.remedy


def test_nobody_there_and_urls_that_cannot_be(exporter: Exporter) -> None:
    exporter.end()
    with pytest.raises(Unavailable, match="no dcgm-exporter answers at http://127"):
        opened_at(exporter.url)
    for url in ("ftp://host/metrics", "http://host:port/", "", "127.0.0.1:9400"):
        with pytest.raises(Unavailable, match="is invalid"):
            opened_at(url)


def test_series_that_change_with_each_scrape_are_forgotten(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm_exporter, "MAX_SERIES", 50)
    collector = opened_at(exporter.url)
    for tick in range(5):
        exporter.answer = page(
            "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",pod="{tick}-{gpu}"}} 40\n' for gpu in range(30))
        )
        assert len(read(collector).samples) == 30
    collector.close()
