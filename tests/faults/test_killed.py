"""Killed at any moment: the receiver under senders at full rate, those that read its store, and a server that is asked."""

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
from tests.faults.runs import SLOW, Held, ask, assert_careful, assert_same, metrics_at, site
from tests.serve.receiving import JSON, PROTOBUF, T0_MS, gpu, lines, packed, write_request
from trackside.stores.embedded.snapshot import Snapshot

pytestmark = pytest.mark.slow

COUNTED = "trackside_cuda_kernel_launches_total"
SERIES = 50
LINES = 20
KILLS = 5
JOB = "4242"


class Sender(threading.Thread):
    """Pushes numbered bodies as fast as they are taken; what got no 2xx is sent again. ``told``: how many were."""

    path: str
    headers: Mapping[str, str]

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.url, self.number, self.told, self.again = url, number, 0, 0
        self.over = threading.Event()
        self.wrong = ""
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=1, read=10))

    def body(self, place: int) -> bytes:
        """The body of this number."""
        raise NotImplementedError

    def run(self) -> None:
        while not self.over.is_set() and not self.wrong:
            body = self.body(self.told)
            while not self._taken(body) and not self.wrong:  # a sender gives nothing up
                self.again += 1
                time.sleep(0.01)
            self.told += 1

    def _taken(self, body: bytes) -> bool:
        try:
            status = self._http.request("POST", self.url + self.path, body=body, headers=self.headers).status
        except urllib3.exceptions.HTTPError:
            return False
        if status >= 300 and status not in (429, 503):
            self.wrong = f"{status}"
        return status < 300


class Samples(Sender):
    """Remote write: of each series one sample, whose value is its number."""

    path, headers = "/api/v1/write", PROTOBUF

    def body(self, place: int) -> bytes:
        """A second of all series."""
        told = [(T0_MS + place * 1000, float(place))]
        node = f"gpu{self.number:03}"
        return packed(write_request([(gpu(COUNTED, each, node, job=JOB), told) for each in range(SERIES)]))


class Lines(Sender):
    """Loki push: numbered lines."""

    path, headers = "/loki/api/v1/push", JSON

    def body(self, place: int) -> bytes:
        """Some lines of one stream."""
        numbers = range(place * LINES, (place + 1) * LINES)
        values = [[str(T0_MS * 10**6 + number), f"line {number}"] for number in numbers]
        return json.dumps({"streams": [{"stream": {"job_id": JOB}, "values": values}]}).encode()


@contextmanager
def receiving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """``trackside serve`` until the block ends, then killed; RuntimeError where it doesn't start."""
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


def read_and_killed(store: Path, after_s: float) -> None:
    """A reader of the store that is killed on the way."""
    command = [sys.executable, "-m", "trackside", "diagnose", "--store", str(store), "--job", JOB]
    reader = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after_s)
    reader.kill()
    reader.wait()


def test_what_was_accepted_is_there_once(tmp_path: Path) -> None:
    """Killed at random moments while two senders push and readers read, and started again on the same folder."""
    chance, port, store = random.Random(5), services.free_port(), tmp_path / "store"
    senders = [Samples(f"http://127.0.0.1:{port}", 1), Samples(f"http://127.0.0.1:{port}", 2),
               Lines(f"http://127.0.0.1:{port}", 3)]  # fmt: skip
    for round_ in range(KILLS):
        with receiving(tmp_path, port):
            for sender in senders if not round_ else ():
                sender.start()
            time.sleep(chance.uniform(0.2, 1.2))
            if round_ % 2:
                read_and_killed(store, chance.uniform(0.2, 0.8))
    with receiving(tmp_path, port) as process:
        for sender in senders:
            sender.over.set()
        for sender in senders:
            sender.join(20)
            assert not sender.is_alive()
            assert not sender.wrong
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "receiver.log").read_text()
    assert "Traceback" not in (tmp_path / "receiver.log").read_text()
    assert sum(sender.again for sender in senders) >= KILLS
    assert all(sender.told > 20 for sender in senders)
    wanted = Counter(
        {(f"gpu{sender.number:03}", T0_MS + place * 1000, float(place)): SERIES
         for sender in senders[:2] for place in range(sender.told)}
    )  # fmt: skip
    assert numbered(store) == wanted
    ((_, told),) = lines(store).items()
    assert Counter(line.partition(" F ")[2] for line in told) == Counter(
        f"line {number}" for number in range(senders[2].told * LINES)
    )
    judged(store)


def numbered(store: Path) -> Counter[tuple[str, int, float]]:
    """(node, time, value), and of how many samples."""
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(
            f"SELECT s.node, time_ms, value, count(*) FROM {snapshot.table('samples')}"
            f" JOIN {snapshot.table('series')} s USING (series) GROUP BY ALL"
        )
    return Counter({(node, time_ms, value): count for node, time_ms, value, count in rows})


def judged(store: Path) -> None:
    """That a verdict can be made of what the store holds."""
    command = [sys.executable, "-m", "trackside", "diagnose", "--store", str(store), "--job", JOB, "--json"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["run"]["nodes"] == ["gpu001", "gpu002"]


@pytest.mark.service
def test_a_server_that_is_killed_while_it_is_asked(slow: Held, tmp_path: Path) -> None:
    """The verdict is a careful one; the server started again on its folder, it is the same as before."""
    given = StoreContents(slow.metrics)
    with services.victoria_metrics(tmp_path / "store") as server:
        server.load(given.text)  # on disk once it has ended: what it got in its last seconds a kill may take
    with (
        services.victoria_metrics(tmp_path / "store") as server,
        proxied(server.port) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        coming = pool.submit(ask, site(tmp_path, metrics_at(proxy.url)), [slow.rest])
        services.wait_until(lambda: proxy.sent > 200_000 or coming.done(), "answers")
        server.process.kill()
        told = coming.result(60)
    assert_careful(told, slow)
    assert proxy.url in told.preflight
    assert slow.full.absent - told.absent
    assert all("unable to check: " in told.unknown[family] for family in slow.full.absent - told.absent)
    with services.victoria_metrics(tmp_path / "store") as server:
        again = ask(site(tmp_path, metrics_at(server.url, "timeout_s = 20\n")), [slow.rest])
    assert slow.name == SLOW
    assert_same(again, slow.full)
