"""Requests that web pages send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.serve.receiving import RunningReceiver, packed, tick, write_request
from tests.services import program
from tools.screenshot import FLAGS
from trackside.serve import app
from trackside.serve.web_pages import host_name
from trackside.stores.receiver.options import ServeOptions

OWN, EVIL = "127.0.0.1", "evil.example"
PUSH = """{"streams": [{"stream": {"job_id": "4242"}, "values": [["1772438400000000000", "step 1 loss 2.0"]]}]}"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningReceiver]:
    receiver = RunningReceiver(ServeOptions(store=str(tmp_path / "store"), hosts=("metrics.site.org",)))
    yield receiver
    receiver.close()


def status(running: RunningReceiver, headers: Mapping[str, str], path: str = "/-/healthy", method: str = "GET") -> int:
    return running.ask(path, None if method == "GET" else b"{}", headers, method).status


@pytest.mark.parametrize(
    "host",
    [
        OWN,
        "127.0.0.1:9480",
        "[::1]:9480",
        "10.2.3.4",
        "localhost:9480",
        "a.localhost",
        "Metrics.Site.org.:9480",
        socket.gethostname(),
    ],
)
def test_its_own_names_and_addresses_are_served(running: RunningReceiver, host: str) -> None:
    assert status(running, {"Host": host}) == 200


@pytest.mark.parametrize("host", [EVIL, "localhost.evil.example", "127.0.0.1.evil.example:9480", "[evil", "x" * 3000])
def test_other_names_are_refused(running: RunningReceiver, host: str) -> None:
    answer = running.ask("/api/v1/jobs", headers={"Host": host})
    assert answer.status == 421
    assert b"add it to serve.hosts" in answer.data


def test_other_names_are_served_if_every_request_needs_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    files = (str(tmp_path / "token"),)
    receiver = RunningReceiver(
        ServeOptions(store=str(tmp_path / "store"), write_token_files=files, read_token_files=files)
    )
    assert status(receiver, {"Host": EVIL}) == 200
    receiver.close()


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://metrics.site.org.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_pages_of_other_origins_are_refused(running: RunningReceiver, method: str, headers: Mapping[str, str]) -> None:
    for path in ("/-/healthy", "/api/v1/jobs", "/loki/api/v1/push", "/api/v1/runs/4242/diagnose"):
        assert status(running, headers, path, method) == 403


def test_its_own_pages_links_and_programs_are_served(running: RunningReceiver) -> None:
    place = running.url.removeprefix("http://")
    assert status(running, {"Origin": f"http://{place}", "Sec-Fetch-Site": "same-origin"}) == 200
    assert status(running, {"Origin": "https://metrics.site.org", "Sec-Fetch-Site": "same-origin"}) == 200  # by a proxy
    assert status(running, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}) == 200
    assert status(running, {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}) == 200


def test_every_answer_is_data_of_its_own_origin(running: RunningReceiver) -> None:
    for path, headers in (("/-/healthy", {}), ("/nothing", {}), ("/api/v1/jobs", {"Host": EVIL})):
        answer = running.ask(path, headers=headers)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_a_refusal_is_logged_in_one_line(running: RunningReceiver, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        status(running, {"Origin": "https://evil.example"}, "/-/healthy?a=%0a")
    (record,) = caplog.records
    assert record.getMessage() == (
        "/-/healthy from 127.0.0.1 refused with 403: web pages of another origin (https://evil.example) may send no"
        " requests here"
    )


@pytest.mark.parametrize("path", ["/api/v1/write", "/v1/metrics", "/v1/logs", "/loki/api/v1/push"])
def test_a_push_needs_a_content_type(running: RunningReceiver, path: str) -> None:
    body = packed(write_request(tick(0)))
    for headers in ({}, {"Content-Type": "text/plain"}):
        assert running.ask(path, body, {**headers, "Content-Encoding": "snappy"}).status == 415


@pytest.mark.parametrize(
    ("host", "name"),
    [("a.b:80", "a.b"), ("[::1]:80", "::1"), ("::1", ":"), ("A.B.", "a.b"), ("a:", "a"), ("a:b", "a:b"), ("", "")],
)
def test_a_host_without_its_port(host: str, name: str) -> None:
    assert host_name(host) == name


# -- a real browser

ATTACKS = {
    "push without a type": "fetch(`${server}/loki/api/v1/push`, {method: 'POST', body: new Blob([push])})",
    "push as text": "fetch(`${server}/loki/api/v1/push`, {method: 'POST', mode: 'no-cors', body: push})",
    "diagnose": "fetch(`${server}/api/v1/runs/4242/diagnose`, {method: 'POST', mode: 'no-cors'})",
    "read": "fetch(`${server}/api/v1/jobs`).then((answer) => answer.text())",
    "image": "new Promise((done) => {const image = new Image(); image.onload = image.onerror = done; image.src = `${server}/metrics`})",
}


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page_port() -> Iterator[int]:
    server = ThreadingHTTPServer((OWN, 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.service
@pytest.mark.parametrize("guarded", [True, False])
def test_a_page_in_a_browser_reaches_nothing(
    guarded: bool, tmp_path: Path, page_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check the browser lets some of it through: else the test would show nothing."""
    if not guarded:
        monkeypatch.setattr(app, "PageCheck", lambda inner, *_, **__: inner)
    running = RunningReceiver(ServeOptions(store=str(tmp_path / "store")))
    port = int(running.url.rpartition(":")[2])
    rules = f"--host-resolver-rules=MAP {EVIL} {OWN}"
    results: dict[str, str] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium", "chromium"), args=[*FLAGS, rules])
        page = browser.new_page()
        page.goto(f"http://{OWN}:{page_port}/")
        for name, attack in ATTACKS.items():
            script = f"async ([server, push]) => {{ try {{ const it = await {attack}; return it?.status ?? String(it) }} catch (e) {{ return String(e) }} }}"
            results[name] = str(page.evaluate(script, [running.url, PUSH]))
        rebound = page.goto(f"http://{EVIL}:{port}/-/healthy")
        assert rebound is not None
        results["rebinding"] = f"{rebound.status}"
        browser.close()
    counts = dict(running_responses(running))
    running.close()
    if guarded:
        assert counts == {}
        assert results["rebinding"] == "421"
    else:
        assert counts
        assert results["rebinding"] == "200"


def running_responses(running: RunningReceiver) -> Iterator[tuple[str, str]]:
    """Pushes that reached the receiver, by protocol and status."""
    for line in running.ask("/metrics").data.decode().splitlines():
        if line.startswith("trackside_receiver_requests_total{"):
            name, _, value = line.rpartition(" ")
            yield name, value
