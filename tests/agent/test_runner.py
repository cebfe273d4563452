"""Sources that hang, fail, go away and come back: each costs itself alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.agent.receivers import scripted
from tests.agent.test_exposition import ask, parsed
from tests.services import free_port
from trackside.agent import runner
from trackside.agent.config import Collection
from trackside.agent.daemon import add_own
from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.agent.runner import Running, Ticks
from trackside.agent.source import Collector, Context, Reading, Sample, Source, Unavailable

pytestmark = pytest.mark.slow  # real processes, and seconds of waiting for them

NODE = LocalNode("n1")


@dataclass
class Taken:
    """What came out, in order: (source, reading), or (source, None) where it was forgotten."""

    on_disk: bool = True
    events: list[tuple[str, Reading | None]] = field(default_factory=list)

    def take(self, source: str, reading: Reading) -> bool:
        self.events.append((source, reading))
        return self.on_disk

    def forget(self, source: str) -> None:
        self.events.append((source, None))

    def newest(self) -> dict[str, list[Sample]]:
        return {source: reading.samples for source, reading in self.events if reading is not None}

    def readings(self, source: str) -> list[Reading]:
        return [reading for id_, reading in self.events if id_ == source and reading is not None]


class Played(Collector):
    """A source whose every reading does what a test wants."""

    def __init__(self, collect: Callable[[Reading], object], accepted: Callable[[], object] | None = None) -> None:
        self.collect, self.closed, self.opened = collect, 0, 0
        if accepted is not None:
            self.accepted = accepted

    def open(self, context: Context) -> Played:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1


def collection(
    id_: str, open_: Callable[[Context], Any], interval_s: float = 0.02, timeout_s: float = 5.0
) -> Collection:
    return Collection(Source(id_, id_, open_), True, interval_s, timeout_s, None, "default")


@contextmanager
def runs(
    *collections: Collection, outlet: Taken | None = None, said: list[str] | None = None
) -> Iterator[tuple[Taken, list[Running]]]:
    taken = outlet or Taken()
    say: Callable[[str], object] = (lambda text: None) if said is None else said.append
    running = [Running(collection, NODE, Owners(), taken, say) for collection in collections]
    for each in running:
        each.start()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            for each in running:
                each.watch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield taken, running
    finally:
        over.set()
        watcher.join()
        for each in running:
            each.stop()
        for each in running:
            each.join(2.0)


def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def load(reading: Reading) -> None:
    reading.sample("host_load1", 1.0)


def test_a_source_that_hangs_costs_itself_alone() -> None:
    let_go = threading.Event()

    def hang(reading: Reading) -> None:
        load(reading)
        reading.line("of before")
        let_go.wait(10)

    hung, well = Played(hang), Played(load)
    said: list[str] = []
    with runs(collection("hung", hung.open, timeout_s=0.1), collection("well", well.open), said=said) as (
        taken,
        (first, _),
    ):
        until(lambda: first.health.state == "hangs")
        before = len(taken.readings("well"))
        until(lambda: len(taken.readings("well")) > before + 5)
        assert ("hung", None) in taken.events  # what it gave before is shown no more
        assert first.health.failures == 1
        assert hung.opened == 1  # no second thread
        threads = [each.name for each in threading.enumerate() if each.name == "collect-hung"]
        assert len(threads) == 1
        assert said == ["hung: hangs: no return from the source for 0.1 s"]
        let_go.set()
        until(lambda: first.health.state == "works")
        late = taken.readings("hung")[0]
        assert late.samples == []  # of a time long gone
        assert [line.text for line in late.lines] == ["of before"]
        assert said[1] == "hung: works again"


def test_a_source_that_fails_is_read_again_and_takes_nobody_with_it() -> None:
    count = [0]

    def fail(reading: Reading) -> None:
        count[0] += 1
        load(reading)
        if 2 <= count[0] <= 4:
            raise ZeroDivisionError("of\nsome kind")

    said: list[str] = []
    with runs(collection("bad", Played(fail).open), collection("well", Played(load).open), said=said) as (
        taken,
        (bad, _),
    ):
        until(lambda: count[0] >= 6)
        assert said == ["bad: fails: ZeroDivisionError: of some kind", "bad: works again"]
        assert bad.health.failures == 0
        assert len(taken.readings("bad")) >= 2
        assert len(taken.readings("well")) >= 4
    bad_events = [reading for id_, reading in taken.events if id_ == "bad"]
    assert bad_events[1:4] == [None, None, None]


def test_a_source_that_goes_away_is_opened_again_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MIN_RETRY_S", 0.02)
    monkeypatch.setattr(runner, "MAX_RETRY_S", 0.08)
    times: list[float] = []

    def open_(context: Context) -> Played:
        times.append(time.monotonic())
        if len(times) < 6:
            raise Unavailable("no driver", "install it")
        return Played(load)

    said: list[str] = []
    with runs(collection("gpu", open_), said=said) as (taken, (gpu,)):
        until(lambda: len(taken.readings("gpu")) > 2)
        assert gpu.health.state == "works"
    waits = [after - before for before, after in pairwise(times)]
    assert all(wait >= least for wait, least in zip(waits, [0.02, 0.04, 0.08, 0.08, 0.08], strict=True))
    assert said == ["gpu: unavailable: no driver (install it)", "gpu: works again"]


def test_one_that_goes_away_while_it_is_read_is_closed_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MIN_RETRY_S", 0.02)
    count = [0]

    def lose(reading: Reading) -> None:
        count[0] += 1
        if count[0] == 2:
            raise Unavailable("GPU is lost")

    played = Played(lose)
    with runs(collection("gpu", played.open)):
        until(lambda: count[0] >= 4)
        assert (played.opened, played.closed) == (2, 1)
    assert played.closed == 2


@pytest.mark.parametrize("broken", [KeyError("x"), SystemError(), RecursionError("deep")])
def test_one_that_can_t_even_be_opened_or_closed(broken: Exception) -> None:
    def open_(context: Context) -> Played:
        raise broken

    class Unclosed(Played):
        def close(self) -> None:
            raise broken

    said: list[str] = []
    with runs(collection("a", open_), collection("b", Unclosed(load).open), said=said) as (taken, (first, _)):
        until(lambda: first.health.state == "fails" and len(taken.readings("b")) > 1)
    assert len(said) == 2
    assert said[0].startswith("a: fails: it cannot be opened:")
    assert said[1].startswith("b: closing failed:")


def test_what_was_read_is_accepted_only_once_it_is_on_disk() -> None:
    order: list[str] = []
    outlet = Taken(on_disk=False)
    played = Played(lambda reading: order.append("read"), lambda: order.append("accepted"))
    with runs(collection("files", played.open), outlet=outlet):
        until(lambda: len(order) > 3)
        assert set(order) == {"read"}
        outlet.on_disk = True
        until(lambda: "accepted" in order)
        at = order.index("accepted")
        assert order[at - 1] == "read"


def test_an_outlet_that_fails_ends_no_source() -> None:
    class Broken(Taken):
        def take(self, source: str, reading: Reading) -> bool:
            super().take(source, reading)
            if len(self.events) == 1:
                raise MemoryError
            return True

    said: list[str] = []
    with runs(collection("cpu", Played(load).open), outlet=Broken(), said=said) as (taken, (cpu,)):
        until(lambda: len(taken.readings("cpu")) > 2)
        assert cpu.is_alive
    assert said == ["cpu: fails: its reading cannot be stored: MemoryError", "cpu: works again"]


def test_it_is_switched_off_and_on_again_while_it_runs() -> None:
    played = Played(load)
    first = collection("cpu", played.open)
    with runs(first) as (taken, (cpu,)):
        until(lambda: len(taken.readings("cpu")) > 2)
        cpu.apply(replace(first, on=False, origin="agent.toml line 3"))
        until(lambda: cpu.health.state == "off")
        assert cpu.health.reason == "switched off (agent.toml line 3)"
        assert taken.events[-1] == ("cpu", None)
        assert played.closed == 1
        cpu.apply(replace(first, interval_s=0.01))
        until(lambda: cpu.health.state == "works")
        assert played.opened == 2


def test_a_warning_that_stays_the_same_is_said_once() -> None:
    said: list[str] = []
    with runs(collection("a", Played(lambda reading: reading.warnings.append("no /sys/x")).open), said=said) as (
        taken,
        _,
    ):
        until(lambda: len(taken.readings("a")) > 5)
    assert said == ["a: no /sys/x"]


def test_times_are_an_interval_apart_and_others_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for node in ("n1", "n2", "n3"):
        ticks = Ticks(15.0, f"{node}/cpu")
        now[0] += ticks.until_next()
        phase = now[0] % 15
        for late_s in (0.1, 3.0, 14.0, 40.0):
            now[0] += late_s
            now[0] += ticks.until_next()
            assert now[0] % 15 == pytest.approx(phase)
    phases = {round((1000.0 + Ticks(15.0, f"n{number}/cpu").until_next()) % 15, 3) for number in range(1)}
    assert len(phases) == 1
    now[0] = 1000.0
    spread = [Ticks(15.0, f"n{number}/cpu").until_next() for number in range(200)]
    assert max(spread) - min(spread) > 10  # of a whole cluster that starts at once
    assert min(spread) > 15 / 4


def test_it_tells_how_its_sources_do() -> None:
    def fail(reading: Reading) -> None:
        reading.lost["lines"] = 3
        if len(failing) < 3:
            failing.append(1)
            raise OSError("no")

    failing: list[int] = []

    def absent(context: Context) -> Played:
        raise Unavailable("no InfiniBand here")

    with runs(collection("a", Played(fail).open), collection("b", Played(load).open), collection("ib", absent)) as (
        _,
        running,
    ):
        until(
            lambda: (
                running[0].health.state == "works"
                and running[1].health.state == "works"
                and running[2].health.state == "unavailable"
            )
        )
        reading = Reading()
        add_own(reading, running, [])
    told = {(sample.metric, sample.labels): sample.value for sample in reading.samples}
    assert told["trackside_collector_success", (("collector", "a"),)] == 1
    assert told["trackside_collector_lost_total", (("collector", "a"), ("kind", "lines"))] >= 3
    assert told["trackside_collector_last_success_time", (("collector", "b"),)] == pytest.approx(time.time(), abs=10)
    assert told["trackside_collector_seconds", (("collector", "b"),)] < 1
    assert 5 << 20 < told["trackside_agent_memory_bytes", ()] < 1 << 31
    assert told["trackside_agent_cpu_seconds_total", ()] > 0
    assert not any(("collector", "ib") in labels for _, labels in told)  # what a node hasn't got does not fail there


# -- the whole process


@contextmanager
def agent(folder: Path, *arguments: str, config: str = "") -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """``python -m trackside.agent``; its process, its port, its log."""
    port, log, file = free_port(), folder / "agent.log", folder / "agent.toml"
    file.write_text(config)
    command = [sys.executable, "-m", "trackside.agent", "run", "--config", str(file), "--listen", f"127.0.0.1:{port}",
               "--node", "n1", "--spool", str(folder / "spool"), *arguments]  # fmt: skip
    environ = {**os.environ, "STATE_DIRECTORY": str(folder / "state")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)
    try:
        until(lambda: process.poll() is not None or b"sources" in log.read_bytes(), 30)
        yield process, port, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def metrics(port: int) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return parsed(ask(port, "/metrics")[2].decode())


def ready(port: int) -> bool:
    try:
        return ask(port, "/-/ready")[0] == 200
    except OSError:
        return False


def test_it_runs_until_it_is_told_to_end_and_sends_all_that_it_read(tmp_path: Path) -> None:
    with (
        scripted() as receiver,
        agent(tmp_path, "--only", "clock", "memory", "--remote-write", receiver.url) as (process, port, log),
    ):
        until(lambda: ready(port), 30)
        assert ("node", "n1") in next(iter(metrics(port)["host_memory_total_bytes"]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(6) == 0, log.read_text()
        sent = {name for request in receiver.taken for name, *_ in request.samples()}
    assert {"host_memory_total_bytes", "host_time_seconds", "trackside_collector_success"} <= sent
    assert "Traceback" not in log.read_text()


def test_it_ends_in_time_though_its_receiver_never_answers(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with agent(tmp_path, "--only", "clock", "--remote-write", url) as (process, port, log):
            until(lambda: ready(port), 30)
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(12) == 0, log.read_text()
            assert time.monotonic() - begin < 8


def test_settings_are_read_again_on_sighup(tmp_path: Path) -> None:
    config = "[collect.memory]\non = {}\n[collect.clock]\ninterval_s = {}\n"
    with agent(tmp_path, "--without", *others("memory", "clock"), config=config.format("true", 0.2)) as (
        process,
        port,
        log,
    ):
        until(lambda: ready(port) and "host_memory_total_bytes" in metrics(port), 30)
        (tmp_path / "agent.toml").write_text(config.format("false", 0.2))
        process.send_signal(signal.SIGHUP)
        until(lambda: "host_memory_total_bytes" not in metrics(port))
        (tmp_path / "agent.toml").write_text(config.format('"maybe"', 0.2))
        process.send_signal(signal.SIGHUP)
        until(lambda: "the settings were not reloaded" in log.read_text())
        (tmp_path / "agent.toml").write_text(config.format("true", 0.2))
        process.send_signal(signal.SIGHUP)
        until(lambda: "host_memory_total_bytes" in metrics(port))
        text = log.read_text()
    assert "settings reloaded: memory" in text
    assert "agent.toml line 2: collect.memory.on must be true or false, not 'maybe'" in text


def others(*but: str) -> list[str]:
    from trackside.agent.source import sources

    return sorted(sources().keys() - set(but))


def test_once_reads_sends_and_ends(tmp_path: Path) -> None:
    with scripted() as receiver:
        done = subprocess.run(
            [sys.executable, "-m", "trackside.agent", "run", "--once", "--only", "memory", "--remote-write", receiver.url, "--spool", str(tmp_path / "s")],
            capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "STATE_DIRECTORY": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert any(name == "host_memory_total_bytes" for request in receiver.taken for name, *_ in request.samples())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_it_runs_as_nobody_with_what_nobody_may_read(tmp_path: Path) -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "check": False, "cwd": "/"}
    environ = {**os.environ, "STATE_DIRECTORY": str(tmp_path / "none"), "HOME": "/"}
    if subprocess.run([*nobody, sys.executable, "-c", "import msgspec, trackside"], env=environ, **options).returncode:
        pytest.skip(f"nobody may not run {sys.executable}")
    command = [sys.executable, "-B", "-m", "trackside.agent", "run", "--once", "--print", "--without", "hang"]
    done = subprocess.run([*nobody, *command], env=environ, **options)
    assert "Traceback" not in done.stderr
    found = parsed(done.stdout.partition("\n1")[0])
    assert {"host_cpu_seconds_total", "host_memory_total_bytes", "host_network_rx_bytes_total"} <= found.keys(), (
        done.stderr
    )
