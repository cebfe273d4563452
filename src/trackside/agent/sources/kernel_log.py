"""The kernel's messages as lines: Xids, out-of-memory kills, hung tasks, storage and link errors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trackside.agent.kernel.journal import Journal, KernelPosition, load_position
from trackside.agent.kernel.line_selection import KernelLinePolicy, select_lines
from trackside.agent.kernel.neighbors import lines_of_other_nodes, shares_machine
from trackside.agent.kernel.ring import KernelClock, KernelRecord, Ring
from trackside.agent.preferred_source import KERNEL_LOG
from trackside.agent.rate_limit import RateLimit
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading
from trackside.agent.state import replace_file
from trackside.settings.bounds import check_at_least

MAX_RECORDS = 20_000
"""Maximum per reading; the next reading continues from there."""
_REMEDY = (
    "run the agent as root or with CAP_SYSLOG (AmbientCapabilities=CAP_SYSLOG), in a container with the host's"
    " /dev/kmsg; or add its user to the group systemd-journal"
)


@dataclass(frozen=True, slots=True)
class KernelLogOptions:
    """``policy``: send all lines, or only those that Trackside parses. ``lines_per_s``, ``burst``: rate limit; parsed
    lines have priority. ``look_back_s``: how far back to start if no earlier agent has saved its position."""

    policy: KernelLinePolicy = "all"
    lines_per_s: float = 100.0
    burst: int = 5000
    look_back_s: float = 3600.0
    journalctl: str = "journalctl"

    def __post_init__(self) -> None:
        check_at_least(0, self, "lines_per_s", "look_back_s")
        check_at_least(1, self, "burst")


class RingReader:
    """Lines of the kernel's ring buffer, with wall-clock time."""

    def __init__(self, path: Path, boot: str, position: KernelPosition, look_back_s: float) -> None:
        """Raises OSError."""
        start = position if boot and position.boot == boot else KernelPosition()
        self._boot = boot
        self._clock = KernelClock(start.base_ns, start.drift_ns)
        # If the node rebooted since an earlier agent's last reading, everything in the ring is new.
        self._oldest_ns = 0 if position.boot else self._clock.now_ns() - int(look_back_s * 1e9)
        self._ring = Ring(path, start.sequence)

    def read(self, reading: Reading) -> list[tuple[int, str]]:
        """(POSIX nanoseconds, text) since the last call. Raises AgentSourceUnavailable."""
        clock, records = self._clock, list[KernelRecord]()
        clock.begin_read()
        try:
            records.extend(self._ring.records(MAX_RECORDS))
        except OSError as error:
            if not records:
                raise AgentSourceUnavailable(
                    f"the kernel's ring buffer can no longer be read: {error.strerror}"
                ) from error
        if records:
            clock.correct(records[0].time_us, records[-1].time_us)
        timed = ((clock.time_ns(record.time_us), record) for record in records)
        lines = [(time_ns, line) for time_ns, record in timed if time_ns >= self._oldest_ns for line in record.lines]
        if len(records) < MAX_RECORDS:
            clock.end_read()
            self._oldest_ns = 0
        if self._ring.lost:
            reading.lost["lines"] += self._ring.lost
            reading.warnings.append(f"{self._ring.lost} kernel messages were overwritten before they were read")
            self._ring.lost = 0
        return lines

    def position(self) -> KernelPosition:
        """The position to resume from."""
        if not self._boot or self._ring.last_sequence < 0:
            return KernelPosition()
        return KernelPosition(
            boot=self._boot,
            sequence=self._ring.last_sequence,
            base_ns=self._clock.base_ns,
            drift_ns=self._clock.drift_ns,
        )

    def close(self) -> None:
        self._ring.close()


class _KernelLog(Collector):
    def __init__(self, context: Context) -> None:
        self._options = context.options
        self._rate_limit = RateLimit(self._options.lines_per_s, self._options.burst)
        self._file = None if context.state is None else context.state / "kernel_log.json"
        self._saved = KernelPosition() if self._file is None else load_position(self._file)
        self._reader = _reader(context, self._saved)
        self._node = context.node

    def collect(self, reading: Reading) -> None:
        if failure := self._save_position():  # the runner has stored what earlier readings returned
            reading.warnings.append(failure)
        lines = self._reader.read(reading)
        if any(text.startswith("oom-kill:") for _, text in lines) and shares_machine(self._node.sys, self._node.name):
            excluded = lines_of_other_nodes([text for _, text in lines], self._node.name)
            lines = [line for index, line in enumerate(lines) if index not in excluded]
        if not lines:
            return
        indices, left_out = select_lines(
            [text for _, text in lines], self._options.policy, self._rate_limit, time.monotonic()
        )
        for index in indices:
            time_ns, text = lines[index]
            reading.line(text, time_ns, unit="kernel")
        if left_out:
            reading.lost["lines"] += left_out
            reading.warnings.append(f"{left_out} kernel lines were dropped because of the limit lines_per_s")

    def _save_position(self) -> str:
        """Save the position; the error if it could not be written, else empty."""
        position = self._reader.position()
        if self._file is not None and position not in (KernelPosition(), self._saved):
            try:
                replace_file(self._file, msgspec.json.encode(position))
            except OSError as error:
                return f"{self._file} cannot be written: {error.strerror}"
            self._saved = position
        return ""

    def close(self) -> None:
        self._save_position()
        self._reader.close()


def _reader(context: Context, position: KernelPosition) -> RingReader | Journal:
    """The ring buffer, else the journal. Raises AgentSourceUnavailable."""
    options, ring = context.options, context.node.dev / "kmsg"
    try:
        boot = (context.node.proc / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        boot = ""
    try:
        return RingReader(ring, boot, position, options.look_back_s)
    except OSError as error:
        reason = f"{ring} cannot be read: {error.strerror}"
    try:
        journal = Journal(options.journalctl, position, options.look_back_s)
    except AgentSourceUnavailable as error:
        raise AgentSourceUnavailable(f"{reason}, and {error.reason}", _REMEDY) from None
    context.say(f"{reason}; kernel messages are read from the journal instead")
    return journal


SOURCE = AgentSource(
    id=KERNEL_LOG,
    title="kernel messages",
    open=_KernelLog,
    lines="kernel messages, with unit=kernel",
    interval_s=2.0,
    needs="CAP_SYSLOG, or the group systemd-journal",
    options=KernelLogOptions,
)
