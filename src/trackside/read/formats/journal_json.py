"""Kernel messages as JSON: ``journalctl -o json`` lines and ``dmesg --json``.

Each message is passed to the scan as the text line that ``journalctl -o short-iso`` would print, with the line number
that it has in the JSON, so that citations point there.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from trackside.logs.line import FileContext
from trackside.logs.scan import scan
from trackside.model import Event, Plane, Position
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.job_log import note_on
from trackside.read.formats.kernel_log import DAEMONS, host_in, node_of
from trackside.read.pieces import ChunkStream

_BREAK = re.compile(r"[\r\n]+")
_MEMBER = re.compile(r'\s*"(time|msg)"\s*:\s*(.*?)\s*,?\s*$')
_DMESG = re.compile(rb'\s*\{\s*"dmesg"\s*:\s*\[')


def _scan(source: InputSource, sink: Sink, lines: Iterable[str], plane: Plane) -> Result:
    def add_event(event: Event) -> None:
        if event.kind == "log_activity" and plane == "kernel":
            event = replace(event, kind="kernel_log")
        position = Position(event.at.path, event.at.line)  # byte offsets would be those of the decoded text
        sink.event(replace(event, at=position, node=host_in(event.text) or event.node))

    # line breaks within a message become carriage returns, so that line numbers stay those of the JSON
    text = ChunkStream(_BREAK.sub("\r", line).encode("utf-8", "replace") + b"\n" for line in lines)
    scratch = FileContext(source.path, plane, node=node_of(source.path))
    stats = scan(io.BufferedReader(text, 1 << 20), add_event, scratch)
    return Result(stats.lines, note=note_on(stats))


# -- journalctl -o json


def _entry(text: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and ("MESSAGE" in entry or "__REALTIME_TIMESTAMP" in entry) else None


def _text(value: object) -> str:
    """The text of a journal field: a string, a list of bytes if it isn't UTF-8, a list of repeats, or null if too
    long."""
    if isinstance(value, list):
        if all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
            return bytes(value).decode("utf-8", "replace")
        return _text(value[0])
    return value if isinstance(value, str) else ""


def _line(entry: dict[str, Any]) -> str:
    stamp = ""
    micros = _text(entry.get("__REALTIME_TIMESTAMP")) or _text(entry.get("_SOURCE_REALTIME_TIMESTAMP"))
    if micros.isdigit() and len(micros) < 18:
        time = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=int(micros))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    host = _text(entry.get("_HOSTNAME")) or "localhost"
    prefix = f"{stamp} {host} {_identifier(entry)}: "
    return "\n".join(prefix + part for part in _text(entry.get("MESSAGE")).splitlines() or [""])


def _identifier(entry: dict[str, Any]) -> str:
    if entry.get("_TRANSPORT") == "kernel":
        return "kernel"
    return _text(entry.get("SYSLOG_IDENTIFIER")) or _text(entry.get("_COMM")) or "unknown"


def _head_entries(source: InputSource) -> list[dict[str, Any]]:
    """The journal entries in the head, if at least 70% of its complete lines are entries; else empty."""
    if not source.head.startswith(b"{"):
        return []
    lines = source.text.splitlines()
    complete_lines = lines[:-1] if len(lines) > 1 else lines
    parsed = [_entry(line) for line in complete_lines if line.strip()]
    entries = [entry for entry in parsed if entry is not None]
    return entries if len(entries) >= 0.7 * len(parsed) else []


def _sniff_kernel(source: InputSource) -> Match | None:
    entries = _head_entries(source)
    kernel = sum(1 for entry in entries if _identifier(entry) == "kernel")
    tags = Counter(_identifier(entry) for entry in entries)
    if not entries or not (kernel or len(tags) >= 3 or any(tag in DAEMONS for tag in tags)):
        return None
    return Match(0.85, f"journal entries; {kernel} of the first {len(entries)} are from the kernel")


def _sniff_service(source: InputSource) -> Match | None:
    return Match(0.84, "journal entries of a service") if _head_entries(source) else None


def _journal(source: InputSource) -> Iterator[str]:
    for _, _, text in source.lines():
        entry = _entry(text)
        yield "" if entry is None else _line(entry)


# -- dmesg --json


def _sniff_dmesg(source: InputSource) -> Match | None:
    return Match(0.9, "dmesg --json") if _DMESG.match(source.head) else None


def _dmesg(source: InputSource) -> Iterator[str]:
    """Yield a text line per line of the file. dmesg prints one member per line, so a truncated file is readable."""
    if b"\n" not in source.head[:200]:
        yield from _compact(source)
        return
    time = ""
    for _, _, text in source.lines():
        match = _MEMBER.match(text)
        value = _json_text(match[2]) if match else ""
        if match and match[1] == "time":
            time = value
        yield _dmesg_line(time, value) if match and match[1] == "msg" else ""


def _compact(source: InputSource) -> Iterator[str]:
    """Yield the messages of a file in one line, as from ``jq -c``; they are cited by ordinal."""
    document_ = json.loads(source.whole().decode("utf-8", "replace"))
    rows = document_.get("dmesg") if isinstance(document_, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            yield _dmesg_line(str(row.get("time", "")), str(row.get("msg", "")))


def _json_text(text: str) -> str:
    try:
        return str(json.loads(text))
    except (ValueError, RecursionError):
        return text.strip('"')


def _dmesg_line(time: str, message: str) -> str:
    return f"{time} {message}" if ":" in time else f"[{time:>12}] {message}"


def _format(
    id_: str,
    title: str,
    plane: Plane,
    sniff: Callable[[InputSource], Match | None],
    lines: Callable[[InputSource], Iterable[str]],
) -> Format:
    return Format(id_, title, plane, sniff, lambda source, sink: _scan(source, sink, lines(source), plane))


FORMATS = (
    _format("journal-json", "journalctl -o json", "kernel", _sniff_kernel, _journal),
    _format("journal-json-service", "journalctl -o json of a service", "log", _sniff_service, _journal),
    _format("dmesg-json", "dmesg --json", "kernel", _sniff_dmesg, _dmesg),
)
