"""The receiver over HTTP: acknowledged data is stored; other responses tell senders to retry or to give up."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cramjam
import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from tests.messages import SECOND
from tests.serve.receiving import (
    JSON,
    PROTOBUF,
    STARTED,
    T0_MS,
    RunningReceiver,
    end_all,
    expected,
    gpu,
    key,
    lines,
    packed,
    samples,
    served,
    tick,
    write_request,
)
from tests.services import wait_until
from tests.stores.metadata.verdicts import run, verdict
from trackside.serve import connections, limits
from trackside.serve.app import serve
from trackside.serve.connections import MAX_HEAD_BYTES
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.metadata.archive import Archive
from trackside.stores.receiver.intake import Intake
from trackside.stores.receiver.options import ReceiverLimits, RetentionOptions, ServeOptions

pytestmark = pytest.mark.slow  # most start a receiver in a process of its own

TOKEN, OTHER = "a" * 32, "b" * 32
OTLP = {
    "resourceMetrics": [
        {
            "resource": {"attributes": [{"key": "host.name", "value": {"stringValue": "gpu017"}}]},
            "scopeMetrics": [
                {
                    "metrics": [
                        {
                            "name": "DCGM_FI_DEV_GPU_UTIL",
                            "gauge": {
                                "dataPoints": [
                                    {
                                        "timeUnixNano": str(T0_MS * 1_000_000),
                                        "asDouble": 50.0,
                                        "attributes": [
                                            {"key": "gpu", "value": {"stringValue": "0"}},
                                            {"key": "Hostname", "value": {"stringValue": "gpu017"}},
                                        ],
                                    }
                                ]
                            },
                        }
                    ]
                }
            ],
        }
    ]
}
OTLP_LOGS = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "slurm.job.id", "value": {"stringValue": "4242"}}]},
            "scopeLogs": [
                {"logRecords": [{"timeUnixNano": str(T0_MS * 1_000_000), "body": {"stringValue": "step 1"}}]}
            ],
        }
    ]
}
LOKI = {"streams": [{"stream": {"job_id": "4242"}, "values": [[str(T0_MS * 1_000_000), "step 1 loss 2.0"]]}]}


def start_receiver(store: Path, limits: ReceiverLimits | None = None, **more: object) -> RunningReceiver:
    return RunningReceiver(
        ServeOptions(
            store=str(store),
            limits=limits or ReceiverLimits(),
            keeping=RetentionOptions(flush_s=3600.0),
            **more,  # type: ignore[arg-type]
        )
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    end_all()


@pytest.fixture
def running(store: Path) -> Iterator[RunningReceiver]:
    receiver = start_receiver(store)
    yield receiver
    receiver.close()


def metric_value(running: RunningReceiver, metric: str, **labels: str) -> float:
    """A value of the receiver's own metrics."""
    text = running.ask("/metrics").data.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"trackside_receiver_{metric}" and sample.labels == labels:
                return float(sample.value)
    raise AssertionError(f"no {metric} {labels} in\n{text}")


def test_samples_of_remote_write_are_stored(running: RunningReceiver, store: Path) -> None:
    answer = running.write(tick(0))
    assert (answer.status, answer.data) == (204, b"")
    assert metric_value(running, "samples_total") == 4
    assert metric_value(running, "unflushed_samples") == 4
    assert metric_value(running, "requests_total", protocol="remote_write", code="204") == 1
    running.close()
    assert {row[1:] for row in samples(store)} == expected(tick(0))


@pytest.mark.parametrize("packing", ["", "gzip", "zstd"])
def test_samples_of_otlp_are_stored(packing: str, running: RunningReceiver, store: Path) -> None:
    body = json.dumps(OTLP).encode()
    if packing == "gzip":
        body = gzip.compress(body)
    elif packing == "zstd":
        body = bytes(cramjam.zstd.compress(body))
    answer = running.ask("/v1/metrics", body, JSON | ({"Content-Encoding": packing} if packing else {}))
    assert (answer.status, answer.data) == (200, b"{}")
    running.close()
    assert {row[1:] for row in samples(store)} == {("0", T0_MS, 0.5)}


def test_lines_of_loki_and_otlp_are_stored(running: RunningReceiver, store: Path) -> None:
    assert running.ask("/loki/api/v1/push", json.dumps(LOKI).encode(), JSON).status == 204
    assert running.ask("/v1/logs", json.dumps(OTLP_LOGS).encode(), JSON).status == 200
    running.close()
    ((path, stored_lines),) = lines(store).items()
    assert path.startswith("job-4242/slurm-4242.")
    assert stored_lines == [
        "2026-03-02T08:00:00.000000000Z stdout F step 1 loss 2.0",
        "2026-03-02T08:00:00.000000000Z stdout F step 1",
    ]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/api/v1/write", b"no snappy", PROTOBUF, 400),
        ("/api/v1/write", packed(b"\xff\xff\xff"), PROTOBUF, 400),
        ("/api/v1/write", packed(b""), {"Content-Type": "text/plain"}, 415),
        ("/api/v1/write", packed(b""), PROTOBUF | {"Content-Encoding": "br"}, 415),
        ("/v1/metrics", b"{", JSON, 400),
        ("/v1/logs", b"\xff", {"Content-Type": "application/x-protobuf"}, 400),
        ("/loki/api/v1/push", b"[]", JSON, 400),
        ("/api/v1/write", packed(b""), {}, 415),
    ],
)
def test_invalid_bodies_are_refused_and_not_stored(
    path: str, body: bytes, headers: dict[str, str], status: int, running: RunningReceiver
) -> None:
    answer = running.ask(path, body, headers)
    assert answer.status == status
    assert len(answer.data) > 10
    assert metric_value(running, "bodies_total") == 0
    assert metric_value(running, "wal_bytes") == 0
    assert running.write(tick(0)).status == 204


def test_a_loki_push_without_content_type_is_refused_with_the_remedy(running: RunningReceiver) -> None:
    """As ``curl -d`` sends it."""
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = running.ask("/loki/api/v1/push", json.dumps(LOKI).encode(), headers)
        assert answer.status == 400
        assert b"send Content-Type: application/json" in answer.data


def test_unknown_paths_get_problem_details(running: RunningReceiver) -> None:
    for path, status in (("/api/v1/nothing", 404), ("/api/v1/write", 405)):
        answer = running.ask(path)
        assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
        assert json.loads(answer.data)["status"] == status
    assert answer.headers["allow"] == "POST"
    assert running.ask("/nothing").headers["content-type"].startswith("text/plain")


def test_refusals_are_logged_once_a_minute(running: RunningReceiver, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        running.ask("/api/v1/write", b"no snappy", PROTOBUF)
    running.ask("/api/v1/write", packed(b""), {"Content-Type": "text/plain"})
    messages = [row.getMessage() for row in caplog.records if "refused with" in row.getMessage()]
    assert [message.partition(":")[0] for message in messages] == [
        "remote_write from 127.0.0.1 refused with 400",
        "remote_write from 127.0.0.1 refused with 415",
    ]


def test_the_response_to_version_2_counts_samples_beyond_a_limit(store: Path) -> None:
    running = start_receiver(store, ReceiverLimits(series=1))
    request = SECOND["Request"](symbols=[b"", b"__name__", b"DCGM_FI_DEV_GPU_UTIL", b"gpu", b"0", b"1", b"other"])
    for refs in ([1, 2, 3, 4], [1, 2, 3, 5], [1, 6]):  # the last metric is unknown: ignored, not counted as lost
        request.timeseries.add(labels_refs=refs).samples.add(timestamp=T0_MS, value=50.0)
    second = PROTOBUF | {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
    answer = running.ask("/api/v1/write", packed(request.SerializeToString()), second)
    assert (answer.status, answer.headers["X-Prometheus-Remote-Write-Samples-Written"]) == (400, "2")
    assert b"the rest was stored: 1 samples of new series" in answer.data
    running.close()


def test_old_verdicts_are_deleted_daily(store: Path) -> None:
    database = f"sqlite:///{store.parent / 'verdicts.db'}"
    with Archive.open(database) as archive:
        original = verdict(run())
        for number, recorded in enumerate((original, replace(original, version="another"))):
            archive.record(recorded, f"document {number}".encode(), made_at=1000.0 + number)
    process, _ = served(f"store={str(store)!r}", f"metadata={database!r}", "keeping=RetentionOptions(verdict_days=30)")
    assert process.stderr is not None
    assert "1 verdicts older than 30 days deleted" in next(process.stderr)
    process.terminate()
    process.communicate()
    with Archive.open(database) as archive:
        assert [verdict.made_at for verdict in archive.verdicts("r1").verdicts] == [1001.0]


def test_wrong_methods_and_paths_are_refused(running: RunningReceiver) -> None:
    assert running.ask("/api/v1/write").status == 405
    assert running.ask("/nothing").status == 404
    assert running.ask("/-/healthy").status == 200
    assert running.ask("/-/ready").status == 200


def test_large_bodies_are_refused_before_they_are_read(store: Path) -> None:
    running = start_receiver(store, ReceiverLimits(body_bytes=10_000, decoded_bytes=100_000))
    refused = running.ask("/api/v1/write", b"x" * 10_001, PROTOBUF)
    assert refused.status == 413
    assert b"serve.limits.body_bytes" in refused.data
    chunked = running.http.request(
        "POST", f"{running.url}/api/v1/write", body=iter([b"x" * 6000] * 3), headers=PROTOBUF, chunked=True
    )
    assert chunked.status == 413
    bomb = running.ask("/api/v1/write", packed(b"\x00" * 150_000), PROTOBUF)
    assert bomb.status == 413
    assert metric_value(running, "bodies_open") == metric_value(running, "bodies_open_bytes") == 0
    running.close()


def test_an_incomplete_body_times_out(store: Path) -> None:
    running = start_receiver(store, ReceiverLimits(body_s=0.3))
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc")
        assert b" 503 " in (answer := slow.recv(1000))
        assert b"retry-after: 1\r\n" in answer.lower()
    with socket.create_connection((host, int(port))) as abandoned:
        abandoned.sendall(b"POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc")
    deadline = time.monotonic() + 5
    while metric_value(running, "bodies_open") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert metric_value(running, "bodies_open") == 0
    assert running.write(tick(0)).status == 204
    running.close()


def test_slow_bodies_do_not_block_others_and_end_soon(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE_S", 1.0)
    running = start_receiver(store)
    host, port = running.url.removeprefix("http://").split(":")
    head = b"POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10000000\r\n\r\n"
    slow = [socket.create_connection((host, int(port))) for _ in range(200)]
    for connection in slow:
        connection.sendall(head + b"x")
    assert running.write(tick(0)).status == 204
    fast = socket.create_connection((host, int(port)))
    fast.sendall(head)
    for _ in range(8):  # above the minimum rate, which gives it more time than the others have
        fast.sendall(bytes(4096))
        time.sleep(0.2)
    for connection in slow:
        assert b" 503 " in connection.recv(1000)
        connection.close()
    assert metric_value(running, "bodies_open") == 1
    fast.close()
    running.close()


def test_a_full_queue_is_429_with_retry_after(store: Path) -> None:
    running = start_receiver(store, ReceiverLimits(pending_samples=4))
    assert running.write(tick(0)).status == 204
    busy = running.write(tick(1))
    assert busy.status == 429
    assert int(busy.headers["Retry-After"]) >= 1
    assert running.ask("/-/ready").status == 503
    running.intake.flush().result(10)
    assert running.ask("/-/ready").status == 200
    assert running.write(tick(1)).status == 204
    running.close()
    assert len(samples(store)) == 8


def test_beyond_a_limit_the_rest_is_stored_and_the_sender_must_not_retry(store: Path) -> None:
    running = start_receiver(store, ReceiverLimits(series=1))
    answer = running.write(tick(0))
    assert answer.status == 400
    assert answer.data == b"the rest was stored: 3 samples of new series: serve.limits.series allows no more\n"
    other_node = json.loads(json.dumps(OTLP).replace("gpu017", "gpu018"))
    response = running.ask("/v1/metrics", json.dumps(other_node).encode(), JSON)
    assert response.status == 200
    assert json.loads(response.data)["partialSuccess"]["rejectedDataPoints"] == "1"
    running.close()
    assert len(samples(store)) == 1


def test_unknown_metric_names_are_counted(running: RunningReceiver) -> None:
    assert running.write([(key('site"made\\up'), [(T0_MS, 1.0)]), *tick(0)]).status == 204
    assert metric_value(running, "unknown_samples_total", name='site"made\\up') == 1


def test_a_full_disk_is_503_and_stores_nothing(
    running: RunningReceiver, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    assert running.write(tick(0)).status == 204
    monkeypatch.setattr(os, "fdatasync", full)
    answer = running.write(tick(1))
    assert answer.status == 503
    assert b"No space left on device" in answer.data
    assert int(answer.headers["Retry-After"]) >= 1
    monkeypatch.undo()
    assert running.write(tick(2)).status == 204
    running.close()
    assert {row[1:] for row in samples(store)} == expected([*tick(0), *tick(2)])


def test_writing_and_reading_require_their_tokens(store: Path, tmp_path: Path) -> None:
    (tmp_path / "write").write_text(TOKEN)
    (tmp_path / "read").write_text(OTHER)
    running = start_receiver(
        store, write_token_files=(str(tmp_path / "write"),), read_token_files=(str(tmp_path / "read"),)
    )
    write, read = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {OTHER}"}
    body = packed(write_request(tick(0)))
    assert running.ask("/api/v1/write", body, PROTOBUF).status == 401
    assert running.ask("/api/v1/write", body, PROTOBUF | read).headers["WWW-Authenticate"] == "Bearer"
    assert running.ask("/api/v1/write", body, PROTOBUF | write).status == 204
    assert running.ask("/metrics").status == 401
    assert running.ask("/metrics", headers=write).status == 401
    assert running.ask("/metrics", headers=read).status == 200
    assert running.ask("/-/healthy").status == running.ask("/-/ready").status == 200
    answer = running.ask("/v1/logs", b"{}", JSON)
    assert json.loads(answer.data)["code"] == 16
    running.close()


def test_requests_are_answered_while_a_body_is_decoded(running: RunningReceiver) -> None:
    """Decoding a large body does not block the event loop."""
    large = packed(
        write_request([(gpu(number=number), [(T0_MS + n, 1.0) for n in range(60)]) for number in range(5000)])
    )
    pushing = threading.Thread(target=lambda: [running.ask("/api/v1/write", large, PROTOBUF) for _ in range(4)])
    pushing.start()
    slowest = 0.0
    while pushing.is_alive():
        start_s = time.perf_counter()
        assert running.ask("/-/healthy").status == 200
        slowest = max(slowest, time.perf_counter() - start_s)
    assert slowest < 1.0


# -- processes


def stop(process: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(how)
    _, errors = process.communicate(timeout=40)
    return process.returncode, errors


def test_a_stopped_receiver_stores_everything_and_exits_with_0(store: Path) -> None:
    process, url = served(f"store={str(store)!r}")
    answer = urllib3.request("POST", f"{url}/api/v1/write", body=packed(write_request(tick(0))), headers=PROTOBUF)
    assert answer.status == 204
    assert urllib3.request("GET", f"{url}/api/v1/runs").status == 200
    code, errors = stop(process)
    assert code == 0, errors
    assert "Traceback" not in errors
    assert {row[1:] for row in samples(store)} == expected(tick(0))


def test_the_api_requires_a_read_token(store: Path, tmp_path: Path) -> None:
    (tmp_path / "read").write_text(OTHER)
    process, url = served(f"store={str(store)!r}", f"read_token_files=({str(tmp_path / 'read')!r},)")
    assert urllib3.request("GET", f"{url}/api/v1/runs").status == 401
    read = {"Authorization": f"Bearer {OTHER}"}
    assert urllib3.request("GET", f"{url}/api/v1/runs", headers=read).status == 200
    assert stop(process)[0] == 0


def test_serving_over_tls(store: Path, tmp_path: Path) -> None:
    openssl = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        capture_output=True, check=False,
    )  # fmt: skip
    assert openssl.returncode == 0, openssl.stderr
    files = f"certificate={str(tmp_path / 'cert.pem')!r}", f"key={str(tmp_path / 'key.pem')!r}"
    process, url = served(f"store={str(store)!r}", *files)
    assert url.startswith("https://")
    with urllib3.PoolManager(ca_certs=str(tmp_path / "cert.pem")) as http:
        body = packed(write_request(tick(0)))
        assert http.request("POST", f"{url}/api/v1/write", body=body, headers=PROTOBUF).status == 204
    assert stop(process)[0] == 0
    assert len(samples(store)) == 4


def test_lines_received_just_now_are_part_of_the_verdict(store: Path) -> None:
    process, url = served(f"store={str(store)!r}", "keeping=RetentionOptions(flush_s=3600.0)")
    text = "step 1 loss 2.0\nTraceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nModuleNotFoundError: No module named 'flash_attn'"
    values = [[str(T0_MS * 10**6 + index), line] for index, line in enumerate(text.splitlines())]
    push = json.dumps({"streams": [{"stream": {"job_id": "4242", "host": "n1"}, "values": values}]}).encode()
    assert urllib3.request("POST", f"{url}/loki/api/v1/push", body=push, headers=JSON).status == 204
    answer = urllib3.request("POST", f"{url}/api/v1/runs/4242/diagnose", timeout=60.0)
    assert answer.status == 200, answer.data
    assert b"flash_attn" in answer.data
    assert stop(process)[0] == 0


def test_an_address_in_use_is_reported(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"cannot listen on {listen}: Address already in use"):
            serve(ServeOptions(store=str(store), listen=listen))


class PushingSender(threading.Thread):
    """A sender at full rate: ``accepted`` are the acknowledged bodies; others are sent again, as real senders do."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self.number, self.url, self.stop = number, "", False
        self.accepted: set[int] = set()
        self._http = urllib3.PoolManager(retries=False, timeout=10.0)

    def body(self, index: int) -> bytes:
        node = f"gpu{self.number:03}"
        return packed(
            write_request([(gpu(number=number, node=node), [(T0_MS + index * 1000, 50.0)]) for number in range(50)])
        )

    def run(self) -> None:
        index = 0
        while not self.stop:
            try:
                answer = self._http.request("POST", f"{self.url}/api/v1/write", body=self.body(index), headers=PROTOBUF)
            except urllib3.exceptions.HTTPError:
                time.sleep(0.01)
                continue
            if answer.status == 204:
                self.accepted.add(index)
                index += 1
            else:
                assert answer.status in (429, 503), answer.data
                time.sleep(0.01)


def test_kills_at_full_rate_lose_and_duplicate_nothing(store: Path) -> None:
    """Four senders of samples and one of lines; ten kills at any moment, also while flushing (every 0.2 s)."""
    arguments = (f"store={str(store)!r}", "keeping=RetentionOptions(flush_s=0.2)")
    senders = [PushingSender(number) for number in range(4)]
    pushed_lines: list[int] = []
    process = None
    for round_ in range(10):
        process, url = served(*arguments)
        for sender in senders:
            sender.url = url
            if not sender.is_alive():
                sender.start()
        deadline = time.monotonic() + 0.4 + 0.13 * (round_ % 4)
        index = len(pushed_lines)
        while time.monotonic() < deadline:
            push = {
                "streams": [{"stream": {"job_id": "4242"}, "values": [[str(T0_MS * 10**6 + index), f"line {index}"]]}]
            }
            answer = urllib3.request("POST", f"{url}/loki/api/v1/push", body=json.dumps(push).encode(), headers=JSON)
            assert answer.status == 204
            pushed_lines.append(index)
            index += 1
        process.kill()
        process.communicate()
    for sender in senders:
        sender.stop = True
    for sender in senders:
        sender.join(20)
    process, _ = served(*arguments)
    code, errors = stop(process)
    assert code == 0, errors
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(
            f"SELECT s.node, time_ms, count(*), count(DISTINCT series) FROM {snapshot.table('samples')}"
            f" JOIN {snapshot.table('series')} s USING (series) GROUP BY s.node, time_ms"
        )
    assert {(count, series) for _, _, count, series in rows} == {(50, 50)}, "each body is stored once, and completely"
    stored = {(node, time_ms) for node, time_ms, *_ in rows}
    assert sum(len(sender.accepted) for sender in senders) > 100
    for sender in senders:
        assert {(f"gpu{sender.number:03}", T0_MS + index * 1000) for index in sender.accepted} <= stored
    ((_, stored_lines),) = lines(store).items()
    texts = [line.partition(" F ")[2] for line in stored_lines]
    assert len(texts) == len(set(texts))
    assert {f"line {index}" for index in pushed_lines} <= set(texts)


def test_long_headers_are_refused(running: RunningReceiver) -> None:
    for name in ("Content-Type", "Content-Encoding"):
        long = PROTOBUF[name] + ";" + "x" * 40_000
        answer = running.ask("/api/v1/write", packed(write_request(tick(0))), {**PROTOBUF, name: long})
        assert (answer.status, b"characters" in answer.data) == (400, True)
    assert running.write(tick(0)).status == 204


def test_a_body_larger_than_the_queue_is_refused(store: Path) -> None:
    running = start_receiver(store, ReceiverLimits(pending_samples=100, pending_line_bytes=100_000))
    answer = running.write(tick(0, gpus=101))
    assert (answer.status, b"at most 100 fit into the queue" in answer.data) == (413, True)
    assert running.write(tick(0, gpus=99)).status == 204
    bomb = {"streams": [{"stream": {"job_id": "4242"}, "values": [[str(T0_MS * 1_000_000), "\n" * 5_000]]}]}
    assert running.ask("/loki/api/v1/push", json.dumps(bomb).encode(), JSON).status == 413
    running.close()


def test_an_ended_thread_makes_the_receiver_not_ready(
    running: RunningReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(Intake, "_append", broken)
    assert running.write(tick(0)).status in (503, 429)
    wait_until(lambda: running.ask("/-/ready").status == 503, "the end of the thread to be seen")
    assert b"trackside-log ended" in running.ask("/-/ready").data
    assert running.write(tick(0)).status == 503
    assert metric_value(running, "writable") == 0


def exchange(running: RunningReceiver, *pieces: bytes, within_s: float = 10.0) -> bytes:
    """The bytes received until the connection ends; b"" if it is only closed. Raises TimeoutError."""
    host, port = running.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=within_s) as link:
        try:
            for piece in pieces:
                link.sendall(piece)
            while chunk := link.recv(65536):
                received += chunk
        except ConnectionError:
            pass
    return received


ENDLESS = {
    "header": (b"POST /api/v1/write HTTP/1.1\r\nX: ", b"a" * 65536),
    "headers": (b"POST /api/v1/write HTTP/1.1\r\n", b"X: a\r\n" * 10_000),
    "path": (b"GET /", b"a" * 65536),
    "trailers": (b"POST /v1/logs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n" * 10_000),
}


@pytest.mark.parametrize("where", ENDLESS)
def test_the_size_of_headers_and_trailers_is_limited(where: str, running: RunningReceiver) -> None:
    head, more = ENDLESS[where]
    answer = exchange(running, head, *[more] * 20)
    assert answer == b"" or b" 431 " in answer.partition(b"\r\n")[0]
    assert running.write(tick(0)).status == 204


def test_small_chunks_do_not_count_as_headers(running: RunningReceiver) -> None:
    body = packed(write_request(tick(0, gpus=4_000)))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    head = b"POST /api/v1/write HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nConnection: close\r\n"
    assert len(chunks) > 2 * MAX_HEAD_BYTES
    answer = exchange(running, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ")


def test_idle_connections_are_closed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(connections, "LINGER_S", 0.3)
    running = start_receiver(store)
    assert exchange(running) == exchange(running, b"GET /-/he") == exchange(running, b"\r\n") == b""
    head = b"POST /nothing HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"
    assert exchange(running, head, b"x").startswith(b"HTTP/1.1 404 ")
    running.close()


def test_the_number_of_connections_is_limited(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "max_connections", lambda: 6)
    running = start_receiver(store)
    host, port = running.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(3)]
    time.sleep(0.2)
    refused = running.ask("/-/healthy")
    assert (refused.status, refused.data) == (503, b"too many connections from this address; try again later\n")
    idle += [socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0)) for _ in range(3)]
    time.sleep(0.2)
    assert running.ask("/-/healthy").data == b"too many connections; try again later\n"
    for connection in (idle.pop(), idle.pop(0)):
        connection.close()
    time.sleep(0.2)
    assert running.ask("/-/healthy").status == 200
    for connection in idle:
        connection.close()
    running.close()


def test_a_lowered_limit_does_not_lose_logged_bodies(store: Path) -> None:
    process, url = served(f"store={str(store)!r}", "keeping=RetentionOptions(flush_s=3600.0)")
    body = packed(write_request(tick(0, gpus=40, value=0.0)))
    assert urllib3.request("POST", f"{url}/api/v1/write", body=body, headers=PROTOBUF).status == 204
    process.kill()
    process.communicate()
    process, _ = served(f"store={str(store)!r}", "limits=ReceiverLimits(decoded_bytes=1000)")
    process.terminate()
    process.communicate()
    assert len(samples(store)) == 40


def test_a_stopped_receiver_drops_queued_queries(store: Path) -> None:
    program = (
        "import time, trackside.serve.app as app, trackside.serve.diagnoser as d\n"
        "from trackside.stores.receiver.options import ServeOptions\n"
        "app.STOP_S = 1\n"
        "d.Diagnoser.session = lambda *_: time.sleep(3)\n"
        f"app.serve(ServeOptions(listen='127.0.0.1:0', store={str(store)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    STARTED.append(process)
    assert process.stderr is not None
    url = next(filter(None, (re.search(r"listening on (\S+),", line) for line in process.stderr)))[1]
    with ThreadPoolExecutor(12) as pool:
        for number in range(12):
            query_url = f"{url}/api/v1/runs/{number}/evidence?query=events(exception)"
            pool.submit(urllib3.request, "GET", query_url, retries=False, timeout=60)
        time.sleep(1.5)
        start_s = time.monotonic()
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert time.monotonic() - start_s < 10  # all of them would take 18 s
