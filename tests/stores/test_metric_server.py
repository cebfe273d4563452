"""A metric store is registered by its file in the folder of backends; nothing else names it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from tests.stores.embedded.runs import SACCT, T0, sacct, write
from trackside.cli import main
from trackside.http.options import HttpOptions
from trackside.stores import metrics
from trackside.stores.metric_server import MetricOptions, name_of, open_metrics
from trackside.stores.registry import METRICS, kinds

ENGINE = dedent('''
    """A MetricBackend from one JSON document."""

    from functools import cached_property

    import msgspec
    import numpy as np

    from trackside.model import Position, Samples, Series
    from trackside.stores.memory_backend import MemoryBackend
    from trackside.stores.metric_server import MetricServer


    class _Array(msgspec.Struct):
        metric: str
        labels: dict[str, str]
        times_ms: list[int]
        values: list[float]


    class Arrays(MetricServer):
        title = "arrays"

        @cached_property
        def _backend(self):
            backend = MemoryBackend()
            for array in msgspec.json.decode(self.endpoint.request("GET", "").body, type=list[_Array]):
                series = Series(array.metric, tuple(sorted(array.labels.items())), Position(self.name, 0))
                index = np.zeros(len(array.values), np.int32)
                backend.add(Samples([series], index, np.array(array.times_ms), np.array(array.values)))
            return backend

        def series(self):
            return self._backend.series()

        def rollups(self, requests):
            return self._backend.rollups(requests)


    METRIC_SERVER = Arrays
''')


@pytest.fixture
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of a backend that is one more file."""
    folder = write(tmp_path / "backends", {"arrays.py": ENGINE})
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(folder)])
    return "arrays"


@contextmanager
def serving(document: object) -> Iterator[str]:
    """The URL of a document."""
    body = json.dumps(document).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/run.json"
        finally:
            server.shutdown()
            thread.join()


def document(minutes: int = 10) -> list[object]:
    times = [round(T0 * 1000) + 15_000 * tick for tick in range(4 * minutes)]
    labels = {"node": "gpu017", "gpu": "0", "job": "41"}
    return [{"metric": "gpu_power_watts", "labels": labels, "times_ms": times, "values": [310.0] * len(times)}]


def test_a_backend_file_registers_itself(arrays: str) -> None:
    assert kinds(METRICS) == ("arrays", "prometheus")
    with serving(document()) as url:
        options = MetricOptions(kind=arrays, endpoint=HttpOptions(url=url))
        backend = open_metrics(options)
        assert backend.name == name_of(options) == f"arrays {url}"
        [info] = backend.series()
        values, count = backend.rollup([[info.id]], info.first_ms - 15_000, info.last_ms, 15_000, "avg")
        backend.close()
    assert (set(values[0].tolist()), count) == ({310.0}, 40)


def test_a_registered_backend_works_on_the_command_line(arrays: str, tmp_path: Path) -> None:
    run = write(tmp_path / "run", {"sacct.txt": SACCT + sacct("41")})
    with serving(document()) as url:
        command = ["diagnose", str(run), "--slurm", "off", "--metrics-url", f"{arrays}={url}", "--json"]
        result = CliRunner().invoke(main, command, env={"HOME": str(tmp_path)})
    assert result.exit_code == 0, result.output
    rows = {row["path"]: row for row in json.loads(result.stdout)["inputs"]}
    row = rows[f"arrays {url}"]
    assert (row["format"], row["status"], row["rows"]) == ("arrays", "read", 1)


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("influx=http://127.0.0.1:9", "unknown kind 'influx'; known: prometheus"),
        ("promtheus=http://127.0.0.1:9", "did you mean 'prometheus'?"),
        ("metrics:9090", "must begin with http:// or https://"),
    ],
)
def test_an_invalid_metrics_url_is_refused(argument: str, error: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["config", "--metrics-url", argument], env={"HOME": str(tmp_path)})
    assert result.exit_code == 2
    assert error in result.stderr


def test_a_url_alone_is_a_prometheus_compatible_server(tmp_path: Path) -> None:
    for argument in ("http://m:9090", "prometheus=http://m:9090"):
        result = CliRunner().invoke(main, ["config", "--metrics-url", argument], env={"HOME": str(tmp_path)})
        assert 'url = "http://m:9090"' in result.stdout
        assert 'kind = "prometheus"' in result.stdout
