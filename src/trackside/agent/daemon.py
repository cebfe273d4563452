"""The agent while it runs: sources on the one side, what they give sent on at the other, until it is told to end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter

from trackside.agent.config import Collection, Config
from trackside.agent.out.exposition import Board
from trackside.agent.out.identity import Identity
from trackside.agent.out.loki_push import LokiPush
from trackside.agent.out.receiver import ReceiverOptions
from trackside.agent.out.remote_write import RemoteWrite, compressor
from trackside.agent.out.scrape import Scrape
from trackside.agent.out.shipping import Shipping, Wire
from trackside.agent.out.spool import InUse, Spool
from trackside.agent.owners import Owners
from trackside.agent.runner import Outlet, Running
from trackside.agent.source import Reading, Sample
from trackside.agent.state import state_folder
from trackside.settings import ConfigError

OWN = "agent"
"""The source of its own readings: how its sources do, what got through to its receivers, what it takes."""
OWN_S = 15.0
"""How often it tells of itself."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STARTED = time.time()
WATCH_S = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
END_S, FLUSH_S = 2.0, 3.0
"""When it is told to end: for readings to be done, and then for what waits to be sent."""
Say = Callable[[str], object]


class Outlets(Outlet):
    """Everywhere that readings go."""

    def __init__(self, config: Config, say: Say) -> None:
        """Raises ConfigError for receivers that can't be sent to and spools that are another's."""
        identity = Identity(config.node.name, config.agent.job, config.agent.labels)
        self.board = Board(identity)
        self.shipping: list[Shipping] = []
        if config.remote_write is not None:
            self._add(RemoteWrite(identity), config.remote_write.receiver, config, say)
            if not compressor()[1]:
                say("remote_write: without cramjam (pip install 'trackside[agent]') requests are not compressed")
        if config.loki is not None:
            self._add(LokiPush(identity, config.loki.tenant), config.loki.receiver, config, say)

    def _add(self, wire: Wire, options: ReceiverOptions, config: Config, say: Say) -> None:
        def say_which(text: str) -> None:
            say(f"{wire.name}: {text}")

        try:
            spool = Spool(config.spool_folder / wire.name, config.spool, say_which)
            self.shipping.append(Shipping(wire, options, spool, say_which))
        except InUse as error:
            raise ConfigError(str(error)) from None
        except ValueError as error:
            raise ConfigError(f"[send.{wire.name}] {error}") from None

    def take(self, source: str, reading: Reading) -> bool:
        """Show it, and spool it for each receiver."""
        self.board.take(source, reading)
        kept = [each.take(reading) for each in self.shipping]
        return all(kept)

    def forget(self, source: str) -> None:
        """It is no longer shown; what was spooled was true."""
        self.board.forget(source)

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        return self.board.newest()

    def close(self, within_s: float) -> None:
        """Send what waits, as far as there is time."""
        until = time.monotonic() + within_s
        for each in self.shipping:
            each.stop(max(0.0, until - time.monotonic()))
        for each in self.shipping:
            each.spool.close()


class Agent:
    """All of it. ``reload`` gives the settings anew."""

    def __init__(self, config: Config, owners: Owners, reload: Callable[[], Config], say: Say) -> None:
        """Raises ConfigError, OSError where ``/metrics`` can't be served there."""
        self._config, self._reload, self._say = config, reload, say
        self.outlets = Outlets(config, say)
        state = state_folder(config.state)
        self.running = [
            Running(each, config.node, owners, self.outlets, say, state=state) for each in config.collections
        ]
        self.scrape: Scrape | None = None
        if config.agent.listen:
            try:
                self.scrape = Scrape(config.agent.address, self.text, self.not_ready)
            except OSError as error:
                self.outlets.close(0.0)
                where = f"agent.listen: {config.agent.listen}"
                raise ConfigError(f"{where} can't be listened on: {error.strerror}") from None
        self._woken = self._wake = -1
        self._ending = self._asked_again = False

    def not_ready(self) -> str:
        """Why it does not do yet what it should; empty where it does."""
        waits = [each.id for each in self.running if each.health.state == "starting" and each.collection.on]
        return f"not read yet: {', '.join(waits)}" if waits else ""

    def text(self) -> str:
        """All samples, the agent's own as of now."""
        reading = Reading()
        add_own(reading, self.running, self.outlets.shipping)
        self.outlets.board.take(OWN, reading)
        return self.outlets.board.text()

    def run(self) -> None:
        """Until SIGTERM or SIGINT. SIGHUP reads the settings again."""
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # before a signal may want it
        before = {number: signal.signal(number, self._told) for number in SIGNALS}
        try:
            self.start()
            following = 0.0
            while not self._ending:
                if select.select([self._woken], [], [], WATCH_S)[0]:
                    os.read(self._woken, 1 << 10)
                if self._asked_again:
                    self._asked_again = False
                    self.read_again()
                for each in self.running:
                    each.watch()
                if time.monotonic() >= following:
                    following = time.monotonic() + OWN_S
                    self.tell()
            self.tell()
        finally:
            self.close()
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._woken)
            os.close(self._wake)

    def start(self) -> None:
        """Begin to collect, send and serve."""
        for to in self.outlets.shipping:
            to.start()
        for each in self.running:
            each.start()
        if self.scrape is not None:
            self.scrape.start()

    def tell(self) -> None:
        """Of itself."""
        reading = Reading()
        add_own(reading, self.running, self.outlets.shipping)
        self.outlets.take(OWN, reading)

    def read_again(self) -> None:
        """Take new settings of sources: those that changed start anew, all others go on."""
        try:
            config = self._reload()
        except ConfigError as error:
            self._say(f"the settings stay as they were: {error}")
            return
        wanted = {each.source.id: each for each in config.collections}
        changed = [each for each in self.running if _differs(each.collection, wanted[each.id])]
        for each in changed:
            each.become(wanted[each.id])
        told = ", ".join(each.id for each in changed) or "no source's changed"
        self._say(f"settings read again: {told}")
        fixed = attrgetter("agent", "remote_write", "loki", "spool")
        if fixed(config) != fixed(self._config):
            self._say("what changed in [agent], [send] and [spool] counts once it is started again")

    def close(self) -> None:
        """End all of it, in a few seconds."""
        for each in self.running:
            each.stop()
        until = time.monotonic() + END_S
        for each in self.running:
            each.join(until - time.monotonic())
        self.outlets.close(FLUSH_S)
        if self.scrape is not None:
            self.scrape.stop()

    def _told(self, number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            self._asked_again = True
        else:
            self._ending = True
        with suppress(BlockingIOError):  # a handler may run within any lock, so that none may be taken here
            os.write(self._wake, b"!")


def _differs(one: Collection, other: Collection) -> bool:
    told = attrgetter("on", "interval_s", "timeout_s", "options")
    return bool(told(one) != told(other))


def add_own(reading: Reading, running: Iterable[Running], shipping: Iterable[Shipping]) -> None:
    """All of it as of now."""
    for each in running:
        _add_collector(reading, each)
    for to in shipping:
        _add_receiver(reading, to)
    reading.sample("trackside_agent_memory_bytes", resident_bytes())
    reading.sample("trackside_agent_cpu_seconds_total", time.process_time())
    reading.sample("trackside_agent_start_time", _STARTED)


def _add_collector(reading: Reading, running: Running) -> None:
    health, collector = running.health, running.id
    asked = running.collection.origin != "default"
    if health.state in ("starting", "off") or (health.state == "unavailable" and not health.last_success and not asked):
        return  # a node without InfiniBand is none whose InfiniBand fails
    reading.sample("trackside_collector_success", health.state == "works", collector=collector)
    reading.sample("trackside_collector_seconds", health.seconds, collector=collector)
    reading.sample("trackside_collector_failures", health.failures, collector=collector)
    if health.last_success:
        reading.sample("trackside_collector_last_success_time", health.last_success, collector=collector)
    for kind, count in sorted(running.lost.items()):
        reading.sample("trackside_collector_lost_total", count, collector=collector, kind=kind)


def _add_receiver(reading: Reading, to: Shipping) -> None:
    name, sent, waiting = to.protocol.name, to.sent, to.spool.waiting
    if sent.requests:
        reading.sample("trackside_send_success", not sent.failures, receiver=name)
    if sent.last_success:
        reading.sample("trackside_send_last_success_time", sent.last_success, receiver=name)
    reading.sample("trackside_send_sent_total", sent.count, receiver=name)
    reading.sample("trackside_send_failures_total", sent.failed, receiver=name)
    reading.sample("trackside_send_waiting", waiting.count, receiver=name)
    reading.sample("trackside_send_waiting_bytes", waiting.disk_bytes, receiver=name, kind="disk")
    reading.sample("trackside_send_waiting_bytes", waiting.memory_bytes, receiver=name, kind="memory")
    for reason, count in sorted(waiting.lost.items()):
        if count:
            reading.sample("trackside_send_lost_total", count, receiver=name, reason=reason)


def resident_bytes() -> int:
    """Of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
