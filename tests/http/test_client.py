"""One HTTP server: what is tried again, what is refused, and how each failure reads."""

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
from trackside.agent.out.receiver import ReceiverOptions
from trackside.http.client import HttpClient
from trackside.http.options import HttpOptions
from trackside.http.unavailable import SourceUnavailable

pytestmark = pytest.mark.slow

WELL = b'{"well": 1}'
OK = answer(WELL)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def endpoint(url: str, time: Time | None = None, **options: Any) -> HttpClient:
    time = time or Time()
    return HttpClient(HttpOptions(url=url, **options), sleep=time.sleep, clock=time.clock)


def failure(asked: HttpClient, path: str = "/x") -> SourceUnavailable:
    with pytest.raises(SourceUnavailable) as caught:
        asked.request("GET", path)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("first", [answer(b"", "503 Busy"), answer(b"", "502 Bad"), answer(b"", "504 Slow"),
                                   answer(b"", "429 Enough"), b"", answer(b"12345", length=50),
                                   b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123"])  # fmt: skip
def test_what_may_pass_is_tried_again(first: bytes) -> None:
    with scripted(first, OK) as server:
        asked = endpoint(server.url)
        assert asked.request("GET", "/x").body == WELL
        assert len(server.seen) == 2
        assert asked.traffic.requests == 1


@pytest.mark.parametrize(("status", "kind"), [("400 Bad", "refused"), ("422 No", "refused"), ("404 None", "refused"),
                                              ("401 Who", "unauthorized"), ("403 You", "unauthorized"),
                                              ("500 Oh", "broken"), ("302 There", "refused")])  # fmt: skip
def test_what_will_not_change_is_not_tried_again(status: str, kind: str) -> None:
    with scripted(answer({"status": "error", "error": "no\nsuch \x1b[31mthing"}, status)) as server:
        reason = failure(endpoint(server.url))
        assert len(server.seen) == 1
        assert reason.kind == kind
        assert f"{server.url}/x answered {status[:3]}: no such [31mthing" in str(reason)


def test_pauses_grow_and_end() -> None:
    time = Time()
    with scripted(answer(b"<html><body>too busy</body></html>", "503 Busy")) as server:
        reason = failure(endpoint(server.url, time, retries=4))
    assert reason.kind == "limited"
    assert "answered 503: too busy" in str(reason)
    assert len(time.slept) == 4
    for pause, longest in zip(time.slept, (0.25, 0.5, 1.0, 2.0), strict=True):
        assert longest / 2 <= pause <= longest


def test_retry_after_is_kept_to() -> None:
    time = Time()
    with scripted(answer(b"", "429 Enough", Retry_After="7"), OK) as server:
        endpoint(server.url, time).request("GET", "/x")
    assert time.slept == [7.0]


def test_a_pause_past_the_deadline_is_not_waited_for() -> None:
    time = Time()
    with scripted(answer(b"", "429 Enough", Retry_After="3600")) as server:
        reason = failure(endpoint(server.url, time))
    assert time.slept == []
    assert reason.kind == "limited"
    assert "asks to wait 3600 s" in str(reason)


def test_the_deadline_is_for_all_requests() -> None:
    time = Time()
    with scripted(OK) as server:
        asked = endpoint(server.url, time, deadline_s=10)
        asked.request("GET", "/x")
        time.now += 11
        reason = failure(asked)
        assert (reason.kind, len(server.seen)) == ("timeout", 1)
        assert "deadline_s" in str(reason)


def test_a_server_that_is_down_is_said_to_be_once() -> None:
    time = Time()
    with scripted(OK) as server:
        url = server.url
    asked = endpoint(url, time)
    first = failure(asked)
    assert first.kind == "unreachable"
    assert "connection refused; is it running?" in str(first)
    slept = len(time.slept)
    assert str(failure(asked)) == str(first)
    assert len(time.slept) == slept
    time.now += 10
    failure(asked)
    assert len(time.slept) == 2 * slept


def test_a_slow_answer_times_out() -> None:
    def slow(request: Request) -> bytes:
        time.sleep(0.6)
        return OK

    with scripted(slow) as server:
        asked = HttpClient(HttpOptions(url=server.url, timeout_s=0.2))
        reason = failure(asked)
    assert reason.kind == "timeout"
    assert "0.2 s" in str(reason)


@pytest.mark.parametrize("packed", [gzip.compress, zlib.compress])
def test_compressed_answers(packed: Callable[[bytes], bytes]) -> None:
    body = b'{"a": "' + b"x" * 3_000_000 + b'"}'
    with scripted(answer(packed(body), Content_Encoding="gzip" if packed is gzip.compress else "deflate")) as server:
        asked = endpoint(server.url, gzip=True)
        assert asked.request("GET", "/x").body == body
        assert server.seen[0].headers["accept-encoding"] == "gzip"
        assert 0 < asked.traffic.bytes_received < 10_000


def test_a_small_answer_that_unpacks_to_a_huge_one_is_refused() -> None:
    with scripted(answer(gzip.compress(b"\0" * 50_000_000), Content_Encoding="gzip")) as server:
        asked = endpoint(server.url, most_bytes=1_000_000)
        tracemalloc.start()
        assert failure(asked).kind == "too_large"
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 5_000_000


def test_a_compressed_answer_that_breaks_off() -> None:
    whole = gzip.compress(b"x" * 100_000)
    with scripted(answer(whole[:50], Content_Encoding="gzip"), OK) as server:
        assert endpoint(server.url).request("GET", "/x").body == WELL
        assert len(server.seen) == 2


def test_an_answer_of_too_many_bytes() -> None:
    with scripted(answer(b"x" * 5000)) as server:
        reason = failure(endpoint(server.url, most_bytes=4999))
    assert reason.kind == "too_large"
    assert "4,999" in str(reason)


@pytest.mark.parametrize(("options", "header"), [
    ({"bearer": "s3cret"}, "Bearer s3cret"),
    ({"user": "ann", "password": "s3cret"}, "Basic YW5uOnMzY3JldA=="),
])  # fmt: skip
def test_who_asks(options: dict[str, str], header: str) -> None:
    with scripted(OK, answer(b"", "401 Who")) as server:
        asked = endpoint(server.url, headers={"X-Scope-OrgID": "team-a"}, **options)
        asked.request("POST", "/x", form={"a": "1 2"}, params={"token": "s3cret"})
        assert server.seen[0].headers["authorization"] == header
        assert server.seen[0].headers["x-scope-orgid"] == "team-a"
        assert server.seen[0].body == b"a=1+2"
        reason = failure(asked, "/y")
    assert "s3cret" not in f"{asked.options!r} {reason} {asked.name}"


def test_a_password_in_the_url_stays_out_of_sight() -> None:
    options = HttpOptions(url="https://ann:s3%2Fcret@metrics.example:8443/prom/")
    assert (options.url, options.user, options.password) == ("https://metrics.example:8443/prom", "ann", "s3/cret")
    assert "s3" not in repr(options)


@pytest.mark.parametrize("options", [{"url": "metrics:9090"}, {"url": "ftp://a"}, {"url": "http://"}, {"url": "http://a:x"},
                                     {"url": "http://a?b=c"}, {"url": "http://a", "bearer": "x", "user": "y"},
                                     {"url": "http://a", "headers": {"X": "a\r\nB: c"}}, {"url": "http://a", "bearer": "a\nb"},
                                     {"url": "http://a", "timeout_s": 0}, {"url": "http://a", "concurrency": 0}])  # fmt: skip
def test_options_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"URL|header|http"):
        HttpOptions(**options)


@pytest.mark.parametrize(("options", "what"), [
    ({"bearer": "t\u043eken"}, "the bearer token"), ({"headers": {"X-Key": "\u20ac"}}, "the value of the header X-Key"),
    ({"user": "a\udcff", "password": "t\u043eken"}, "the user"), ({"user": "a", "password": "t\udcff"}, "the password"),
    ({"bearer": "token\n"}, "the bearer token"),
])  # fmt: skip
def test_secrets_that_cannot_be_sent(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what) as caught:
        HttpOptions(url="http://metrics", **options)
    assert not {"t\u043eken", "\u20ac", "\\u", "\\x", "token\n"} & {str(caught.value)}
    assert str(caught.value).isascii()


def test_a_password_of_any_letters() -> None:
    with scripted(OK) as server:
        endpoint(server.url, user="\u0430nn", password="\u20ac").request("GET", "/x")
        assert server.seen[0].headers["authorization"] == "Basic 0LBubjrigqw="


@pytest.mark.parametrize("url", ["http://ann:s3cret/x@h", "http://ann:s3cret@h:x", "http://s3cret@h?a=b",
                                 "ftp://ann:a@s3cret@h", "http://h/x?token=s3cret"])  # fmt: skip
def test_a_url_that_cannot_be_read_is_named_without_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="URL") as caught:
        HttpOptions(url=url)
    assert "s3cret" not in str(caught.value)
    assert "//" in str(caught.value)


def test_a_token_as_user_is_sent_and_not_shown() -> None:
    options = HttpOptions(url="http://s3cret@metrics")
    assert (options.user, options.url) == ("s3cret", "http://metrics")
    assert "s3cret" not in repr(options) + HttpClient(options).name


def test_no_more_at_once_than_allowed() -> None:
    now, most = [0], [0]

    def counted(request: Request) -> bytes:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.05)
        now[0] -= 1
        return OK

    with scripted(counted) as server:
        asked = HttpClient(HttpOptions(url=server.url, concurrency=2))
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: asked.request("GET", "/x"), range(6)))
    assert most[0] == 2


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, and server.pem/.key and client.pem/.key that it signed."""
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


def test_both_sides_show_certificates(certificates: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    tls.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    ca, cert, key = (str(certificates / name) for name in ("ca.pem", "client.pem", "client.key"))
    with scripted(OK, tls=tls) as server:
        url = server.url.replace("http:", "https:")
        assert endpoint(url, ca=ca, cert=cert, key=key).request("GET", "/x").body == WELL
        assert endpoint(url, verify=False, cert=cert, key=key).request("GET", "/x").body == WELL
        unknown = failure(endpoint(url, cert=cert, key=key))
        assert unknown.kind == "unreachable"
        assert "set ca to its authority" in str(unknown)
        assert failure(endpoint(url, ca=ca, retries=0)).kind in ("unreachable", "broken")
        assert len(server.seen) == 2


def test_certificates_that_cannot_be_used(certificates: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.pem"):
        endpoint("https://127.0.0.1:1", ca=str(certificates / "none.pem"))
    with pytest.raises(ValueError, match="cannot be loaded"):
        endpoint("https://127.0.0.1:1", cert=str(certificates / "names"))


TRICKLES = {
    "head": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "heads before the head": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"a"),
    "trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: a\r\n"),
    "refusal": (b"HTTP/1.1 400 Bad\r\nContent-Length: 99999\r\n\r\n", b"a"),
}


def trickled(server: socket.socket, begin: bytes, more: bytes, over: threading.Event) -> None:
    taken, _ = server.accept()
    try:
        taken.recv(65536)
        taken.sendall(begin)
        while not over.wait(0.05):
            taken.sendall(more)
    except OSError:
        pass
    finally:
        taken.close()


@pytest.mark.parametrize("where", TRICKLES)
def test_a_byte_now_and_then_keeps_nobody(where: str) -> None:
    over, answers = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = (server, *TRICKLES[where], over)
        threading.Thread(target=trickled, args=arguments, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        asked = HttpClient(HttpOptions(url=url, timeout_s=0.5, deadline_s=1.0, retries=0))

        def ask() -> None:
            try:
                asked.request("GET", "/x")
            except SourceUnavailable as error:
                answers.append(error.kind)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(10)
        over.set()
    assert answers == ["refused" if where == "refusal" else "timeout"]


@contextmanager
def trickling(begin: bytes, more: bytes, times: int = 1) -> Iterator[str]:
    """The address of a server that does so on so many connections."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = [
            threading.Thread(target=trickled, args=(server, begin, more, over), daemon=True) for _ in range(times)
        ]
        for thread in threads:
            thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            for thread in threads:
                thread.join(5)


@pytest.mark.parametrize("where", [*TRICKLES, "silence", "body without an end"])
def test_closing_ends_what_is_under_way(where: str) -> None:
    more = {"silence": (b"", b""), "body without an end": (b"HTTP/1.1 200 OK\r\n\r\n", b"x")}
    with trickling(*(TRICKLES | more)[where], times=4) as url, ThreadPoolExecutor(8) as pool:
        asked = HttpClient(HttpOptions(url=url, concurrency=4))
        failures = [pool.submit(failure, asked) for _ in range(8)]  # four of them wait for a place
        time.sleep(0.3)
        begun = time.monotonic()
        asked.close()
        reasons = [failure.result(5) for failure in failures]
        assert time.monotonic() - begun < 1
    assert {reason.kind for reason in reasons} <= {"unreachable", "refused"}
    assert sum("closed" in str(reason) for reason in reasons) >= (4 if where == "refusal" else 8)


def test_a_closed_endpoint_tries_no_more() -> None:
    with scripted(answer(b"", "429 Enough", Retry_After="60")) as server, ThreadPoolExecutor(1) as pool:
        asked = HttpClient(HttpOptions(url=server.url))
        coming = pool.submit(failure, asked)
        time.sleep(0.3)
        begun = time.monotonic()
        asked.close()
        assert "closed" in str(coming.result(5))
        assert time.monotonic() - begun < 1
        assert "closed" in str(failure(asked))
        assert len(server.seen) == 1


def test_a_handshake_that_breaks_off_is_tried_again() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{server.getsockname()[1]}"

    def hang_up() -> None:
        for _ in range(2):
            taken, _address = server.accept()
            taken.recv(65536)
            taken.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    asked = endpoint(url, retries=1)
    reason = failure(asked)
    thread.join(5)
    server.close()
    assert not thread.is_alive()
    assert "trust" not in str(reason)


def test_a_receiver_s_url_is_asked_as_it_stands_and_its_parameters_stay_out_of_messages() -> None:
    with scripted(OK, answer(b"no", "429 Enough", Retry_After="7")) as server:
        options = ReceiverOptions(url=f"{server.url}/write?token=s3cret")
        client = HttpClient(options.with_path("/usual"))
        assert client.request("POST", "", body=b"x").status == 200
        assert server.seen[0].target == "/write?token=s3cret"
        reason = failure(client, "")
    assert (reason.status, reason.message, reason.retry_after_s) == (429, "no", 7.0)
    assert "s3cret" not in f"{options!r} {reason} {client.name}"
    assert ReceiverOptions(url="http://r").with_path("/usual").url == "http://r/usual"


def test_an_answer_that_is_not_http() -> None:
    with scripted(b"SSH-2.0-OpenSSH_9.2\r\n") as server:
        reason = failure(endpoint(server.url, retries=0))
    assert reason.kind == "broken"
    assert "did not answer with HTTP: SSH-2.0-OpenSSH_9.2" in str(reason)
