"""The source ``dcgm_exporter``: translation of its metrics, and how NVML's sources yield to it and take over again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.agent.nvml import HERE, scripted_gpus
from tests.agent.readings import assert_conforms, assert_golden, exposition, open_source
from trackside.agent.delivery.exposition import LatestSamples
from trackside.agent.delivery.identity import Identity
from trackside.agent.owners import Owner, Owners
from trackside.agent.source import AgentSourceUnavailable, Collector, Reading
from trackside.agent.sources import dcgm_exporter, gpm, gpu

PAGE = (HERE / "exporter.prom").read_text("utf-8")
SCRAPES = Path(__file__).resolve().parents[3] / "shared/data/dcgm-exporter-scrapes"
Answer = Callable[[BaseHTTPRequestHandler], None]


def page(text: str, status: int = 200) -> Answer:
    """A response with this text."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return send


class Exporter:
    """A fake exporter on loopback; ``answer`` writes the response."""

    def __init__(self) -> None:
        self.answer: Answer = page(PAGE)
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                outer.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *arguments: None  # type: ignore[method-assign]  # the client hung up
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


class SingleOwner(Owners):
    def of_gpu(self, gpu: str) -> Owner | None:
        return Owner(job="42", rank=0, user="ada")


def open_exporter_source(url: str) -> Collector:
    return open_source(dcgm_exporter.SOURCE, owners=SingleOwner(), options=dcgm_exporter.DcgmExporterOptions(url))


def read(collector: Collector) -> Reading:
    reading = Reading()
    collector.collect(reading)
    return reading


def test_fields_are_translated_to_the_catalogs_metrics(exporter: Exporter, rewrite: bool) -> None:
    collector = open_exporter_source(f"{exporter.url}/metrics?collect[]=gpu")
    reading = read(collector)
    assert_conforms(reading, dcgm_exporter.SOURCE)
    assert_golden(HERE / "exporter.txt", exposition(reading), rewrite)
    assert set(exporter.paths) == {"/metrics?collect[]=gpu"}
    collector.close()


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["l4-kops-1", "l4-kops-2", "l40s-upcloud"])
def test_default_fields_of_real_exporters_are_read(name: str, exporter: Exporter) -> None:
    text = (SCRAPES / f"{name}.prom").read_text("utf-8")
    exporter.answer = page(text)
    collector = open_exporter_source(exporter.url)
    reading = read(collector)
    assert_conforms(reading, dcgm_exporter.SOURCE)
    fields = {line.partition("{")[0] for line in text.splitlines() if line.startswith("DCGM_")}
    assert len(reading.samples) >= len(fields - {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"})
    collector.close()


# -- precedence over other sources


def test_nvml_yields_to_the_exporter_and_takes_over_when_it_dies(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = scripted_gpus(monkeypatch, tmp_path, gpus=2)
    script.at(0, "*", utilization=12, sm_active=30)
    board = LatestSamples(Identity("n1"))
    sources = {source.id: open_source(source, newest=board.newest) for source in (gpu.SOURCE, gpm.SOURCE)}
    sources["dcgm_exporter"] = open_exporter_source(exporter.url)

    def collect_all() -> dict[tuple[str, str, str], list[str]]:
        """(metric, GPU, kind) -> the sources that give it, after one round of all sources."""
        sources_by_series: dict[tuple[str, str, str], list[str]] = {}
        time.sleep(0.11)
        for name in ("dcgm_exporter", "gpu", "gpm"):
            reading = Reading()
            try:
                sources[name].collect(reading)
            except AgentSourceUnavailable:
                board.forget(name)
                continue
            board.replace(name, reading)
            for sample in reading.samples:
                labels = dict(sample.labels)
                qualifier = (
                    labels.get("kind", "")
                    + labels.get("reason", "")
                    + labels.get("cause", "")
                    + labels.get("level", "")
                )
                sources_by_series.setdefault((sample.metric, labels.get("gpu", ""), qualifier), []).append(name)
        return sources_by_series

    collect_all()
    with_exporter = collect_all()
    assert all(len(names) == 1 for names in with_exporter.values()), "a series comes from one source"
    assert with_exporter["gpu_power_watts", "0", ""] == ["dcgm_exporter"]
    assert with_exporter["gpu_sm_active_ratio", "0", ""] == ["dcgm_exporter"]
    assert with_exporter["gpu_sm_active_ratio", "1", ""] == ["gpm"], "NVML adds what the exporter lacks"
    assert with_exporter["gpu_energy_joules_total", "1", ""] == ["gpu"]
    assert with_exporter["gpu_memory_temperature_celsius", "0", ""] == ["gpu"], "the exporter's blank is not a value"
    series = set(with_exporter)

    exporter.end()
    without_exporter = collect_all()
    assert set(without_exporter) == series - {("gpu_xid_events", "0", "")}
    assert {name for names in without_exporter.values() for name in names} == {"gpu", "gpm"}
    assert all(len(names) == 1 for names in without_exporter.values())
    for source in sources.values():
        source.close()


# -- failures


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
def test_an_unusable_response_is_reported_with_its_reason(
    answer: Answer, reason: str, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm_exporter, "SCRAPE_TIMEOUT_S", 0.3 if answer is drip else 10.0)
    monkeypatch.setattr(dcgm_exporter, "MAX_BYTES", 20_000)
    exporter.answer = answer
    with pytest.raises(AgentSourceUnavailable, match=reason) as error:
        open_exporter_source(exporter.url)
    assert "[collect.dcgm_exporter]" in error.value.remedy


def test_unreachable_exporters_and_invalid_urls_are_refused(exporter: Exporter) -> None:
    exporter.end()
    with pytest.raises(AgentSourceUnavailable, match="no dcgm-exporter answers at http://127"):
        open_exporter_source(exporter.url)
    for url in ("ftp://host/metrics", "http://host:port/", "", "127.0.0.1:9400"):
        with pytest.raises(AgentSourceUnavailable, match="is invalid"):
            open_exporter_source(url)


def test_series_that_change_with_each_scrape_do_not_accumulate(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm_exporter, "MAX_SERIES", 50)
    collector = open_exporter_source(exporter.url)
    for tick in range(5):
        exporter.answer = page(
            "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",pod="{tick}-{gpu}"}} 40\n' for gpu in range(30))
        )
        assert len(read(collector).samples) == 30
    collector.close()
