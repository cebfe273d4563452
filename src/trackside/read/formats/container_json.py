"""A container's output as JSON lines: Docker's json-file, collectors (Fluent Bit, Filebeat), exports of cloud services.

Each record is passed to the scan as the line that the program printed, after its timestamp, with the line number
that it has in the file.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from dataclasses import dataclass, replace

from trackside.model import Event, Position, Record, Samples
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.job_log import read_log
from trackside.read.pieces import ChunkStream

TEXTS = ("log", "textPayload", "message")
"""Names of the member that holds what was printed."""
TIMES = ("time", "timestamp", "@timestamp", "date")
OTHERS = frozenset(
    {
        "stream",
        "attrs",
        "kubernetes",
        "docker",
        "tag",
        "source",
        "insertId",
        "labels",
        "logName",
        "resource",
        "receiveTimestamp",
        "severity",
        "_p",
        "ingestionTime",
        "logStreamName",
        "eventId",
        "@version",
        "host",
        "file",
        "container",
        "container_id",
        "container_name",
        "pod",
        "namespace",
        "node",
        "agent",
        "ecs",
        "input",
        "offset",
    }
)
"""What collectors add. A record with any other member is a program's own, such as its metrics."""
MIN_SHARE = 0.9
_BREAK = re.compile(r"[\r\n]+")
_FRACTION = re.compile(r"(\.\d{6})\d+")


def _sniff(source: InputSource) -> Match | None:
    if source.head.lstrip()[:1] != b"{":
        return None
    lines = [line for line in source.text.split("\n")[:-1][:200] or [source.text] if line.strip()]
    records = [line for line in lines if _line(line) is not None]
    if not records or len(records) < MIN_SHARE * len(lines):
        return None
    return Match(0.84, "a container's output as JSON lines")


def _read(source: InputSource, sink: Sink) -> Result:
    text = ChunkStream((_line(line) or "").encode("utf-8", "replace") + b"\n" for _, _, line in source.lines())
    return read_log(replace(source, stream=io.BufferedReader(text, 1 << 20)), _WithoutOffsets(sink))


def _line(text: str) -> str | None:
    """The printed line after its timestamp, as a container's runtime writes it; None for another record."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    name = next((name for name in TEXTS if isinstance(record.get(name), str)), None)
    time = next((name for name in TIMES if name in record), None)
    if name is None or time is None or not record.keys() - {name, *TIMES} <= OTHERS:
        return None
    stamp = _iso(record[time])
    stream = "stderr" if record.get("stream") == "stderr" else "stdout"
    printed = _BREAK.sub("\r", record[name].rstrip("\r\n"))
    return None if stamp is None else f"{stamp} {stream} F {printed}"


def _iso(value: object) -> str | None:
    """A record's time in UTC: from a text, or from POSIX seconds or milliseconds."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            time = dt.datetime.fromtimestamp(value / 1000 if value > 1e11 else value, dt.UTC)
        else:
            time = dt.datetime.fromisoformat(_FRACTION.sub(r"\1", str(value)))
            time = time.replace(tzinfo=time.tzinfo or dt.UTC).astimezone(dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class _WithoutOffsets:
    """Passes events on without byte offsets, which would be those of the decoded text."""

    sink: Sink

    def event(self, event: Event) -> None:
        self.sink.event(replace(event, at=Position(event.at.path, event.at.line)))

    def record(self, record: Record) -> None:
        self.sink.record(record)

    def samples(self, samples: Samples) -> None:
        self.sink.samples(samples)


FORMAT = Format("container-json", "a container's output as JSON lines (Docker, collectors)", "log", _sniff, _read)
