"""Writes an entry of a log store as lines of a log file.

Facts that the store keeps outside the text are written before it, in the formats of collectors: for a job's lines that
of container runtimes (time, ``stdout`` or ``stderr``, ``F``), which the log scan removes again; for a node's system
that of syslog (time, host, program).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from trackside.catalog.streams import DAEMONS, identifying_labels, label_value, stream_path, tag_of
from trackside.stores.log_store import LogEntry, stamp

WrittenLine = tuple[str, str]
"""(path, text) of one line of a log."""

_ZONED = re.compile(r"\[?20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z\b|[+-]\d\d:?\d\d(?!\d))")
_PRIORITY = r"(?:<\d{1,3}>1? ?)?"
_HOST_AND_TAG = r"[\w.:-]{1,255} (?P<tag>[\w./@() -]{1,80}?)(?:\[\d{1,10}\])?(?::| - - | \d+ - )"
_SYSLOG = re.compile(
    _PRIORITY + r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?(?: 20\d\d)? (?P<rest>" + _HOST_AND_TAG + ")"
)
_ZONED_SYSLOG = re.compile(
    _PRIORITY + r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d) " + _HOST_AND_TAG
)
_MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE")
"""Keys of a collector's envelope that may hold the line."""
_ENVELOPE = re.compile(
    r"log|message|msg|stream|time|timestamp|@timestamp|@version|_p|logtag|tag|tags|kubernetes|docker|container\w*"
    r"|host|hostname|agent|ecs|input|event|fields|file|filename|path|source|source_type|offset|_{0,2}[A-Z][A-Z0-9_]*"
)
"""Keys that collectors add. A line with any other key is a program's own JSON, and stays unchanged."""


def log_lines(entry: LogEntry, site_labels: Mapping[str, str] | None = None, path: str = "") -> Iterator[WrittenLine]:
    """The lines of an entry as in a log file, each with its line end, and the path of its log.

    ``site_labels``: the site's label -> what it holds. ``path``: that of the entry's stream, if known; a Slurm daemon's
    lines in a system log get another.
    """
    site_labels = site_labels or {}
    text, labels = _unwrap(entry.text, entry.labels)
    path = path or stream_path(labels, site_labels)
    style = _line_style(identifying_labels(labels, site_labels), tuple(site_labels.items()))
    time = stamp(entry.time_ns)
    of_node = path.startswith("nodes/")
    for part in text.removesuffix("\n").split("\n"):
        part = part.removesuffix("\r")
        yield _node_line(time, part, style, path) if of_node else (path, _output_line(time, part, style))


class _LineStyle(NamedTuple):
    """How the lines of a stream are written."""

    stream: str
    node: str
    tag: str


@lru_cache(maxsize=1 << 12)
def _line_style(labels: tuple[tuple[str, str], ...], site_pairs: tuple[tuple[str, str], ...]) -> _LineStyle:
    own_labels, site_labels = dict(labels), dict(site_pairs)
    stream = "stderr" if label_value("stream", own_labels, site_labels) == "stderr" else "stdout"
    return _LineStyle(
        stream, label_value("node", own_labels, site_labels) or "localhost", tag_of(own_labels, site_labels)
    )


def _output_line(time: str, text: str, style: _LineStyle) -> str:
    """A line of a program's output after the time that the store has for it.

    If the line begins with a time that has a zone, it stays unchanged, because that time is more accurate than the
    collector's. A time without a zone is ambiguous, while the store's is UTC; the first time on a line counts.
    """
    return f"{text}\n" if _ZONED.match(text) else f"{time} {style.stream} F {text}\n"


def _node_line(time: str, text: str, style: _LineStyle, path: str) -> WrittenLine:
    """A line of a node's program in syslog format, with a time that has year and zone."""
    if match := _ZONED_SYSLOG.match(text):
        return _daemon_log(match["tag"], path), f"{text}\n"
    if match := _SYSLOG.match(text):
        return _daemon_log(match["tag"], path), f"{time} {text[match.start('rest') :]}\n"
    return _daemon_log(style.tag, path), f"{time} {style.node} {style.tag}: {text}\n"


def _daemon_log(tag: str, path: str) -> str:
    """The log of the program that wrote a line, in the folder of its node."""
    return f"{path.rpartition('/')[0]}/{tag}.log" if tag in DAEMONS else path


def _unwrap(text: str, labels: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """A line without the JSON envelope of a collector, whose other keys are added to the labels."""
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return text, labels
    try:
        members: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text, labels
    inner = next((members[key] for key in _MESSAGE_KEYS if isinstance(members.get(key), str)), None)
    if inner is None or not all(_ENVELOPE.fullmatch(name) for name in members):
        return text, labels
    extra_labels = {
        name: value for name, value in members.items() if isinstance(value, str) and name not in _MESSAGE_KEYS
    }
    return inner, {**extra_labels, **labels}
