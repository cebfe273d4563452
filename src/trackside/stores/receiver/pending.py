"""Accepted data that waits in memory for a flush: samples by series, lines by file."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from trackside.stores.embedded.layout import LogPosition
from trackside.stores.log_store import LogEntry
from trackside.stores.log_text import log_lines
from trackside.stores.receiver.arrivals import ArrivalBatch, Arrivals, IntakeResult, LabelsOf, MetricBlock
from trackside.stores.receiver.lines import StampedLines
from trackside.stores.receiver.options import ReceiverLimits
from trackside.stores.receiver.shares import ACTIVE_S, Shares
from trackside.stores.receiver.write_ahead import Entry, Header

LOG = logging.getLogger("trackside.receiver")
STREAMS, SENDER_STREAMS, JOB_STREAMS = "streams", "streams_of_sender", "streams_of_job"
"""Why lines are dropped: too many streams, in all, of a sender or of a job."""
_EXCESS_REASONS = {"of all": STREAMS, "of the sender": SENDER_STREAMS, "of the job": JOB_STREAMS}
COUNT_INTERVAL_S = 60.0
"""How often streams without recent lines are looked for."""
CUT_NOTE = " [cut here: the line was longer]"


@dataclass(slots=True, eq=False)
class LineStream:
    """Lines of one stream, in the order sent."""

    labels: dict[str, str]
    times_ns: list[int] = field(default_factory=list)
    """Nanoseconds since 1970, one per line; 0 if the sender gave no time."""
    lines: list[str] = field(default_factory=list)


Decoded = MetricBlock | Sequence[LineStream]
"""The content of a push after decoding."""


@dataclass(slots=True)
class FlushBatch:
    """What one flush writes: all that the log holds up to ``mark``. ``bytes``: of bodies, ``line_bytes``: of lines."""

    arrived: ArrivalBatch
    streams: dict[str, StampedLines]
    line_bytes: int
    mark: LogPosition
    bytes: int


@dataclass(slots=True)
class AcceptedTotals:
    """What was accepted since the start. ``refused``: reason -> samples or lines that were dropped."""

    bodies: int = 0
    samples: int = 0
    lines: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class PendingQueue:
    """Everything that waits, and the log position up to which it reaches. One thread adds, another drains."""

    def __init__(self, labels_of: LabelsOf, limits: ReceiverLimits, mark: LogPosition) -> None:
        self._labels_of, self._limits = labels_of, limits
        self._arrivals = Arrivals(labels_of, limits)
        self._streams: dict[str, StampedLines] = {}
        self.line_bytes = 0
        """Bytes of the waiting lines."""
        self._last_line_s: dict[str, float] = {}
        """Stream -> when it last had a line, seconds of a monotonic clock; the one that was silent longest is first."""
        self._shares, self._counted_at = Shares(limits.streams), time.monotonic()
        """Of the streams, and when they were last counted."""
        self._owners: dict[str, tuple[str, str]] = {}
        """Stream -> its sender and job."""
        self._bytes = 0
        self._day = time.time() // 86400
        self._lock = threading.Lock()
        self.mark = self._drained_to = mark
        self.accepted = AcceptedTotals()

    @property
    def samples(self) -> int:
        return self._arrivals.pending

    @property
    def series(self) -> int:
        """Distinct series since they were last counted anew: within a day."""
        return len(self._arrivals.series)

    @property
    def streams(self) -> int:
        """Distinct streams that had lines within the last hour."""
        return len(self._last_line_s)

    def totals(self) -> AcceptedTotals:
        """A consistent copy of the totals."""
        with self._lock:
            return replace(self.accepted, refused=Counter(self.accepted.refused))

    def add(
        self, bodies: Sequence[tuple[Entry, Decoded]], mark: LogPosition, limited: bool = True
    ) -> list[IntakeResult | Exception]:
        """Add bodies that are in the log up to ``mark``. ``limited``: whether new series and streams may be refused for
        their number."""
        with self._lock:
            results = [self._apply_safely(entry, decoded, limited) for entry, decoded in bodies]
            self.mark = mark
        return results

    def drain(self) -> FlushBatch | None:
        """Take out everything that waits; None if nothing does. Once a day, or if there are too many, the series are
        counted anew."""
        with self._lock:
            if self.mark == self._drained_to:
                return None
            batch = FlushBatch(self._arrivals.drain(), self._streams, self.line_bytes, self.mark, self._bytes)
            self._bytes, self._streams, self.line_bytes, self._drained_to = 0, {}, 0, self.mark
            day = time.time() // 86400
            if day != self._day or self._arrivals.has_too_many_keys or self._arrivals.has_old_series:
                self._arrivals, self._day = Arrivals(self._labels_of, self._limits), day
            self._forget_old_streams()
        return batch

    def _forget_old_streams(self) -> None:
        """Stop counting the streams without recent lines."""
        now = time.monotonic()
        if now - self._counted_at < COUNT_INTERVAL_S:
            return
        old = list(takewhile(lambda path: self._last_line_s[path] < now - ACTIVE_S, self._last_line_s))
        for path in old:
            del self._last_line_s[path], self._owners[path]
        self._shares, self._counted_at = Shares(self._limits.streams), now
        for sender, job in self._owners.values():
            self._shares.add(sender, job)

    def _apply_safely(self, entry: Entry, decoded: Decoded, limited: bool) -> IntakeResult | Exception:
        """Like :meth:`_apply`; a defect there must not keep other bodies out."""
        try:
            return self._apply(entry, decoded, limited)
        except Exception as error:
            LOG.exception("a body of %s is in the log and could not be applied; please report it", entry[0].protocol)
            self.accepted.refused["defect"] += 1
            return error

    def _apply(self, entry: Entry, decoded: Decoded, limited: bool) -> IntakeResult:
        """Queue the samples or lines of a body that is in the log for the next flush."""
        self._bytes += len(entry[1])
        self.accepted.bodies += 1
        if isinstance(decoded, Sequence):
            result = self._add_lines(decoded, entry[0], limited)
            self.accepted.lines += result.accepted
        else:
            result = self._arrivals.take(decoded, entry[0].sender, limited)
            self.accepted.samples += result.accepted
        self.accepted.refused.update(result.refused)
        return result

    def _add_lines(self, streams: Sequence[LineStream], header: Header, limited: bool) -> IntakeResult:
        accepted, max_length = 0, self._limits.line_bytes
        refused: Counter[str] = Counter()
        for stream in streams:
            for time_ns, text in zip(stream.times_ns, stream.lines, strict=True):
                shown = text if len(text) <= max_length else text[:max_length] + CUT_NOTE
                entry = LogEntry(time_ns or header.received_ns, shown, stream.labels)
                if reason := self._add_line(entry, header.sender, limited):
                    refused[reason] += 1
                else:
                    accepted += 1
        return IntakeResult(accepted, refused)

    def _add_line(self, entry: LogEntry, sender: str, limited: bool) -> str:
        """Queue an entry for its file; the reason if its stream would exceed a limit."""
        texts: dict[str, list[str]] = {}
        for path, line in log_lines(entry):
            texts.setdefault(path, []).append(line)
        now = time.monotonic()
        for path, pieces in texts.items():
            if self._last_line_s.pop(path, None) is None:
                job = path.partition("/")[0]
                if limited and (excess := self._shares.excess(sender, job)):
                    return _EXCESS_REASONS[excess]
                self._shares.add(sender, job)
                self._owners[path] = sender, job
            self._last_line_s[path] = now
            joined = "".join(pieces)
            self._streams.setdefault(path, []).append((entry.time_ns, joined.removesuffix("\n")))
            self.line_bytes += len(joined)
        return ""
