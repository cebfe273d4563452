"""Between spool and receiver: all of it gets there in order, whatever the receiver does meanwhile."""

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
from trackside.agent.out import shipping
from trackside.agent.out.identity import Identity
from trackside.agent.out.loki_push import LokiPush
from trackside.agent.out.receiver import ReceiverOptions
from trackside.agent.out.remote_write import RemoteWrite
from trackside.agent.out.shipping import Protocol, Sender
from trackside.agent.out.spool import Spool, SpoolOptions
from trackside.agent.source import Reading

pytestmark = pytest.mark.slow

IDENTITY = Identity("n1")
S = 1_000_000_000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other in hundredths of a second."""
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
def ships(
    folder: Path, options: ReceiverOptions, wire: Protocol | None = None, said: list[str] | None = None, **spool: int
) -> Iterator[Sender]:
    say: Callable[[str], object] = (lambda text: None) if said is None else said.append
    ship = Sender(wire or RemoteWrite(IDENTITY), options, Spool(folder, SpoolOptions(**spool), say), say)
    ship.start()
    try:
        yield ship
    finally:
        ship.stop(0.0)
        ship.spool.close()


def until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def taken_ticks(requests: list[Request]) -> list[int]:
    """Ticks of what the receiver took, in its order, each once."""
    times = [time_ms // 1000 for request in requests for _, _, time_ms, _ in request.samples()]
    return list(dict.fromkeys((at - 1_772_438_400) // 15 for at in times))


def test_what_is_taken_arrives(tmp_path: Path) -> None:
    with fake_receiver() as receiver, ships(tmp_path, receiver.options()) as ship:
        for tick in range(20):
            assert ship.take(samples_at(tick))
        until(lambda: ship.sent.count == 200)
        assert taken_ticks(receiver.accepted) == list(range(20))
        assert {request.path for request in receiver.requests} == {"/api/v1/write"}
        assert ship.spool.waiting.count == 0


def test_ten_minutes_away_at_full_rate_lose_nothing_and_keep_their_order(tmp_path: Path) -> None:
    """40 readings of 3,000 samples and 600 of 200 lines, as a node of eight GPUs gives in ten minutes."""
    port = free_port()
    said: list[str] = []
    options = ReceiverOptions(url=f"http://127.0.0.1:{port}", wait_s=0.0)
    with (
        ships(tmp_path / "m", options, said=said) as metrics,
        ships(tmp_path / "l", options, LokiPush(IDENTITY)) as lines,
    ):
        before = resident_bytes()
        for tick in range(600):
            if tick % 15 == 0:
                assert metrics.take(samples_at(tick // 15, 3000))
            assert lines.take(lines_at(tick, 200))
        until(lambda: metrics.sent.failures > 3 and lines.sent.failures > 3)
        assert resident_bytes() - before < 32 << 20
        assert metrics.spool.waiting.count == 120_000
        assert metrics.spool.waiting.disk_bytes < 4 << 20
        with fake_receiver(port=port) as receiver:
            until(lambda: metrics.sent.count == 120_000 and lines.sent.count == 120_000, 60)
            written = [request for request in receiver.accepted if request.path == "/api/v1/write"]
            pushed = [request for request in receiver.accepted if request.path == "/loki/api/v1/push"]
        assert taken_ticks(written) == list(range(40))
        assert sum(len(request.samples()) for request in written) == 120_000
        texts = [text for request in pushed for _, _, text in request.lines()]
        assert texts == [f"step {number} loss 2.0" for number in range(120_000)]
        assert metrics.spool.waiting.lost == lines.spool.waiting.lost == {}
    assert [text for text in said if "connection refused" in text] == said[:1]  # once, not at each try
    assert "works again" in said[-1]


def test_fifty_thousand_lines_a_second_for_ten_minutes_stay_within_the_bound(tmp_path: Path) -> None:
    """What is beyond the bound is lost, the oldest first, and every line of it is counted; a fiftieth of the volume."""
    options = ReceiverOptions(url=f"http://127.0.0.1:{free_port()}", wait_s=0.0)
    with ships(tmp_path, options, LokiPush(IDENTITY), most_bytes=1 << 20) as ship:
        before = resident_bytes()
        for tick in range(12):
            ship.take(lines_at(tick, 50_000))
        waiting = ship.spool.waiting
        assert resident_bytes() - before < 64 << 20
        assert waiting.disk_bytes <= 1 << 20
        assert waiting.count + waiting.lost["spool_full"] == 600_000
        assert waiting.lost.total() == waiting.lost["spool_full"] > 0


def test_the_next_process_sends_what_the_last_could_not(tmp_path: Path) -> None:
    port = free_port()
    options = ReceiverOptions(url=f"http://127.0.0.1:{port}", wait_s=0.0)
    with ships(tmp_path, options) as ship:
        for tick in range(5):
            ship.take(samples_at(tick))
    with fake_receiver(port=port) as receiver, ships(tmp_path, options) as ship:
        ship.take(samples_at(5))
        until(lambda: ship.sent.count == 60)
        assert taken_ticks(receiver.accepted) == list(range(6))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 401, 403, 404, 301])
def test_what_may_pass_is_waited_for(tmp_path: Path, status: int) -> None:
    answers = iter([status] * 3)

    def reply(request: Request) -> Reply:
        return next(answers, 204), "try again later", {}

    said: list[str] = []
    with fake_receiver(reply) as receiver, ships(tmp_path, receiver.options(), said=said) as ship:
        for tick in range(5):
            ship.take(samples_at(tick))
        until(lambda: ship.sent.count == 50)
        assert taken_ticks(receiver.accepted) == list(range(5))
        assert ship.sent.failed == 3
        assert ship.spool.waiting.lost == {}
    assert f"answered {status}: try again later" in said[0]


def test_a_receiver_says_when_to_come_again(tmp_path: Path) -> None:
    times: list[float] = []

    def reply(request: Request) -> Reply:
        times.append(time.monotonic())
        return (429, "", {"Retry-After": "1"}) if len(times) == 1 else (204, "", {})

    with fake_receiver(reply) as receiver, ships(tmp_path, receiver.options()) as ship:
        ship.take(samples_at(0))
        until(lambda: ship.sent.count == 10)
    assert times[1] - times[0] >= 1.0


def test_the_one_reading_that_a_receiver_refuses_is_all_that_is_lost(tmp_path: Path) -> None:
    """It is found among those that were sent with it, counted, and said with the receiver's own words."""

    def reply(request: Request) -> Reply:
        bad = any(value == 307.0 for _, _, _, value in request.samples())
        return (400, "out of order <b>sample</b>\n at 7", {}) if bad else (204, "", {})

    said: list[str] = []
    with fake_receiver(reply) as receiver:
        with ships(tmp_path, ReceiverOptions(url=f"http://127.0.0.1:{free_port()}"), said=said) as away:
            for tick in range(40):
                away.take(samples_at(tick))
        with ships(tmp_path, receiver.options(), said=said) as ship:
            until(lambda: ship.sent.count == 390)
            assert taken_ticks(receiver.accepted) == [*range(7), *range(8, 40)]
            assert ship.spool.waiting.lost == {"refused": 10}
            assert len(receiver.requests) < 30
    assert any("answered 400: out of order sample at 7; 10 items are lost" in text for text in said)


def test_a_receiver_that_refuses_everything_wedges_nothing(tmp_path: Path) -> None:
    with fake_receiver(lambda request: (422, "no", {})) as receiver, ships(tmp_path, receiver.options()) as ship:
        for tick in range(20):
            ship.take(samples_at(tick))
        until(lambda: ship.spool.waiting.lost["refused"] == 200)
        assert ship.spool.waiting.count == 0


def test_a_kept_connection_that_the_receiver_ended_is_opened_again(tmp_path: Path) -> None:
    def reply(request: Request) -> Reply:
        return 200, "ok", {"Connection": "close"}

    with fake_receiver(reply) as receiver, ships(tmp_path, receiver.options()) as ship:
        for tick in range(3):
            ship.take(samples_at(tick))
            until(lambda tick=tick: ship.sent.count == 10 * (tick + 1))  # type: ignore[misc]
        assert ship.sent.failed == 0


Serve = Callable[[socket.socket], None]


@contextmanager
def raw_server(serve: Serve) -> Iterator[int]:
    """Takes connections and does to them what a test wants."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        over = threading.Event()

        def loop() -> None:
            while not over.is_set():
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
            over.set()
            thread.join(10)


def mute(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def drip(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    for byte in b"HTTP/1.1 204 No Content\r\n" + b"X-Slow: and slow\r\n" * 100:
        connection.sendall(bytes((byte,)))
        time.sleep(0.05)


def rubbish(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"\x00\xff not HTTP at all\r\n\r\n" * 100)


def cut(connection: socket.socket) -> None:
    connection.recv(100)


def endless(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 99999999999\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


REASONS: Mapping[Serve, str] = {
    mute: "did not answer within 0.5 s",
    drip: "did not answer within 0.5 s",
    rubbish: "not HTTP at all",
    cut: "",
    endless: "500",
}


@pytest.mark.parametrize("serve", REASONS, ids=lambda serve: serve.__name__)
def test_hostile_receivers_cost_time_alone(tmp_path: Path, serve: Serve) -> None:
    said: list[str] = []
    with raw_server(serve) as port:
        options = ReceiverOptions(url=f"http://127.0.0.1:{port}", wait_s=0.0, timeout_s=0.5)
        with ships(tmp_path, options, said=said) as ship:
            ship.take(samples_at(0))
            until(lambda: ship.sent.failures >= 2, 15.0)
            assert ship.spool.waiting.count == 10
    assert REASONS[serve] in said[0]


def test_when_the_clock_steps_nothing_is_held_up_lost_or_reordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = [0.0]
    true, true_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: true() + offset[0])
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(offset[0] * S))
    with fake_receiver() as receiver, ships(tmp_path, receiver.options()) as ship:
        for tick, step in enumerate([0, 0, -86_400, 0, 0, 400 * 86_400, 0, -500 * 86_400, 0, 0]):
            offset[0] += step
            reading = Reading()
            reading.sample("host_load1", tick)
            ship.take(reading)
            until(lambda tick=tick: ship.sent.count == tick + 1)  # type: ignore[misc]
        assert [value for request in receiver.accepted for _, _, _, value in request.samples()] == list(range(10))


def test_told_to_end_it_sends_what_waits(tmp_path: Path) -> None:
    with fake_receiver() as receiver:
        with ships(tmp_path, receiver.options(wait_s=30.0)) as ship:
            ship.take(samples_at(0))
            begin = time.monotonic()
            ship.stop(20.0)
            assert time.monotonic() - begin < 10.0, "it does not wait for company any more"
        assert taken_ticks(receiver.accepted) == [0]
