"""The kernel's messages as lines: Xid, memory kills, hung tasks, storage and links tell of themselves there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trackside.agent.kernel.choice import Allowance, Policy, chosen
from trackside.agent.kernel.journal import Journal, Position, recall
from trackside.agent.kernel.neighbours import is_one_of_several, of_others
from trackside.agent.kernel.ring import KernelClock, Record, Ring
from trackside.agent.source import Collector, Context, Reading, Source, Unavailable
from trackside.agent.state import remember
from trackside.agent.taken_over import KERNEL_LOG

MOST_RECORDS = 20_000
"""Of one reading; the next goes on from there."""
_REMEDY = (
    "run it as root or with CAP_SYSLOG (AmbientCapabilities=CAP_SYSLOG), in a container with the host's /dev/kmsg; or"
    " put its user in the group systemd-journal"
)


@dataclass(frozen=True, slots=True)
class Options:
    """``policy``: all lines, or only those that Trackside reads. ``lines_per_s``, ``burst``: how many are sent, those
    that it reads first. ``look_back_s``: how far back it begins where nothing tells how far an earlier agent came."""

    policy: Policy = "all"
    lines_per_s: float = 100.0
    burst: int = 5000
    look_back_s: float = 3600.0
    journalctl: str = "journalctl"

    def __post_init__(self) -> None:
        if self.lines_per_s < 0 or self.burst < 1 or self.look_back_s < 0:
            raise ValueError("lines_per_s and look_back_s can't be negative, and burst must be 1 at least")


class RingReader:
    """Lines of the ring, with the time of day."""

    def __init__(self, path: Path, boot: str, position: Position, look_back_s: float) -> None:
        """Raises OSError."""
        known = position if boot and position.boot == boot else Position()
        self._boot = boot
        self._clock = KernelClock(known.base_ns, known.drift_ns)
        # After a reboot since an earlier agent's last reading all of the ring is new.
        self._oldest_ns = 0 if position.boot else self._clock.now_ns() - int(look_back_s * 1e9)
        self._ring = Ring(path, known.sequence)

    def read(self, reading: Reading) -> list[tuple[int, str]]:
        """(POSIX nanoseconds, text) since the last time. Raises Unavailable."""
        clock, records = self._clock, list[Record]()
        clock.look()
        try:
            records.extend(self._ring.records(MOST_RECORDS))
        except OSError as error:
            if not records:
                raise Unavailable(f"the kernel's ring can't be read any more: {error.strerror}") from error
        if records:
            clock.fit(records[0].time_us, records[-1].time_us)
        timed = ((clock.time_ns(record.time_us), record) for record in records)
        found = [(time_ns, line) for time_ns, record in timed if time_ns >= self._oldest_ns for line in record.lines]
        if len(records) < MOST_RECORDS:
            clock.emptied()
            self._oldest_ns = 0
        if self._ring.lost:
            reading.lost["lines"] += self._ring.lost
            reading.warnings.append(f"{self._ring.lost} kernel messages were overwritten before they were read")
            self._ring.lost = 0
        return found

    def position(self) -> Position:
        """Where to go on."""
        if not self._boot or self._ring.last < 0:
            return Position()
        return Position(
            boot=self._boot, sequence=self._ring.last, base_ns=self._clock.base_ns, drift_ns=self._clock.drift_ns
        )

    def close(self) -> None:
        self._ring.close()


class _KernelLog(Collector):
    def __init__(self, context: Context) -> None:
        self._options = context.options
        self._allowance = Allowance(self._options.lines_per_s, self._options.burst)
        self._file = None if context.state is None else context.state / "kernel_log.json"
        self._kept = Position() if self._file is None else recall(self._file)
        self._reader = _reader(context, self._kept)
        self._node = context.node

    def collect(self, reading: Reading) -> None:
        if failure := self._remember():  # what was handed over before is in the runner's hands by now
            reading.warnings.append(failure)
        lines = self._reader.read(reading)
        if any(text.startswith("oom-kill:") for _, text in lines) and is_one_of_several(
            self._node.sys, self._node.name
        ):
            others = of_others([text for _, text in lines], self._node.name)
            lines = [line for place, line in enumerate(lines) if place not in others]
        if not lines:
            return
        places, left_out = chosen([text for _, text in lines], self._options.policy, self._allowance, time.monotonic())
        for place in places:
            time_ns, text = lines[place]
            reading.line(text, time_ns, unit="kernel")
        if left_out:
            reading.lost["lines"] += left_out
            reading.warnings.append(f"{left_out} kernel lines were left out: more than lines_per_s allows")

    def _remember(self) -> str:
        """Gives why it could not be written; empty: it was, or need not be."""
        position = self._reader.position()
        if self._file is not None and position not in (Position(), self._kept):
            try:
                remember(self._file, msgspec.json.encode(position))
            except OSError as error:
                return f"{self._file} can't be written: {error.strerror}"
            self._kept = position
        return ""

    def close(self) -> None:
        self._remember()
        self._reader.close()


def _reader(context: Context, position: Position) -> RingReader | Journal:
    """The ring, else the journal. Raises Unavailable."""
    options, ring = context.options, context.node.dev / "kmsg"
    try:
        boot = (context.node.proc / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        boot = ""
    try:
        return RingReader(ring, boot, position, options.look_back_s)
    except OSError as error:
        why = f"{ring} can't be read: {error.strerror}"
    try:
        found = Journal(options.journalctl, position, options.look_back_s)
    except Unavailable as error:
        raise Unavailable(f"{why}, and {error.reason}", _REMEDY) from None
    context.say(f"{why}; the kernel's messages are read from the journal")
    return found


SOURCE = Source(
    id=KERNEL_LOG,
    title="the kernel's messages",
    open=_KernelLog,
    lines="what the kernel says, with unit=kernel",
    interval_s=2.0,
    needs="CAP_SYSLOG, or the group systemd-journal",
    options=Options,
)
