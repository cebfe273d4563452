"""What was accepted and waits in memory for a flush: samples by their series, lines by their files."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trackside.stores.embedded.layout import Mark
from trackside.stores.log_store import Line
from trackside.stores.log_text import written_lines
from trackside.stores.receiver.arrivals import Arrivals, Arrived, LabelsOf, MetricBlock, Taken
from trackside.stores.receiver.lines import Rows
from trackside.stores.receiver.options import Limits
from trackside.stores.receiver.write_ahead import Entry

LOG = logging.getLogger("trackside.receiver")
CUT = " [cut here: the line was longer]"


@dataclass(slots=True, eq=False)
class LineStream:
    """Lines of one stream, in the order sent."""

    labels: dict[str, str]
    times_ns: list[int] = field(default_factory=list)
    """Since 1970, one a line; 0 where the sender gave no time."""
    lines: list[str] = field(default_factory=list)


Decoded = MetricBlock | Sequence[LineStream]
"""What a push holds once its bytes are understood."""


@dataclass(slots=True)
class Batch:
    """What one flush writes: all that the log holds up to ``mark``. ``bytes``: of bodies, ``line_bytes``: of lines."""

    arrived: Arrived
    streams: dict[str, Rows]
    line_bytes: int
    mark: Mark
    bytes: int


@dataclass(slots=True)
class Accepted:
    """What was accepted since the start. ``refused``: reason -> samples or lines that are not kept."""

    bodies: int = 0
    samples: int = 0
    lines: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Pending:
    """All that waits, and the place in the log that it reaches to. One thread adds, another drains."""

    def __init__(self, labels_of: LabelsOf, limits: Limits, mark: Mark) -> None:
        self._labels_of, self._limits = labels_of, limits
        self._arrivals = Arrivals(labels_of, limits)
        self._streams: dict[str, Rows] = {}
        self.line_bytes = 0
        """Of the lines that wait."""
        self._streams_met: set[str] = set()
        self._bytes = 0
        self._day = time.time() // 86400
        self._lock = threading.Lock()
        self.mark = self._drained = mark
        self.accepted = Accepted()

    @property
    def samples(self) -> int:
        return self._arrivals.pending

    @property
    def series(self) -> int:
        """Series met today."""
        return len(self._arrivals.series)

    @property
    def streams(self) -> int:
        """Streams of lines met today."""
        return len(self._streams_met)

    def counted(self) -> Accepted:
        """What was accepted, as of one moment."""
        with self._lock:
            return replace(self.accepted, refused=Counter(self.accepted.refused))

    def add(self, bodies: Sequence[tuple[Entry, Decoded]], mark: Mark, limited: bool = True) -> list[Taken | Exception]:
        """Bodies that are in the log up to ``mark``. ``limited``: whether what is new may be refused for its number."""
        with self._lock:
            taken = [self._tried(entry, decoded, limited) for entry, decoded in bodies]
            self.mark = mark
        return taken

    def drained(self) -> Batch | None:
        """All that waits, None where nothing does; once a day, and where there are too many, series are met anew."""
        with self._lock:
            if self.mark == self._drained:
                return None
            batch = Batch(self._arrivals.drained(), self._streams, self.line_bytes, self.mark, self._bytes)
            self._bytes, self._streams, self.line_bytes, self._drained = 0, {}, 0, self.mark
            day = time.time() // 86400
            if day != self._day or self._arrivals.crowded:
                self._arrivals = Arrivals(self._labels_of, self._limits)
            if day != self._day:
                self._streams_met, self._day = set(), day
        return batch

    def _tried(self, entry: Entry, decoded: Decoded, limited: bool) -> Taken | Exception:
        """As :meth:`_applied`; a defect there must not keep others' bodies out."""
        try:
            return self._applied(entry, decoded, limited)
        except Exception as error:
            LOG.exception("a body of %s is in the log and could not be taken; please report it", entry[0].protocol)
            self.accepted.refused["defect"] += 1
            return error

    def _applied(self, entry: Entry, decoded: Decoded, limited: bool) -> Taken:
        """Let the samples or lines of a body that is in the log wait for the next flush."""
        self._bytes += len(entry[1])
        self.accepted.bodies += 1
        if isinstance(decoded, Sequence):
            taken = self._lines_taken(decoded, entry[0].received_ns, limited)
            self.accepted.lines += taken.kept
        else:
            taken = self._arrivals.take(decoded, limited)
            self.accepted.samples += taken.kept
        self.accepted.refused.update(taken.refused)
        return taken

    def _lines_taken(self, streams: Sequence[LineStream], received_ns: int, limited: bool) -> Taken:
        kept, refused, most = 0, 0, self._limits.line_bytes
        for each in streams:
            for time_ns, text in zip(each.times_ns, each.lines, strict=True):
                shown = text if len(text) <= most else text[:most] + CUT
                if self._line_taken(Line(time_ns or received_ns, shown, each.labels), limited):
                    kept += 1
                else:
                    refused += 1
        return Taken(kept, {"streams": refused} if refused else {})

    def _line_taken(self, entry: Line, limited: bool) -> bool:
        """Let an entry wait for its file; False where it would be of one stream too many."""
        texts: dict[str, list[str]] = {}
        for path, line in written_lines(entry):
            texts.setdefault(path, []).append(line)
        for path, pieces in texts.items():
            whole = "".join(pieces)
            if path not in self._streams_met:
                if limited and len(self._streams_met) >= self._limits.streams:
                    return False
                self._streams_met.add(path)
            self._streams.setdefault(path, []).append((entry.time_ns, whole.removesuffix("\n")))
            self.line_bytes += len(whole)
        return True
