"""The servers that other tests start: ready when returned, with their data, and stopped afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import services
from tests.services import Postgres, Prometheus, Rotel, Server, Victoria

pytestmark = pytest.mark.service


def test_victoriametrics_returns_old_samples_at_once(victoria: Victoria) -> None:
    victoria.load('old{a="1"} 2.5 1000000000000\n')
    answer = json.loads(victoria.ask("GET", "/api/v1/query?query=old&time=1000000001"))
    assert answer["data"]["result"][0]["value"] == [1000000001, "2.5"]
    victoria.clear()
    assert json.loads(victoria.ask("GET", "/api/v1/series?match[]=old&start=999999999"))["data"] == []


def test_vmagent_forwards_samples(victoria: Victoria, vmagent: Callable[..., Server]) -> None:
    agent = vmagent(victoria.url + "/api/v1/write")
    agent.ask("POST", "/api/v1/import/prometheus", body=f"sent 7 {int(time.time() * 1000) - 60_000}\n")

    def arrived() -> bool:
        victoria.flush()
        return bool(json.loads(victoria.ask("GET", "/api/v1/series?match[]=sent"))["data"])

    services.wait_until(arrived, "the sample sent to vmagent")


def test_prometheus_starts_with_old_samples(tmp_path: Path) -> None:
    text = '# TYPE old gauge\nold{a="1"} 2.5 1000000000\n# EOF\n'
    with services.prometheus_server(tmp_path / "own", openmetrics=text) as server:
        answer = json.loads(server.ask("GET", "/api/v1/query?query=old&time=1000000001"))
        assert answer["data"]["result"][0]["value"] == [1000000001, "2.5"]
    assert server.process.poll() is not None
    assert server not in services.RUNNING


def test_the_session_prometheus_answers(prometheus: Prometheus) -> None:
    assert json.loads(prometheus.ask("GET", "/api/v1/query?query=vector(1)"))["status"] == "success"


def test_postgres_databases_are_separate(postgres: Postgres) -> None:
    import sqlalchemy

    first, second = (sqlalchemy.create_engine(postgres.database()) for _ in range(2))
    with first.begin() as link:
        link.execute(sqlalchemy.text("CREATE TABLE only_here (id int)"))
    assert sqlalchemy.inspect(first).get_table_names() == ["only_here"]
    assert sqlalchemy.inspect(second).get_table_names() == []
    first.dispose()
    second.dispose()


def test_rotel_accepts_otlp(rotel: Callable[..., Rotel]) -> None:
    agent = rotel("--exporter=blackhole")
    agent.ask("POST", "/v1/logs", body=b"", headers={"Content-Type": "application/x-protobuf"})


def test_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="prometheus ended with 2") as failed,
        services.prometheus_server(tmp_path, config="nonsense: 1\n"),
    ):
        pass
    assert "nonsense not found" in "".join(failed.value.__notes__)


def test_missing_program_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install no-such"):
        services.program("no-such-program", "no-such")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install no-such"):
        services.program("no-such-program", "no-such")
