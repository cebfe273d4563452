"""Processes killed at any moment: the receiver under full load, readers of its store, and a server during a query."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from tests import services
from tests.contract.stores import StoreContents
from tests.faults.proxy import proxied
from tests.faults.runs import SLOW, ServedRun, assert_careful, assert_same, diagnose, metrics_at, site
from tests.serve.receiving import JSON, PROTOBUF, T0_MS, gpu, lines, packed, write_request
from trackside.stores.embedded.snapshot import Snapshot

pytestmark = pytest.mark.slow

COUNTER = "trackside_cuda_kernel_launches_total"
SERIES = 50
LINES = 20
KILLS = 5
JOB = "4242"


class Sender(threading.Thread):
    """Pushes numbered bodies as fast as they are accepted; repeats those without a 2xx. ``accepted``: their number."""

    path: str
    headers: Mapping[str, str]

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.url, self.number, self.accepted, self.retries = url, number, 0, 0
        self.stop = threading.Event()
        self.error = ""
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=1, read=10))

    def body(self, index: int) -> bytes:
        """The body with this number."""
        raise NotImplementedError

    def run(self) -> None:
        while not self.stop.is_set() and not self.error:
            body = self.body(self.accepted)
            while not self._send(body) and not self.error:  # a sender never gives up
                self.retries += 1
                time.sleep(0.01)
            self.accepted += 1

    def _send(self, body: bytes) -> bool:
        try:
            status = self._http.request("POST", self.url + self.path, body=body, headers=self.headers).status
        except urllib3.exceptions.HTTPError:
            return False
        if status >= 300 and status not in (429, 503):
            self.error = f"{status}"
        return status < 300


class Samples(Sender):
    """Remote write: one sample of each series, whose value is the number of the body."""

    path, headers = "/api/v1/write", PROTOBUF

    def body(self, index: int) -> bytes:
        """One sample of each series."""
        samples = [(T0_MS + index * 1000, float(index))]
        node = f"gpu{self.number:03}"
        return packed(write_request([(gpu(COUNTER, number, node, job=JOB), samples) for number in range(SERIES)]))


class Lines(Sender):
    """Loki push: numbered lines."""

    path, headers = "/loki/api/v1/push", JSON

    def body(self, index: int) -> bytes:
        """Some lines of one stream."""
        numbers = range(index * LINES, (index + 1) * LINES)
        values = [[str(T0_MS * 10**6 + number), f"line {number}"] for number in numbers]
        return json.dumps({"streams": [{"stream": {"job_id": JOB}, "values": values}]}).encode()


@contextmanager
def receiver(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """``trackside serve`` while the block runs, then killed; RuntimeError if it does not start."""
    config = folder / "receiver.toml"
    config.write_text(f'[store]\npath = "{folder / "store"}"\n[serve]\nlisten = "127.0.0.1:{port}"\n'
                      "[serve.keeping]\nflush_s = 0.3\n")  # fmt: skip
    with (folder / "receiver.log").open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "trackside", "serve", "--config", str(config)], stderr=out)
    try:
        services.wait_until(lambda: process.poll() is not None or _healthy(port), "the receiver")
        assert process.poll() is None, (folder / "receiver.log").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def _healthy(port: int) -> bool:
    try:
        return urllib3.request("GET", f"http://127.0.0.1:{port}/-/healthy", retries=False, timeout=1).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def kill_reader(store: Path, after_s: float) -> None:
    """Start a reader of the store and kill it after this time."""
    command = [sys.executable, "-m", "trackside", "diagnose", "--store", str(store), "--job", JOB]
    reader = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after_s)
    reader.kill()
    reader.wait()


def test_accepted_data_is_stored_exactly_once(tmp_path: Path) -> None:
    """The receiver is killed at random moments under senders and readers, and restarted on the same folder."""
    rng, port, store = random.Random(5), services.free_port(), tmp_path / "store"
    senders = [Samples(f"http://127.0.0.1:{port}", 1), Samples(f"http://127.0.0.1:{port}", 2),
               Lines(f"http://127.0.0.1:{port}", 3)]  # fmt: skip
    for attempt in range(KILLS):
        with receiver(tmp_path, port):
            for sender in senders if not attempt else ():
                sender.start()
            time.sleep(rng.uniform(0.2, 1.2))
            if attempt % 2:
                kill_reader(store, rng.uniform(0.2, 0.8))
    with receiver(tmp_path, port) as process:
        for sender in senders:
            sender.stop.set()
        for sender in senders:
            sender.join(20)
            assert not sender.is_alive()
            assert not sender.error
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "receiver.log").read_text()
    assert "Traceback" not in (tmp_path / "receiver.log").read_text()
    assert sum(sender.retries for sender in senders) >= KILLS
    assert all(sender.accepted > 20 for sender in senders)
    expected = Counter(
        {(f"gpu{sender.number:03}", T0_MS + index * 1000, float(index)): SERIES
         for sender in senders[:2] for index in range(sender.accepted)}
    )  # fmt: skip
    assert stored_samples(store) == expected
    ((_, stored_lines),) = lines(store).items()
    assert Counter(line.partition(" F ")[2] for line in stored_lines) == Counter(
        f"line {number}" for number in range(senders[2].accepted * LINES)
    )
    assert_diagnosable(store)


def stored_samples(store: Path) -> Counter[tuple[str, int, float]]:
    """(node, time, value) -> number of samples."""
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(
            f"SELECT s.node, time_ms, value, count(*) FROM {snapshot.table('samples')}"
            f" JOIN {snapshot.table('series')} s USING (series) GROUP BY ALL"
        )
    return Counter({(node, time_ms, value): count for node, time_ms, value, count in rows})


def assert_diagnosable(store: Path) -> None:
    """Check that ``diagnose`` works on the store."""
    command = [sys.executable, "-m", "trackside", "diagnose", "--store", str(store), "--job", JOB, "--json"]
    process = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr.decode()
    assert json.loads(process.stdout)["run"]["nodes"] == ["gpu001", "gpu002"]


@pytest.mark.service
def test_a_metrics_server_killed_during_a_query(slow: ServedRun, tmp_path: Path) -> None:
    """The verdict is careful; after a restart of the server on its folder it is the same as before."""
    contents = StoreContents(slow.metrics)
    with services.victoria_metrics(tmp_path / "store") as server:
        server.load(contents.text)  # on disk after a regular end: a kill may lose what came in the last seconds
    with (
        services.victoria_metrics(tmp_path / "store") as server,
        proxied(server.port) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        pending = pool.submit(diagnose, site(tmp_path, metrics_at(proxy.url)), [slow.rest])
        services.wait_until(lambda: proxy.sent > 200_000 or pending.done(), "answers")
        server.process.kill()
        result = pending.result(60)
    assert_careful(result, slow)
    assert proxy.url in result.preflight
    assert slow.full.ruled_out_families - result.ruled_out_families
    assert all(
        "unable to check: " in result.unknown_families[family]
        for family in slow.full.ruled_out_families - result.ruled_out_families
    )
    with services.victoria_metrics(tmp_path / "store") as server:
        after_restart = diagnose(site(tmp_path, metrics_at(server.url, "timeout_s = 20\n")), [slow.rest])
    assert slow.name == SLOW
    assert_same(after_restart, slow.full)
