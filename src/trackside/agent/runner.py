"""Runs the sources, each in its own thread, so that one that hangs or fails does not affect the others."""

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

from trackside.agent.config import SourceSettings
from trackside.agent.node import LocalNode
from trackside.agent.owners import Owners
from trackside.agent.source import AgentSourceUnavailable, Collector, Context, Reading, Sample

MIN_OPEN_TIMEOUT_S = 60.0
"""Time limit for opening a source, unless its own is longer: a GPU driver without persistence mode loads slowly."""
MIN_RETRY_S, MAX_RETRY_S = 15.0, 600.0
"""Pauses between tries to open an unavailable source; they double."""
REPEAT_S = 600.0
"""Interval at which an unchanged warning of a source is logged again."""
MAX_WARNINGS = 256
HealthState = Literal["starting", "works", "fails", "hangs", "unavailable", "off"]


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a source. ``seconds``: duration of its last reading. ``failures``: since the last success.
    ``last_success``: POSIX seconds, 0 for never."""

    state: HealthState = "starting"
    reason: str = ""
    remedy: str = ""
    seconds: float = 0.0
    failures: int = 0
    last_success: float = 0.0


class Outlet:
    """A destination of readings; this base class discards them."""

    def accept(self, source: str, reading: Reading) -> bool:
        """Accept a reading; True if it is stored durably everywhere."""
        return False

    def forget(self, source: str) -> None:
        """Drop a source's samples: they are no longer current."""

    def newest(self) -> Mapping[str, Sequence[Sample]]:
        """The samples of each source's newest reading, until it is forgotten."""
        return {}


@dataclass(slots=True)
class SourceThread:
    """A source that runs in its own thread."""

    settings: SourceSettings
    node: LocalNode
    owners: Owners
    outlet: Outlet
    say: Callable[[str], object]
    state: Path | None = None
    """The agent's state folder."""
    health: Health = field(default_factory=Health)
    lost: Counter[str] = field(default_factory=Counter)
    _wake: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _stopping: bool = False
    _busy: tuple[float, float] | None = None
    """(monotonic start time, time limit in seconds) of the current call into the source."""
    _is_late: bool = False
    _warned: dict[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The source's id."""
        return self.settings.source.id

    def start(self) -> None:
        """Start the thread if the source is on and not running."""
        if self.settings.on and not self.is_alive:
            self.health = Health()
            self._thread = threading.Thread(target=self._main, name=f"collect-{self.id}", daemon=True)
            self._thread.start()
        elif not self.is_alive:
            self.health = Health("off", f"switched off ({self.settings.origin})")

    @property
    def is_alive(self) -> bool:
        """Whether the thread exists, even if it hangs."""
        return self._thread is not None and self._thread.is_alive()

    def apply(self, settings: SourceSettings) -> None:
        """Use other settings from now on. A source that hangs takes them once it returns."""
        self.settings = settings
        self._wake.set()
        self.start()

    def stop(self) -> None:
        """Stop once the current reading is done; see :meth:`join`."""
        self._stopping = True
        self._wake.set()

    def join(self, within_s: float) -> None:
        """Wait for the thread to end; a hung one is left behind."""
        if self._thread is not None:
            self._thread.join(max(0.0, within_s))

    def watch(self) -> None:
        """Detect that the source hangs. Called regularly from another thread."""
        busy = self._busy
        if busy is not None and not self._is_late and time.monotonic() - busy[0] > busy[1]:
            self._is_late = True
            self._fail("hangs", f"no return from the source for {busy[1]:g} s")

    # -- in the source's thread

    def _main(self) -> None:
        _name_thread(self.id)
        retry_s = MIN_RETRY_S
        while not self._stopping and self.settings.on:
            settings = self.settings
            self._wake.clear()
            collector = self._open(settings)
            if collector is not None:
                begin_s = time.monotonic()
                self._run(collector, settings)
                retry_s = MIN_RETRY_S if time.monotonic() - begin_s > 10 * retry_s else retry_s
            if self.settings is settings and not self._wake.wait(retry_s):
                retry_s = min(2 * retry_s, MAX_RETRY_S)
        self.outlet.forget(self.id)
        if not self.settings.on:
            self.health = Health("off", f"switched off ({self.settings.origin})")

    def _open(self, settings: SourceSettings) -> Collector | None:
        context = Context(self.node, self.owners, settings.options, self.say, self.state, self.outlet.newest)
        self._start_call(max(MIN_OPEN_TIMEOUT_S, settings.timeout_s))
        try:
            return settings.source.open(context)
        except AgentSourceUnavailable as error:
            self._fail("unavailable", error.reason, error.remedy)
        except Exception as error:  # noqa: BLE001  an error of a source must not end its thread
            self._fail("fails", f"it cannot be opened: {_one_line(error)}")
        finally:
            self._end_call()
        return None

    def _run(self, collector: Collector, settings: SourceSettings) -> None:
        """Read at each tick until the source becomes unavailable or its settings change."""
        ticks = Ticks(settings.interval_s, f"{self.node.name}/{self.id}")
        try:
            while not self._stopping and self.settings is settings and self._read(collector, settings):
                self._wake.wait(ticks.until_next())
        finally:
            try:
                collector.close()
            except Exception as error:  # noqa: BLE001
                self.say(f"{self.id}: closing failed: {_one_line(error)}")

    def _read(self, collector: Collector, settings: SourceSettings) -> bool:
        """Read once; False if the source has become unavailable."""
        reading = Reading()
        begin = self._start_call(settings.timeout_s)
        try:
            collector.collect(reading)
        except AgentSourceUnavailable as error:
            self._fail("unavailable", error.reason, error.remedy)
            return False
        except Exception as error:  # noqa: BLE001
            self._fail("fails", _one_line(error))
            return True
        finally:
            late = self._end_call()
        if late:
            reading.samples.clear()  # too old to be sent as current; lines carry their own time
        seconds = time.monotonic() - begin
        if self.health.state not in ("works", "starting"):
            self.say(f"{self.id}: works again")
        self.health = Health("works", seconds=seconds, last_success=time.time())
        self._warn(reading.warnings)
        self.lost.update(reading.lost)
        try:
            if self.outlet.accept(self.id, reading):
                collector.accepted()
        except Exception as error:  # noqa: BLE001
            self._fail("fails", f"its reading cannot be stored: {_one_line(error)}")
        return True

    def _start_call(self, timeout_s: float) -> float:
        self._is_late = False
        begin = time.monotonic()
        self._busy = begin, timeout_s
        return begin

    def _end_call(self) -> bool:
        """Note that the source returned; True if it took too long."""
        self._busy = None
        return self._is_late

    def _fail(self, state: HealthState, reason: str, remedy: str = "") -> None:
        before = self.health
        self.health = replace(before, state=state, reason=reason, remedy=remedy, failures=before.failures + 1)
        self.outlet.forget(self.id)
        if (before.state, before.reason) != (state, reason):
            self.say(f"{self.id}: {state}: {reason}" + (f" ({remedy})" if remedy else ""))

    def _warn(self, warnings: list[str]) -> None:
        now = time.monotonic()
        if len(self._warned) > MAX_WARNINGS:
            self._warned.clear()
        for text in warnings[:MAX_WARNINGS]:
            if now - self._warned.get(text, -REPEAT_S) >= REPEAT_S:
                self._warned[text] = now
                self.say(f"{self.id}: {text}")


class Ticks:
    """Times at a fixed interval on a monotonic clock. The phase within the interval is derived from ``name``, so that
    nodes do not all read and send at the same moment."""

    def __init__(self, interval_s: float, name: str) -> None:
        self._interval_s = interval_s
        self._phase_s = zlib.crc32(name.encode()) / 2**32 * interval_s

    def until_next(self) -> float:
        """Seconds until the next tick; a tick nearer than a quarter interval is skipped, as are missed ones."""
        wait_s = self._interval_s - (time.monotonic() - self._phase_s) % self._interval_s
        return wait_s if wait_s > self._interval_s / 4 else wait_s + self._interval_s


def _name_thread(name: str) -> None:
    """Name the thread for top and ps."""
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name[:15])


def _one_line(error: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
