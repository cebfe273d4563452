"""Sources that hang, fail, disappear and come back do not affect each other."""

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

from tests.agent.receivers import fake_receiver
from tests.agent.test_exposition import ask, parse_exposition
from tests.services import free_port
from trackside.agent import runner
from trackside.agent.config import SourceSettings
from trackside.agent.daemon import add_own_metrics
from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.agent.runner import SourceThread, Ticks
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading, Sample

pytestmark = pytest.mark.slow  # real processes, and seconds of waiting for them

NODE = LocalNode("n1")


@dataclass
class RecordingOutlet:
    """Records events in order: (source, reading), or (source, None) when a source is forgotten."""

    on_disk: bool = True
    events: list[tuple[str, Reading | None]] = field(default_factory=list)

    def accept(self, source: str, reading: Reading) -> bool:
        self.events.append((source, reading))
        return self.on_disk

    def forget(self, source: str) -> None:
        self.events.append((source, None))

    def newest(self) -> dict[str, list[Sample]]:
        return {source: reading.samples for source, reading in self.events if reading is not None}

    def readings(self, source: str) -> list[Reading]:
        return [reading for id_, reading in self.events if id_ == source and reading is not None]


class FakeSource(Collector):
    """A source whose readings call a function of the test."""

    def __init__(self, collect: Callable[[Reading], object], accepted: Callable[[], object] | None = None) -> None:
        self._collect, self._accepted = collect, accepted
        self.close_count, self.open_count = 0, 0

    def open(self, context: Context) -> FakeSource:
        self.open_count += 1
        return self

    def collect(self, reading: Reading) -> None:
        self._collect(reading)

    def accepted(self) -> None:
        if self._accepted is not None:
            self._accepted()

    def close(self) -> None:
        self.close_count += 1


def source_settings(
    id_: str, open_: Callable[[Context], Any], interval_s: float = 0.02, timeout_s: float = 5.0
) -> SourceSettings:
    return SourceSettings(AgentSource(id_, id_, open_), True, interval_s, timeout_s, None, "default")


@contextmanager
def run_sources(
    *sources: SourceSettings, outlet: RecordingOutlet | None = None, messages: list[str] | None = None
) -> Iterator[tuple[RecordingOutlet, list[SourceThread]]]:
    recorder = outlet or RecordingOutlet()
    say: Callable[[str], object] = (lambda text: None) if messages is None else messages.append
    running = [SourceThread(settings, NODE, Owners(), recorder, say) for settings in sources]
    for source_run in running:
        source_run.start()
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.wait(0.01):
            for source_run in running:
                source_run.watch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield recorder, running
    finally:
        stopping.set()
        watcher.join()
        for source_run in running:
            source_run.stop()
        for source_run in running:
            source_run.join(2.0)


def wait_until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)


def add_load(reading: Reading) -> None:
    reading.sample("host_load1", 1.0)


def test_a_hanging_source_does_not_affect_others() -> None:
    release = threading.Event()

    def hang(reading: Reading) -> None:
        add_load(reading)
        reading.line("of before")
        release.wait(10)

    hanging, healthy = FakeSource(hang), FakeSource(add_load)
    messages: list[str] = []
    with run_sources(
        source_settings("hung", hanging.open, timeout_s=0.1), source_settings("well", healthy.open), messages=messages
    ) as (
        recorder,
        (first, _),
    ):
        wait_until(lambda: first.health.state == "hangs")
        before = len(recorder.readings("well"))
        wait_until(lambda: len(recorder.readings("well")) > before + 5)
        assert ("hung", None) in recorder.events  # its earlier readings are no longer shown
        assert first.health.failures == 1
        assert hanging.open_count == 1  # not opened in a second thread
        threads = [thread.name for thread in threading.enumerate() if thread.name == "collect-hung"]
        assert len(threads) == 1
        assert messages == ["hung: hangs: no return from the source for 0.1 s"]
        release.set()
        wait_until(lambda: first.health.state == "works")
        late_reading = recorder.readings("hung")[0]
        assert late_reading.samples == []  # outdated
        assert [line.text for line in late_reading.lines] == ["of before"]
        assert messages[1] == "hung: works again"


def test_a_failing_source_is_read_again_and_does_not_affect_others() -> None:
    count = [0]

    def fail(reading: Reading) -> None:
        count[0] += 1
        add_load(reading)
        if 2 <= count[0] <= 4:
            raise ZeroDivisionError("of\nsome kind")

    messages: list[str] = []
    with run_sources(
        source_settings("bad", FakeSource(fail).open),
        source_settings("well", FakeSource(add_load).open),
        messages=messages,
    ) as (
        recorder,
        (bad, _),
    ):
        wait_until(lambda: count[0] >= 6)
        assert messages == ["bad: fails: ZeroDivisionError: of some kind", "bad: works again"]
        assert bad.health.failures == 0
        assert len(recorder.readings("bad")) >= 2
        assert len(recorder.readings("well")) >= 4
    bad_events = [reading for id_, reading in recorder.events if id_ == "bad"]
    assert bad_events[1:4] == [None, None, None]


def test_an_unavailable_source_is_reopened_with_growing_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MIN_RETRY_S", 0.02)
    monkeypatch.setattr(runner, "MAX_RETRY_S", 0.08)
    times: list[float] = []

    def open_(context: Context) -> FakeSource:
        times.append(time.monotonic())
        if len(times) < 6:
            raise AgentSourceUnavailable("no driver", "install it")
        return FakeSource(add_load)

    messages: list[str] = []
    with run_sources(source_settings("gpu", open_), messages=messages) as (recorder, (gpu,)):
        wait_until(lambda: len(recorder.readings("gpu")) > 2)
        assert gpu.health.state == "works"
    delays_s = [after - before for before, after in pairwise(times)]
    assert all(wait >= min_wait_s for wait, min_wait_s in zip(delays_s, [0.02, 0.04, 0.08, 0.08, 0.08], strict=True))
    assert messages == ["gpu: unavailable: no driver (install it)", "gpu: works again"]


def test_a_source_that_becomes_unavailable_is_closed_and_reopened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MIN_RETRY_S", 0.02)
    count = [0]

    def fail_once(reading: Reading) -> None:
        count[0] += 1
        if count[0] == 2:
            raise AgentSourceUnavailable("GPU is lost")

    source = FakeSource(fail_once)
    with run_sources(source_settings("gpu", source.open)):
        wait_until(lambda: count[0] >= 4)
        assert (source.open_count, source.close_count) == (2, 1)
    assert source.close_count == 2


@pytest.mark.parametrize("error", [KeyError("x"), SystemError(), RecursionError("deep")])
def test_errors_in_open_and_close_are_reported(error: Exception) -> None:
    def open_(context: Context) -> FakeSource:
        raise error

    class FailingClose(FakeSource):
        def close(self) -> None:
            raise error

    messages: list[str] = []
    with run_sources(
        source_settings("a", open_), source_settings("b", FailingClose(add_load).open), messages=messages
    ) as (
        recorder,
        (first, _),
    ):
        wait_until(lambda: first.health.state == "fails" and len(recorder.readings("b")) > 1)
    assert len(messages) == 2
    assert messages[0].startswith("a: fails: it cannot be opened:")
    assert messages[1].startswith("b: closing failed:")


def test_a_reading_is_accepted_only_when_it_is_on_disk() -> None:
    order: list[str] = []
    outlet = RecordingOutlet(on_disk=False)
    source = FakeSource(lambda reading: order.append("read"), lambda: order.append("accepted"))
    with run_sources(source_settings("files", source.open), outlet=outlet):
        wait_until(lambda: len(order) > 3)
        assert set(order) == {"read"}
        outlet.on_disk = True
        wait_until(lambda: "accepted" in order)
        index = order.index("accepted")
        assert order[index - 1] == "read"


def test_a_failing_outlet_does_not_end_a_source() -> None:
    class FailingOutlet(RecordingOutlet):
        def accept(self, source: str, reading: Reading) -> bool:
            super().accept(source, reading)
            if len(self.events) == 1:
                raise MemoryError
            return True

    messages: list[str] = []
    with run_sources(source_settings("cpu", FakeSource(add_load).open), outlet=FailingOutlet(), messages=messages) as (
        recorder,
        (cpu,),
    ):
        wait_until(lambda: len(recorder.readings("cpu")) > 2)
        assert cpu.is_alive
    assert messages == ["cpu: fails: its reading cannot be stored: MemoryError", "cpu: works again"]


def test_a_source_can_be_switched_off_and_on_while_the_agent_runs() -> None:
    source = FakeSource(add_load)
    first = source_settings("cpu", source.open)
    with run_sources(first) as (recorder, (cpu,)):
        wait_until(lambda: len(recorder.readings("cpu")) > 2)
        cpu.apply(replace(first, on=False, origin="agent.toml line 3"))
        wait_until(lambda: cpu.health.state == "off")
        assert cpu.health.reason == "switched off (agent.toml line 3)"
        assert recorder.events[-1] == ("cpu", None)
        assert source.close_count == 1
        cpu.apply(replace(first, interval_s=0.01))
        wait_until(lambda: cpu.health.state == "works")
        assert source.open_count == 2


def test_a_repeated_warning_is_reported_once() -> None:
    messages: list[str] = []
    with run_sources(
        source_settings("a", FakeSource(lambda reading: reading.warnings.append("no /sys/x")).open), messages=messages
    ) as (
        recorder,
        _,
    ):
        wait_until(lambda: len(recorder.readings("a")) > 5)
    assert messages == ["a: no /sys/x"]


def test_readings_are_one_interval_apart_and_differ_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
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
    delays = [Ticks(15.0, f"n{number}/cpu").until_next() for number in range(200)]
    assert max(delays) - min(delays) > 10  # the nodes of a cluster that starts at once do not read at the same time
    assert min(delays) > 15 / 4


def test_the_agent_reports_the_health_of_its_sources() -> None:
    def fail_at_first(reading: Reading) -> None:
        reading.lost["lines"] = 3
        if len(failing) < 3:
            failing.append(1)
            raise OSError("no")

    failing: list[int] = []

    def open_unavailable(context: Context) -> FakeSource:
        raise AgentSourceUnavailable("no InfiniBand here")

    with run_sources(
        source_settings("a", FakeSource(fail_at_first).open),
        source_settings("b", FakeSource(add_load).open),
        source_settings("ib", open_unavailable),
    ) as (
        _,
        running,
    ):
        wait_until(
            lambda: (
                running[0].health.state == "works"
                and running[1].health.state == "works"
                and running[2].health.state == "unavailable"
            )
        )
        reading = Reading()
        add_own_metrics(reading, running, [])
    own_metrics = {(sample.metric, sample.labels): sample.value for sample in reading.samples}
    assert own_metrics["trackside_collector_success", (("collector", "a"),)] == 1
    assert own_metrics["trackside_collector_lost_total", (("collector", "a"), ("kind", "lines"))] >= 3
    assert own_metrics["trackside_collector_last_success_time", (("collector", "b"),)] == pytest.approx(
        time.time(), abs=10
    )
    assert own_metrics["trackside_collector_seconds", (("collector", "b"),)] < 1
    assert 5 << 20 < own_metrics["trackside_agent_memory_bytes", ()] < 1 << 31
    assert own_metrics["trackside_agent_cpu_seconds_total", ()] > 0
    assert not any(("collector", "ib") in labels for _, labels in own_metrics)  # missing hardware is not a failure


# -- the whole process


@contextmanager
def agent(folder: Path, *arguments: str, config: str = "") -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """Runs ``python -m trackside.agent``; its process, port and log file."""
    port, log, file = free_port(), folder / "agent.log", folder / "agent.toml"
    file.write_text(config)
    command = [sys.executable, "-m", "trackside.agent", "run", "--config", str(file), "--listen", f"127.0.0.1:{port}",
               "--node", "n1", "--spool", str(folder / "spool"), *arguments]  # fmt: skip
    environ = {**os.environ, "STATE_DIRECTORY": str(folder / "state")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)
    try:
        wait_until(lambda: process.poll() is not None or b" source" in log.read_bytes(), 30)
        yield process, port, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def metrics(port: int) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return parse_exposition(ask(port, "/metrics")[2].decode())


def ready(port: int) -> bool:
    try:
        return ask(port, "/-/ready")[0] == 200
    except OSError:
        return False


def test_on_sigterm_the_agent_sends_its_readings_and_ends(tmp_path: Path) -> None:
    with (
        fake_receiver() as receiver,
        agent(tmp_path, "--only", "clock", "memory", "--remote-write", receiver.url) as (process, port, log),
    ):
        wait_until(lambda: ready(port), 30)
        assert ("node", "n1") in next(iter(metrics(port)["host_memory_total_bytes"]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(6) == 0, log.read_text()
        sent = {name for request in receiver.accepted for name, *_ in request.samples()}
    assert {"host_memory_total_bytes", "host_time_seconds", "trackside_collector_success"} <= sent
    assert "Traceback" not in log.read_text()


def test_the_agent_ends_in_time_if_its_receiver_does_not_answer(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with agent(tmp_path, "--only", "clock", "--remote-write", url) as (process, port, log):
            wait_until(lambda: ready(port), 30)
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(12) == 0, log.read_text()
            assert time.monotonic() - begin < 8


def test_settings_are_read_again_on_sighup(tmp_path: Path) -> None:
    config = "[collect.memory]\non = {}\n[collect.clock]\ninterval_s = {}\n"
    with agent(tmp_path, "--without", *sources_except("memory", "clock"), config=config.format("true", 0.2)) as (
        process,
        port,
        log,
    ):
        wait_until(lambda: ready(port) and "host_memory_total_bytes" in metrics(port), 30)
        (tmp_path / "agent.toml").write_text(config.format("false", 0.2))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "host_memory_total_bytes" not in metrics(port))
        (tmp_path / "agent.toml").write_text(config.format('"maybe"', 0.2))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the settings were not reloaded" in log.read_text())
        (tmp_path / "agent.toml").write_text(config.format("true", 0.2))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "host_memory_total_bytes" in metrics(port))
        text = log.read_text()
    assert "settings reloaded: memory" in text
    assert "agent.toml line 2: collect.memory.on must be true or false, not 'maybe'" in text


def sources_except(*names: str) -> list[str]:
    from trackside.agent.source import sources

    return sorted(sources().keys() - set(names))


def test_run_once_reads_sends_and_ends(tmp_path: Path) -> None:
    with fake_receiver() as receiver:
        result = subprocess.run(
            [sys.executable, "-m", "trackside.agent", "run", "--once", "--only", "memory", "--remote-write", receiver.url, "--spool", str(tmp_path / "s")],
            capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "STATE_DIRECTORY": str(tmp_path)},
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert any(name == "host_memory_total_bytes" for request in receiver.accepted for name, *_ in request.samples())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_the_agent_runs_as_an_unprivileged_user(tmp_path: Path) -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "check": False, "cwd": "/"}
    environ = {**os.environ, "STATE_DIRECTORY": str(tmp_path / "none"), "HOME": "/"}
    if subprocess.run([*nobody, sys.executable, "-c", "import msgspec, trackside"], env=environ, **options).returncode:
        pytest.skip(f"nobody may not run {sys.executable}")
    command = [sys.executable, "-B", "-m", "trackside.agent", "run", "--once", "--print", "--without", "hang"]
    result = subprocess.run([*nobody, *command], env=environ, **options)
    assert "Traceback" not in result.stderr
    metrics_by_name = parse_exposition(result.stdout.partition("\n1")[0])
    assert {
        "host_cpu_seconds_total",
        "host_memory_total_bytes",
        "host_network_rx_bytes_total",
    } <= metrics_by_name.keys(), result.stderr
