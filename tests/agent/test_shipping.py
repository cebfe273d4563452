"""From spool to receiver: everything arrives in order, whatever the receiver does in between."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.agent.receivers import Reply, Request, fake_receiver
from tests.services import free_port
from trackside.agent.daemon import resident_bytes
from trackside.agent.delivery import shipping
from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.loki_push import LokiPush
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.delivery.remote_write import RemoteWrite
from trackside.agent.delivery.shipping import Encoder, Sender
from trackside.agent.delivery.spool import Spool, SpoolOptions
from trackside.agent.source import Reading

pytestmark = pytest.mark.slow

IDENTITY = Identity("n1")
S = 1_000_000_000


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow after hundredths of a second."""
    monkeypatch.setattr(shipping, "MIN_RETRY_S", 0.01)
    monkeypatch.setattr(shipping, "MAX_RETRY_S", 0.05)


def samples_at(tick: int, count: int = 10) -> Reading:
    reading = Reading(time_ns=(1_772_438_400 + 15 * tick) * S)
    for gpu in range(count):
        reading.sample("gpu_power_watts", 300.0 + tick, gpu=gpu)
    return reading


def lines_at(tick: int, count: int = 10) -> Reading:
    reading = Reading(time_ns=(1_772_438_400 + tick) * S)
    for number in range(count):
        reading.line(f"step {tick * count + number} loss 2.0", reading.time_ns + number, slurm_job_id=4242, rank=0)
    return reading


@contextmanager
def run_sender(
    folder: Path,
    options: ReceiverOptions,
    wire: Encoder | None = None,
    messages: list[str] | None = None,
    **spool_options: int,
) -> Iterator[Sender]:
    say: Callable[[str], object] = (lambda text: None) if messages is None else messages.append
    sender = Sender(wire or RemoteWrite(IDENTITY), options, Spool(folder, SpoolOptions(**spool_options), say), say)
    sender.start()
    try:
        yield sender
    finally:
        sender.stop(0.0)
        sender.spool.close()


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def accepted_ticks(requests: list[Request]) -> list[int]:
    """The distinct ticks of the samples that the receiver accepted, in order."""
    times = [time_ms // 1000 for request in requests for _, _, time_ms, _ in request.samples()]
    return list(dict.fromkeys((time_s - 1_772_438_400) // 15 for time_s in times))


def test_readings_arrive_in_order(tmp_path: Path) -> None:
    with fake_receiver() as receiver, run_sender(tmp_path, receiver.options()) as sender:
        for tick in range(20):
            assert sender.spool_reading(samples_at(tick))
        wait_until(lambda: sender.statistics.sent_items == 200)
        assert accepted_ticks(receiver.accepted) == list(range(20))
        assert {request.path for request in receiver.requests} == {"/api/v1/write"}
        assert sender.spool.waiting.count == 0


def test_ten_minutes_without_a_receiver_lose_nothing_and_keep_the_order(tmp_path: Path) -> None:
    """40 readings of 3,000 samples and 600 of 200 lines, as a node of eight GPUs gives in ten minutes."""
    port = free_port()
    messages: list[str] = []
    options = ReceiverOptions(url=f"http://127.0.0.1:{port}", wait_s=0.0)
    with (
        run_sender(tmp_path / "m", options, messages=messages) as metrics,
        run_sender(tmp_path / "l", options, LokiPush(IDENTITY)) as lines,
    ):
        before = resident_bytes()
        for tick in range(600):
            if tick % 15 == 0:
                assert metrics.spool_reading(samples_at(tick // 15, 3000))
            assert lines.spool_reading(lines_at(tick, 200))
        wait_until(lambda: metrics.statistics.consecutive_failures > 3 and lines.statistics.consecutive_failures > 3)
        assert resident_bytes() - before < 32 << 20
        assert metrics.spool.waiting.count == 120_000
        assert metrics.spool.waiting.disk_bytes < 4 << 20
        with fake_receiver(port=port) as receiver:
            wait_until(lambda: metrics.statistics.sent_items == 120_000 and lines.statistics.sent_items == 120_000, 60)
            written = [request for request in receiver.accepted if request.path == "/api/v1/write"]
            pushed = [request for request in receiver.accepted if request.path == "/loki/api/v1/push"]
        assert accepted_ticks(written) == list(range(40))
        assert sum(len(request.samples()) for request in written) == 120_000
        texts = [text for request in pushed for _, _, text in request.lines()]
        assert texts == [f"step {number} loss 2.0" for number in range(120_000)]
        assert metrics.spool.waiting.lost == lines.spool.waiting.lost == {}
    assert [text for text in messages if "connection refused" in text] == messages[:1]  # once, not at each attempt
    assert "works again" in messages[-1]


def test_a_flood_of_lines_stays_within_the_disk_limit(tmp_path: Path) -> None:
    """Beyond the limit the oldest lines are lost and counted. The test runs with a fiftieth of the volume."""
    options = ReceiverOptions(url=f"http://127.0.0.1:{free_port()}", wait_s=0.0)
    with run_sender(tmp_path, options, LokiPush(IDENTITY), max_disk_bytes=1 << 20) as sender:
        before = resident_bytes()
        for tick in range(12):
            sender.spool_reading(lines_at(tick, 50_000))
        waiting = sender.spool.waiting
        assert resident_bytes() - before < 64 << 20
        assert waiting.disk_bytes <= 1 << 20
        assert waiting.count + waiting.lost["spool_full"] == 600_000
        assert waiting.lost.total() == waiting.lost["spool_full"] > 0


def test_a_restarted_sender_sends_what_was_left(tmp_path: Path) -> None:
    port = free_port()
    options = ReceiverOptions(url=f"http://127.0.0.1:{port}", wait_s=0.0)
    with run_sender(tmp_path, options) as sender:
        for tick in range(5):
            sender.spool_reading(samples_at(tick))
    with fake_receiver(port=port) as receiver, run_sender(tmp_path, options) as sender:
        sender.spool_reading(samples_at(5))
        wait_until(lambda: sender.statistics.sent_items == 60)
        assert accepted_ticks(receiver.accepted) == list(range(6))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 401, 403, 404, 301])
def test_temporary_errors_are_retried_without_loss(tmp_path: Path, status: int) -> None:
    answers = iter([status] * 3)

    def reply(request: Request) -> Reply:
        return next(answers, 204), "try again later", {}

    messages: list[str] = []
    with fake_receiver(reply) as receiver, run_sender(tmp_path, receiver.options(), messages=messages) as sender:
        for tick in range(5):
            sender.spool_reading(samples_at(tick))
        wait_until(lambda: sender.statistics.sent_items == 50)
        assert accepted_ticks(receiver.accepted) == list(range(5))
        assert sender.statistics.failed_requests == 3
        assert sender.spool.waiting.lost == {}
    assert f"answered {status}: try again later" in messages[0]


def test_retry_after_is_respected(tmp_path: Path) -> None:
    times: list[float] = []

    def reply(request: Request) -> Reply:
        times.append(time.monotonic())
        return (429, "", {"Retry-After": "1"}) if len(times) == 1 else (204, "", {})

    with fake_receiver(reply) as receiver, run_sender(tmp_path, receiver.options()) as sender:
        sender.spool_reading(samples_at(0))
        wait_until(lambda: sender.statistics.sent_items == 10)
    assert times[1] - times[0] >= 1.0


def test_only_the_refused_reading_is_lost(tmp_path: Path) -> None:
    """The refused reading is isolated from the others in its request, counted, and reported with the receiver's reason."""

    def reply(request: Request) -> Reply:
        is_refused = any(value == 307.0 for _, _, _, value in request.samples())
        return (400, "out of order <b>sample</b>\n at 7", {}) if is_refused else (204, "", {})

    messages: list[str] = []
    with fake_receiver(reply) as receiver:
        with run_sender(tmp_path, ReceiverOptions(url=f"http://127.0.0.1:{free_port()}"), messages=messages) as unsent:
            for tick in range(40):
                unsent.spool_reading(samples_at(tick))
        with run_sender(tmp_path, receiver.options(), messages=messages) as sender:
            wait_until(lambda: sender.statistics.sent_items == 390)
            assert accepted_ticks(receiver.accepted) == [*range(7), *range(8, 40)]
            assert sender.spool.waiting.lost == {"refused": 10}
            assert len(receiver.requests) < 30
    assert any("answered 400: out of order sample at 7; 10 items are lost" in text for text in messages)


def test_a_receiver_that_refuses_everything_does_not_block_the_spool(tmp_path: Path) -> None:
    with fake_receiver(lambda request: (422, "no", {})) as receiver, run_sender(tmp_path, receiver.options()) as sender:
        for tick in range(20):
            sender.spool_reading(samples_at(tick))
        wait_until(lambda: sender.spool.waiting.lost["refused"] == 200)
        assert sender.spool.waiting.count == 0


def test_a_closed_keep_alive_connection_is_reopened(tmp_path: Path) -> None:
    def reply(request: Request) -> Reply:
        return 200, "ok", {"Connection": "close"}

    with fake_receiver(reply) as receiver, run_sender(tmp_path, receiver.options()) as sender:
        for tick in range(3):
            sender.spool_reading(samples_at(tick))
            wait_until(lambda tick=tick: sender.statistics.sent_items == 10 * (tick + 1))  # type: ignore[misc]
        assert sender.statistics.failed_requests == 0


Serve = Callable[[socket.socket], None]


@contextmanager
def raw_server(serve: Serve) -> Iterator[int]:
    """A TCP server that calls a function of the test for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        stopping = threading.Event()

        def loop() -> None:
            while not stopping.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(5.0)
                    with suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            stopping.set()
            thread.join(10)


def never_answer(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def drip(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    for byte in b"HTTP/1.1 204 No Content\r\n" + b"X-Slow: and slow\r\n" * 100:
        connection.sendall(bytes((byte,)))
        time.sleep(0.05)


def send_garbage(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"\x00\xff not HTTP at all\r\n\r\n" * 100)


def hang_up(connection: socket.socket) -> None:
    connection.recv(100)


def send_endlessly(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 99999999999\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


REASONS: Mapping[Serve, str] = {
    never_answer: "did not answer within 0.5 s",
    drip: "did not answer within 0.5 s",
    send_garbage: "not HTTP at all",
    hang_up: "",
    send_endlessly: "500",
}


@pytest.mark.parametrize("serve", REASONS, ids=lambda serve: serve.__name__)
def test_hostile_receivers_only_cost_time(tmp_path: Path, serve: Serve) -> None:
    messages: list[str] = []
    with raw_server(serve) as port:
        options = ReceiverOptions(url=f"http://127.0.0.1:{port}", wait_s=0.0, timeout_s=0.5)
        with run_sender(tmp_path, options, messages=messages) as sender:
            sender.spool_reading(samples_at(0))
            wait_until(lambda: sender.statistics.consecutive_failures >= 2, 15.0)
            assert sender.spool.waiting.count == 10
    assert REASONS[serve] in messages[0]


def test_steps_of_the_clock_delay_lose_and_reorder_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = [0.0]
    real_time, real_time_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real_time() + offset[0])
    monkeypatch.setattr(time, "time_ns", lambda: real_time_ns() + int(offset[0] * S))
    with fake_receiver() as receiver, run_sender(tmp_path, receiver.options()) as sender:
        for tick, step in enumerate([0, 0, -86_400, 0, 0, 400 * 86_400, 0, -500 * 86_400, 0, 0]):
            offset[0] += step
            reading = Reading()
            reading.sample("host_load1", tick)
            sender.spool_reading(reading)
            wait_until(lambda tick=tick: sender.statistics.sent_items == tick + 1)  # type: ignore[misc]
        assert [value for request in receiver.accepted for _, _, _, value in request.samples()] == list(range(10))


def test_stopping_sends_what_is_waiting(tmp_path: Path) -> None:
    with fake_receiver() as receiver:
        with run_sender(tmp_path, receiver.options(wait_s=30.0)) as sender:
            sender.spool_reading(samples_at(0))
            begin = time.monotonic()
            sender.stop(20.0)
            assert time.monotonic() - begin < 10.0, "it does not wait for more readings"
        assert accepted_ticks(receiver.accepted) == [0]
