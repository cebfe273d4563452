"""Runs the sources: each in a thread of its own, so that one that hangs or fails takes nobody with it."""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trackside.agent.config import Collection
from trackside.agent.node import Node
from trackside.agent.owners import Owners
from trackside.agent.source import Collector, Context, Reading, Sample, Unavailable

OPEN_S = 60.0
"""How long a source may take to open, at least: a driver that nobody keeps loaded takes its time."""
FIRST_AGAIN_S, LAST_AGAIN_S = 15.0, 600.0
"""When a source that can't be had is tried again: ever more seldom."""
REPEAT_S = 600.0
"""How often a source's warning that stays the same is logged."""
MOST_WARNINGS = 256
State = Literal["starting", "works", "fails", "hangs", "unavailable", "off"]


@dataclass(frozen=True, slots=True)
class Health:
    """How a source does. ``seconds``: its last reading. ``failures``: since the last that went well. ``last_success``:
    POSIX seconds, 0 for never."""

    state: State = "starting"
    reason: str = ""
    remedy: str = ""
    seconds: float = 0.0
    failures: int = 0
    last_success: float = 0.0


class Outlet:
    """Where readings go; by itself, nowhere."""

    def take(self, source: str, reading: Reading) -> bool:
        """Take a reading; whether all that lasts has it."""
        return False

    def forget(self, source: str) -> None:
        """What a source gave is no longer so."""

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        """The samples of each source's newest reading, until it is forgotten."""
        return {}


@dataclass(slots=True)
class Running:
    """One source that runs, in its own thread."""

    collection: Collection
    node: Node
    owners: Owners
    outlet: Outlet
    say: Callable[[str], object]
    state: Path | None = None
    """The agent's own folder."""
    health: Health = field(default_factory=Health)
    lost: Counter[str] = field(default_factory=Counter)
    _wake: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _stopping: bool = False
    _busy: tuple[float, float] | None = None
    """Since when it is at work, and how long it may be."""
    _late: bool = False
    _warned: dict[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The source's."""
        return self.collection.source.id

    def start(self) -> None:
        """Run it, if it is on and doesn't."""
        if self.collection.on and not self.alive:
            self.health = Health()
            self._thread = threading.Thread(target=self._live, name=f"collect-{self.id}", daemon=True)
            self._thread.start()
        elif not self.alive:
            self.health = Health("off", f"switched off ({self.collection.origin})")

    @property
    def alive(self) -> bool:
        """Whether its thread runs, be it hung."""
        return self._thread is not None and self._thread.is_alive()

    def become(self, collection: Collection) -> None:
        """Run by other settings from now on. One that hangs does so once it returns."""
        self.collection = collection
        self._wake.set()
        self.start()

    def stop(self) -> None:
        """End once its reading is done; see :meth:`join`."""
        self._stopping = True
        self._wake.set()

    def join(self, within_s: float) -> None:
        """Wait for its end; one that hangs is left behind."""
        if self._thread is not None:
            self._thread.join(max(0.0, within_s))

    def watch(self) -> None:
        """Notice that it hangs. Called now and then from another thread."""
        busy = self._busy
        if busy is not None and not self._late and time.monotonic() - busy[0] > busy[1]:
            self._late = True
            self._failed("hangs", f"it has not returned for {busy[1]:g} s")

    # -- its own thread

    def _live(self) -> None:
        _name_thread(self.id)
        again_s = FIRST_AGAIN_S
        while not self._stopping and self.collection.on:
            collection = self.collection
            self._wake.clear()
            collector = self._opened(collection)
            if collector is not None:
                begin = time.monotonic()
                self._run(collector, collection)
                again_s = FIRST_AGAIN_S if time.monotonic() - begin > 10 * again_s else again_s
            if self.collection is collection and not self._wake.wait(again_s):
                again_s = min(2 * again_s, LAST_AGAIN_S)
        self.outlet.forget(self.id)
        if not self.collection.on:
            self.health = Health("off", f"switched off ({self.collection.origin})")

    def _opened(self, collection: Collection) -> Collector | None:
        context = Context(self.node, self.owners, collection.options, self.say, self.state, self.outlet.newest)
        self._at_work(max(OPEN_S, collection.timeout_s))
        try:
            return collection.source.open(context)
        except Unavailable as error:
            self._failed("unavailable", error.reason, error.remedy)
        except Exception as error:  # noqa: BLE001  whatever a source does wrong is its own
            self._failed("fails", f"it can't be opened: {_said(error)}")
        finally:
            self._done()
        return None

    def _run(self, collector: Collector, collection: Collection) -> None:
        """Read it at its times until it goes away or is wanted otherwise."""
        ticks = Ticks(collection.interval_s, f"{self.node.name}/{self.id}")
        try:
            while not self._stopping and self.collection is collection and self._read(collector, collection):
                self._wake.wait(ticks.until_next())
        finally:
            try:
                collector.close()
            except Exception as error:  # noqa: BLE001
                self.say(f"{self.id}: it can't be closed: {_said(error)}")

    def _read(self, collector: Collector, collection: Collection) -> bool:
        """One reading; whether the source is still there."""
        reading = Reading()
        begin = self._at_work(collection.timeout_s)
        try:
            collector.collect(reading)
        except Unavailable as error:
            self._failed("unavailable", error.reason, error.remedy)
            return False
        except Exception as error:  # noqa: BLE001
            self._failed("fails", _said(error))
            return True
        finally:
            late = self._done()
        if late:
            reading.samples.clear()  # of a time long gone; lines have their own
        seconds = time.monotonic() - begin
        if self.health.state not in ("works", "starting"):
            self.say(f"{self.id}: it works again")
        self.health = Health("works", seconds=seconds, last_success=time.time())
        self._warn(reading.warnings)
        self.lost.update(reading.lost)
        try:
            if self.outlet.take(self.id, reading):
                collector.accepted()
        except Exception as error:  # noqa: BLE001
            self._failed("fails", f"its reading can't be taken: {_said(error)}")
        return True

    def _at_work(self, timeout_s: float) -> float:
        self._late = False
        begin = time.monotonic()
        self._busy = begin, timeout_s
        return begin

    def _done(self) -> bool:
        """It returned; whether too late."""
        self._busy = None
        return self._late

    def _failed(self, state: State, reason: str, remedy: str = "") -> None:
        before = self.health
        self.health = replace(before, state=state, reason=reason, remedy=remedy, failures=before.failures + 1)
        self.outlet.forget(self.id)
        if (before.state, before.reason) != (state, reason):
            self.say(f"{self.id}: {state}: {reason}" + (f" ({remedy})" if remedy else ""))

    def _warn(self, warnings: list[str]) -> None:
        now = time.monotonic()
        if len(self._warned) > MOST_WARNINGS:
            self._warned.clear()
        for text in warnings[:MOST_WARNINGS]:
            if now - self._warned.get(text, -REPEAT_S) >= REPEAT_S:
                self._warned[text] = now
                self.say(f"{self.id}: {text}")


class Ticks:
    """Times an interval apart, on a clock that never steps. Where in the interval they lie is the name's own: not all
    nodes read, and send, in the same moment."""

    def __init__(self, interval_s: float, name: str) -> None:
        self._interval_s = interval_s
        self._phase_s = zlib.crc32(name.encode()) / 2**32 * interval_s

    def until_next(self) -> float:
        """Seconds until the next; one that is nearer than a quarter is let go, as are those that were missed."""
        wait_s = self._interval_s - (time.monotonic() - self._phase_s) % self._interval_s
        return wait_s if wait_s > self._interval_s / 4 else wait_s + self._interval_s


def _name_thread(name: str) -> None:
    """For those who look with top what takes the time."""
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name[:15])


def _said(error: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
