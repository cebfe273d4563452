"""The HTTP client: what it retries, what it refuses, and the message of each failure."""

from __future__ import annotations

import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.scripted import Request, answer, scripted
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.http.client import HttpClient
from trackside.http.options import HttpOptions
from trackside.http.unavailable import SourceUnavailable

pytestmark = pytest.mark.slow

WELL = b'{"well": 1}'
OK = answer(WELL)


class FakeClock:
    """A clock that advances only when something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def time(self) -> float:
        return self.now


def client_of(url: str, clock: FakeClock | None = None, **options: Any) -> HttpClient:
    clock = clock or FakeClock()
    return HttpClient(HttpOptions(url=url, **options), sleep=clock.sleep, clock=clock.time)


def failure(client: HttpClient, path: str = "/x") -> SourceUnavailable:
    with pytest.raises(SourceUnavailable) as caught:
        client.request("GET", path)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("first", [answer(b"", "503 Busy"), answer(b"", "502 Bad"), answer(b"", "504 Slow"),
                                   answer(b"", "429 Enough"), b"", answer(b"12345", length=50),
                                   b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123"])  # fmt: skip
def test_a_transient_failure_is_retried(first: bytes) -> None:
    with scripted(first, OK) as server:
        client = client_of(server.url)
        assert client.request("GET", "/x").body == WELL
        assert len(server.requests) == 2
        assert client.traffic.requests == 1


@pytest.mark.parametrize(("status", "kind"), [("400 Bad", "refused"), ("422 No", "refused"), ("404 None", "refused"),
                                              ("401 Who", "unauthorized"), ("403 You", "unauthorized"),
                                              ("500 Oh", "broken"), ("302 There", "refused")])  # fmt: skip
def test_a_permanent_failure_is_not_retried(status: str, kind: str) -> None:
    with scripted(answer({"status": "error", "error": "no\nsuch \x1b[31mthing"}, status)) as server:
        reason = failure(client_of(server.url))
        assert len(server.requests) == 1
        assert reason.kind == kind
        assert f"{server.url}/x answered {status[:3]}: no such [31mthing" in str(reason)


def test_pauses_between_retries_grow_and_are_limited() -> None:
    clock = FakeClock()
    with scripted(answer(b"<html><body>too busy</body></html>", "503 Busy")) as server:
        reason = failure(client_of(server.url, clock, retries=4))
    assert reason.kind == "limited"
    assert "answered 503: too busy" in str(reason)
    assert len(clock.slept) == 4
    for pause, max_pause in zip(clock.slept, (0.25, 0.5, 1.0, 2.0), strict=True):
        assert max_pause / 2 <= pause <= max_pause


def test_retry_after_is_honored() -> None:
    clock = FakeClock()
    with scripted(answer(b"", "429 Enough", Retry_After="7"), OK) as server:
        client_of(server.url, clock).request("GET", "/x")
    assert clock.slept == [7.0]


def test_a_retry_after_beyond_the_deadline_is_not_awaited() -> None:
    clock = FakeClock()
    with scripted(answer(b"", "429 Enough", Retry_After="3600")) as server:
        reason = failure(client_of(server.url, clock))
    assert clock.slept == []
    assert reason.kind == "limited"
    assert "asks to wait 3600 s" in str(reason)


def test_the_deadline_covers_all_requests() -> None:
    clock = FakeClock()
    with scripted(OK) as server:
        client = client_of(server.url, clock, deadline_s=10)
        client.request("GET", "/x")
        clock.now += 11
        reason = failure(client)
        assert (reason.kind, len(server.requests)) == ("timeout", 1)
        assert "deadline_s" in str(reason)


def test_a_server_that_is_down_is_retried_only_after_a_while() -> None:
    clock = FakeClock()
    with scripted(OK) as server:
        url = server.url
    client = client_of(url, clock)
    first = failure(client)
    assert first.kind == "unreachable"
    assert "(connection refused; is it running?)" in str(first)
    slept = len(clock.slept)
    assert str(failure(client)) == str(first)
    assert len(clock.slept) == slept
    clock.now += 10
    failure(client)
    assert len(clock.slept) == 2 * slept


def test_a_slow_answer_times_out() -> None:
    def slow(request: Request) -> bytes:
        time.sleep(0.6)
        return OK

    with scripted(slow) as server:
        client = HttpClient(HttpOptions(url=server.url, timeout_s=0.2))
        reason = failure(client)
    assert reason.kind == "timeout"
    assert "0.2 s" in str(reason)


@pytest.mark.parametrize("packed", [gzip.compress, zlib.compress])
def test_compressed_answers_are_decompressed(packed: Callable[[bytes], bytes]) -> None:
    body = b'{"a": "' + b"x" * 3_000_000 + b'"}'
    with scripted(answer(packed(body), Content_Encoding="gzip" if packed is gzip.compress else "deflate")) as server:
        client = client_of(server.url, gzip=True)
        assert client.request("GET", "/x").body == body
        assert server.requests[0].headers["accept-encoding"] == "gzip"
        assert 0 < client.traffic.bytes_received < 10_000


def test_a_decompression_bomb_is_refused() -> None:
    with scripted(answer(gzip.compress(b"\0" * 50_000_000), Content_Encoding="gzip")) as server:
        client = client_of(server.url, max_answer_bytes=1_000_000)
        tracemalloc.start()
        assert failure(client).kind == "too_large"
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 5_000_000


def test_a_truncated_compressed_answer_is_retried() -> None:
    compressed = gzip.compress(b"x" * 100_000)
    with scripted(answer(compressed[:50], Content_Encoding="gzip"), OK) as server:
        assert client_of(server.url).request("GET", "/x").body == WELL
        assert len(server.requests) == 2


def test_an_answer_larger_than_the_limit_is_refused() -> None:
    with scripted(answer(b"x" * 5000)) as server:
        reason = failure(client_of(server.url, max_answer_bytes=4999))
    assert reason.kind == "too_large"
    assert "4,999" in str(reason)


@pytest.mark.parametrize(("options", "authorization"), [
    ({"bearer": "s3cret"}, "Bearer s3cret"),
    ({"user": "ann", "password": "s3cret"}, "Basic YW5uOnMzY3JldA=="),
])  # fmt: skip
def test_credentials_are_sent_and_not_shown(options: dict[str, str], authorization: str) -> None:
    with scripted(OK, answer(b"", "401 Who")) as server:
        client = client_of(server.url, headers={"X-Scope-OrgID": "team-a"}, **options)
        client.request("POST", "/x", form={"a": "1 2"}, params={"token": "s3cret"})
        assert server.requests[0].headers["authorization"] == authorization
        assert server.requests[0].headers["x-scope-orgid"] == "team-a"
        assert server.requests[0].body == b"a=1+2"
        reason = failure(client, "/y")
    assert "s3cret" not in f"{client.options!r} {reason} {client.name}"


def test_a_password_in_the_url_is_not_shown() -> None:
    options = HttpOptions(url="https://ann:s3%2Fcret@metrics.example:8443/prom/")
    assert (options.url, options.user, options.password) == ("https://metrics.example:8443/prom", "ann", "s3/cret")
    assert "s3" not in repr(options)


@pytest.mark.parametrize("options", [{"url": "metrics:9090"}, {"url": "ftp://a"}, {"url": "http://"}, {"url": "http://a:x"},
                                     {"url": "http://a?b=c"}, {"url": "http://a", "bearer": "x", "user": "y"},
                                     {"url": "http://a", "headers": {"X": "a\r\nB: c"}}, {"url": "http://a", "bearer": "a\nb"},
                                     {"url": "http://a", "bearer": "a\0b"}, {"url": "http://a", "bearer": "x", "password": "y"},
                                     {"url": "http://a", "password": "x"}, {"url": "http://a", "key": "key.pem"},
                                     {"url": "http://a", "max_answer_bytes": 0}, {"url": "http://a", "timeout_s": 0}, {"url": "http://a", "concurrency": 0}])  # fmt: skip
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"URL|header|http|too small"):
        HttpOptions(**options)


@pytest.mark.parametrize(("options", "option"), [
    ({"bearer": "t\u043eken"}, "the bearer token"), ({"headers": {"X-Key": "\u20ac"}}, "the value of the header X-Key"),
    ({"user": "a\udcff", "password": "t\u043eken"}, "the user"), ({"user": "a", "password": "t\udcff"}, "the password"),
    ({"bearer": "token\n"}, "the bearer token"),
])  # fmt: skip
def test_credentials_that_no_header_can_carry_are_refused_without_showing_them(
    options: dict[str, Any], option: str
) -> None:
    with pytest.raises(ValueError, match=option) as caught:
        HttpOptions(url="http://metrics", **options)
    assert not {"t\u043eken", "\u20ac", "\\u", "\\x", "token\n"} & {str(caught.value)}
    assert str(caught.value).isascii()


def test_a_password_may_have_any_letters() -> None:
    with scripted(OK) as server:
        client_of(server.url, user="\u0430nn", password="\u20ac").request("GET", "/x")
        assert server.requests[0].headers["authorization"] == "Basic 0LBubjrigqw="


@pytest.mark.parametrize("url", ["http://ann:s3cret/x@h", "http://ann:s3cret@h:x", "http://s3cret@h?a=b",
                                 "ftp://ann:a@s3cret@h", "http://h/x?token=s3cret"])  # fmt: skip
def test_an_invalid_url_is_shown_without_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="URL") as caught:
        HttpOptions(url=url)
    assert "s3cret" not in str(caught.value)
    assert "//" in str(caught.value)


def test_a_token_as_user_name_is_used_and_not_shown() -> None:
    options = HttpOptions(url="http://s3cret@metrics")
    assert (options.user, options.url) == ("s3cret", "http://metrics")
    assert "s3cret" not in repr(options) + HttpClient(options).name


def test_concurrent_requests_are_limited() -> None:
    open_count, max_count = [0], [0]

    def counted(request: Request) -> bytes:
        open_count[0] += 1
        max_count[0] = max(max_count[0], open_count[0])
        time.sleep(0.05)
        open_count[0] -= 1
        return OK

    with scripted(counted) as server:
        client = HttpClient(HttpOptions(url=server.url, concurrency=2))
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: client.request("GET", "/x"), range(6)))
    assert max_count[0] == 2


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and server.pem/.key and client.pem/.key signed by it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")

    def call(*words: str) -> None:
        subprocess.run([str(openssl), *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    call("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    for name in ("server", "client"):
        call("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        call("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.pem",
             "-days", "2", "-extfile", "names")  # fmt: skip
    return folder


def test_client_and_server_certificates_are_verified(certificates: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    tls.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    ca, cert, key = (str(certificates / name) for name in ("ca.pem", "client.pem", "client.key"))
    with scripted(OK, tls=tls) as server:
        url = server.url.replace("http:", "https:")
        assert client_of(url, ca=ca, cert=cert, key=key).request("GET", "/x").body == WELL
        assert client_of(url, verify=False, cert=cert, key=key).request("GET", "/x").body == WELL
        unknown = failure(client_of(url, cert=cert, key=key))
        assert unknown.kind == "unreachable"
        assert "set ca to its authority" in str(unknown)
        assert failure(client_of(url, ca=ca, retries=0)).kind in ("unreachable", "broken")
        assert len(server.requests) == 2


def test_unusable_certificates_are_refused(certificates: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.pem"):
        client_of("https://127.0.0.1:1", ca=str(certificates / "none.pem"))
    with pytest.raises(ValueError, match="cannot be loaded"):
        client_of("https://127.0.0.1:1", cert=str(certificates / "names"))


SLOW_ANSWERS = {
    "head": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "heads before the head": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"a"),
    "trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: a\r\n"),
    "refusal": (b"HTTP/1.1 400 Bad\r\nContent-Length: 99999\r\n\r\n", b"a"),
}


def serve_slowly(server: socket.socket, head: bytes, more: bytes, stop: threading.Event) -> None:
    connection, _ = server.accept()
    try:
        connection.recv(65536)
        connection.sendall(head)
        while not stop.wait(0.05):
            connection.sendall(more)
    except OSError:
        pass
    finally:
        connection.close()


@pytest.mark.parametrize("part", SLOW_ANSWERS)
def test_a_slow_trickle_of_bytes_times_out(part: str) -> None:
    stop, failures = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = (server, *SLOW_ANSWERS[part], stop)
        threading.Thread(target=serve_slowly, args=arguments, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = HttpClient(HttpOptions(url=url, timeout_s=0.5, deadline_s=1.0, retries=0))

        def request() -> None:
            try:
                client.request("GET", "/x")
            except SourceUnavailable as error:
                failures.append(error.kind)

        thread = threading.Thread(target=request, daemon=True)
        thread.start()
        thread.join(10)
        stop.set()
    assert failures == ["refused" if part == "refusal" else "timeout"]


@contextmanager
def slow_server(head: bytes, more: bytes, times: int = 1) -> Iterator[str]:
    """The URL of a server that trickles an answer on this many connections."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = [
            threading.Thread(target=serve_slowly, args=(server, head, more, stop), daemon=True) for _ in range(times)
        ]
        for thread in threads:
            thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stop.set()
            for thread in threads:
                thread.join(5)


@pytest.mark.parametrize("part", [*SLOW_ANSWERS, "silence", "body without an end"])
def test_closing_ends_pending_requests(part: str) -> None:
    endless = {"silence": (b"", b""), "body without an end": (b"HTTP/1.1 200 OK\r\n\r\n", b"x")}
    with slow_server(*(SLOW_ANSWERS | endless)[part], times=4) as url, ThreadPoolExecutor(8) as pool:
        client = HttpClient(HttpOptions(url=url, concurrency=4))
        failures = [pool.submit(failure, client) for _ in range(8)]  # four of them wait for a connection
        time.sleep(0.3)
        start_s = time.monotonic()
        client.close()
        reasons = [failure.result(5) for failure in failures]
        assert time.monotonic() - start_s < 1
    assert {reason.kind for reason in reasons} <= {"unreachable", "refused"}
    assert sum("closed" in str(reason) for reason in reasons) >= (4 if part == "refusal" else 8)


def test_a_closed_client_does_not_retry() -> None:
    with scripted(answer(b"", "429 Enough", Retry_After="60")) as server, ThreadPoolExecutor(1) as pool:
        client = HttpClient(HttpOptions(url=server.url))
        pending = pool.submit(failure, client)
        time.sleep(0.3)
        start_s = time.monotonic()
        client.close()
        assert "closed" in str(pending.result(5))
        assert time.monotonic() - start_s < 1
        assert "closed" in str(failure(client))
        assert len(server.requests) == 1


def test_a_broken_tls_handshake_is_retried() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{server.getsockname()[1]}"

    def hang_up() -> None:
        for _ in range(2):
            connection, _address = server.accept()
            connection.recv(65536)
            connection.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    client = client_of(url, retries=1)
    reason = failure(client)
    thread.join(5)
    server.close()
    assert not thread.is_alive()
    assert "trust" not in str(reason)


def test_parameters_of_a_receiver_url_are_sent_and_not_shown() -> None:
    with scripted(OK, answer(b"no", "429 Enough", Retry_After="7")) as server:
        options = ReceiverOptions(url=f"{server.url}/write?token=s3cret")
        client = HttpClient(options.with_path("/usual"))
        assert client.request("POST", "", body=b"x").status == 200
        assert server.requests[0].target == "/write?token=s3cret"
        reason = failure(client, "")
    assert (reason.status, reason.message, reason.retry_after_s) == (429, "no", 7.0)
    assert "s3cret" not in f"{options!r} {reason} {client.name}"
    assert ReceiverOptions(url="http://r").with_path("/usual").url == "http://r/usual"


def test_an_answer_that_is_not_http_is_reported() -> None:
    with scripted(b"SSH-2.0-OpenSSH_9.2\r\n") as server:
        reason = failure(client_of(server.url, retries=0))
    assert reason.kind == "broken"
    assert "did not answer with HTTP: SSH-2.0-OpenSSH_9.2" in str(reason)
