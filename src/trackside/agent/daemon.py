"""The running agent: sources are read, and their readings are served and sent, until it is stopped."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter

from trackside.agent.config import Config, SourceSettings
from trackside.agent.delivery.exposition import LatestSamples
from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.loki_push import LokiPush
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.delivery.remote_write import RemoteWrite, compressor
from trackside.agent.delivery.scrape import MetricsServer
from trackside.agent.delivery.shipping import Encoder, Sender
from trackside.agent.delivery.spool import Spool, SpoolBusy
from trackside.agent.owners import Owners
from trackside.agent.runner import Outlet, SourceThread
from trackside.agent.source import Reading, Sample
from trackside.agent.state import state_folder
from trackside.extras import install_command
from trackside.settings import ConfigError

OWN_SOURCE = "agent"
"""Source id of the agent's own metrics: health of its sources, results of sending, memory and CPU time."""
OWN_INTERVAL_S = 15.0
"""Interval of the agent's own metrics."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_START_TIME = time.time()
WATCH_INTERVAL_S = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_S, FLUSH_S = 2.0, 3.0
"""Time limits at shutdown: for readings under way to finish, then for waiting data to be sent."""
Say = Callable[[str], object]


class Outlets(Outlet):
    """All destinations of readings."""

    def __init__(self, config: Config, say: Say) -> None:
        """Raises ConfigError for invalid receivers and for a spool that another agent uses."""
        identity = Identity(config.node.name, config.agent.job, config.agent.labels)
        self.latest = LatestSamples(identity)
        self.senders: list[Sender] = []
        if config.remote_write is not None:
            self._add(RemoteWrite(identity), config.remote_write.receiver, config, say)
            if not compressor()[1]:
                say(f"remote_write: requests are not compressed: cramjam is missing: {install_command('agent')}")
        if config.loki is not None:
            self._add(LokiPush(identity, config.loki.tenant), config.loki.receiver, config, say)

    def _add(self, protocol: Encoder, options: ReceiverOptions, config: Config, say: Say) -> None:
        def say_with_name(text: str) -> None:
            say(f"{protocol.name}: {text}")

        try:
            spool = Spool(config.spool_folder / protocol.name, config.spool, say_with_name)
            self.senders.append(Sender(protocol, options, spool, say_with_name))
        except SpoolBusy as error:
            raise ConfigError(str(error)) from None
        except ValueError as error:
            raise ConfigError(f"[send.{protocol.name}] {error}") from None

    def accept(self, source: str, reading: Reading) -> bool:
        """Publish the reading on /metrics and spool it for each receiver; True if all of it is on disk."""
        self.latest.replace(source, reading)
        on_disk = [sender.spool_reading(reading) for sender in self.senders]
        return all(on_disk)

    def forget(self, source: str) -> None:
        """Remove the source's samples from /metrics; what is spooled stays."""
        self.latest.forget(source)

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        return self.latest.newest()

    def close(self, within_s: float) -> None:
        """Send what waits until ``within_s`` seconds have passed, and close the spools."""
        deadline = time.monotonic() + within_s
        for sender in self.senders:
            sender.stop(max(0.0, deadline - time.monotonic()))
        for sender in self.senders:
            sender.spool.close()


class Agent:
    """The whole agent. ``reload`` reads the settings again."""

    def __init__(self, config: Config, owners: Owners, reload: Callable[[], Config], say: Say) -> None:
        """Raises ConfigError, also if ``/metrics`` cannot be served at its address."""
        self._config, self._reload, self._say = config, reload, say
        self.outlets = Outlets(config, say)
        state = state_folder(config.state)
        self.running = [
            SourceThread(settings, config.node, owners, self.outlets, say, state=state) for settings in config.sources
        ]
        self.metrics_server: MetricsServer | None = None
        if config.agent.listen:
            try:
                self.metrics_server = MetricsServer(config.agent.address, self.text, self.not_ready)
            except OSError as error:
                self.outlets.close(0.0)
                setting = f"agent.listen: {config.agent.listen}"
                raise ConfigError(f"{setting}: cannot listen there: {error.strerror}") from None
        self._wake_reader = self._wake_writer = -1
        self._is_stopping = self._reload_requested = False

    def not_ready(self) -> str:
        """Why the agent is not ready yet; empty if it is."""
        pending = [source.id for source in self.running if source.health.state == "starting" and source.settings.on]
        return f"sources not read yet: {', '.join(pending)}" if pending else ""

    def text(self) -> str:
        """All samples as exposition text; the agent's own are current."""
        reading = Reading()
        add_own_metrics(reading, self.running, self.outlets.senders)
        self.outlets.latest.replace(OWN_SOURCE, reading)
        return self.outlets.latest.text()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT; SIGHUP reloads the settings."""
        self._wake_reader, self._wake_writer = os.pipe2(
            os.O_NONBLOCK | os.O_CLOEXEC
        )  # before any handler can write to it
        previous_handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            self.start()
            next_own_s = 0.0
            while not self._is_stopping:
                if select.select([self._wake_reader], [], [], WATCH_INTERVAL_S)[0]:
                    os.read(self._wake_reader, 1 << 10)
                if self._reload_requested:
                    self._reload_requested = False
                    self.reload_settings()
                for source in self.running:
                    source.watch()
                if time.monotonic() >= next_own_s:
                    next_own_s = time.monotonic() + OWN_INTERVAL_S
                    self.send_own_metrics()
            self.send_own_metrics()
        finally:
            self.close()
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def start(self) -> None:
        """Start collecting, sending and serving."""
        for sender in self.outlets.senders:
            sender.start()
        for source in self.running:
            source.start()
        if self.metrics_server is not None:
            self.metrics_server.start()

    def send_own_metrics(self) -> None:
        """Send the agent's own metrics."""
        reading = Reading()
        add_own_metrics(reading, self.running, self.outlets.senders)
        self.outlets.accept(OWN_SOURCE, reading)

    def reload_settings(self) -> None:
        """Apply new settings of sources: sources whose settings changed restart, all others continue."""
        try:
            config = self._reload()
        except ConfigError as error:
            self._say(f"the settings were not reloaded: {error}")
            return
        new_settings = {settings.source.id: settings for settings in config.sources}
        changed = [source for source in self.running if _differs(source.settings, new_settings[source.id])]
        for source in changed:
            source.apply(new_settings[source.id])
        changed_ids = ", ".join(source.id for source in changed) or "no source changed"
        self._say(f"settings reloaded: {changed_ids}")
        restart_settings = attrgetter("agent", "remote_write", "loki", "spool")
        if restart_settings(config) != restart_settings(self._config):
            self._say("changes in [agent], [send] and [spool] take effect after a restart")

    def close(self) -> None:
        """Stop everything, within a few seconds."""
        for source in self.running:
            source.stop()
        deadline = time.monotonic() + STOP_S
        for source in self.running:
            source.join(deadline - time.monotonic())
        self.outlets.close(FLUSH_S)
        if self.metrics_server is not None:
            self.metrics_server.stop()

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            self._reload_requested = True
        else:
            self._is_stopping = True
        with suppress(BlockingIOError):  # a signal handler may run while any lock is held, so it must not take one
            os.write(self._wake_writer, b"!")


def _differs(current: SourceSettings, new: SourceSettings) -> bool:
    settings_of = attrgetter("on", "interval_s", "timeout_s", "options")
    return bool(settings_of(current) != settings_of(new))


def add_own_metrics(reading: Reading, running: Iterable[SourceThread], senders: Iterable[Sender]) -> None:
    """Add the agent's own metrics, as of now."""
    for source in running:
        _add_collector(reading, source)
    for sender in senders:
        _add_receiver(reading, sender)
    reading.sample("trackside_agent_memory_bytes", resident_bytes())
    reading.sample("trackside_agent_cpu_seconds_total", time.process_time())
    reading.sample("trackside_agent_start_time", _START_TIME)


def _add_collector(reading: Reading, running: SourceThread) -> None:
    health, collector = running.health, running.id
    is_requested = running.settings.origin != "default"
    if health.state in ("starting", "off") or (
        health.state == "unavailable" and not health.last_success and not is_requested
    ):
        return  # a node without InfiniBand has no failing InfiniBand source
    reading.sample("trackside_collector_success", health.state == "works", collector=collector)
    reading.sample("trackside_collector_seconds", health.seconds, collector=collector)
    reading.sample("trackside_collector_failures", health.failures, collector=collector)
    if health.last_success:
        reading.sample("trackside_collector_last_success_time", health.last_success, collector=collector)
    for kind, count in sorted(running.lost.items()):
        reading.sample("trackside_collector_lost_total", count, collector=collector, kind=kind)


def _add_receiver(reading: Reading, sender: Sender) -> None:
    name, statistics, waiting = sender.protocol.name, sender.statistics, sender.spool.waiting
    if statistics.requests:
        reading.sample("trackside_send_success", not statistics.consecutive_failures, receiver=name)
    if statistics.last_success:
        reading.sample("trackside_send_last_success_time", statistics.last_success, receiver=name)
    reading.sample("trackside_send_sent_total", statistics.sent_items, receiver=name)
    reading.sample("trackside_send_failures_total", statistics.failed_requests, receiver=name)
    reading.sample("trackside_send_waiting", waiting.count, receiver=name)
    reading.sample("trackside_send_waiting_bytes", waiting.disk_bytes, receiver=name, kind="disk")
    reading.sample("trackside_send_waiting_bytes", waiting.memory_bytes, receiver=name, kind="memory")
    for reason, count in sorted(waiting.lost.items()):
        if count:
            reading.sample("trackside_send_lost_total", count, receiver=name, reason=reason)


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
