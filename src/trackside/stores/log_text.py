"""An entry of a log store as lines of a log file.

What the store keeps beside a line is written before it, the way that collectors write it into files: before a job's
lines what a container runtime puts there (time, ``stdout`` or ``stderr``, ``F``), which the log scan takes off again;
before those of a node's system what syslog does (time, host, program).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from trackside.catalog.streams import DAEMONS, identifying_labels, label_value, stream_path, tag_of
from trackside.stores.log_store import Line, stamp

Written = tuple[str, str]
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
_WORDS = ("log", "message", "msg", "MESSAGE")
"""Members of a collector's envelope that may hold the line."""
_ENVELOPE = re.compile(
    r"log|message|msg|stream|time|timestamp|@timestamp|@version|_p|logtag|tag|tags|kubernetes|docker|container\w*"
    r"|host|hostname|agent|ecs|input|event|fields|file|filename|path|source|source_type|offset|_{0,2}[A-Z][A-Z0-9_]*"
)
"""Members that collectors add. A line with any other is a program's own JSON, and stays as it is."""


def written_lines(entry: Line, site: Mapping[str, str] | None = None, path: str = "") -> Iterator[Written]:
    """The lines of an entry as a log file has them, each with its end, and the path of the log that it is of.

    ``path``: that of the entry's stream, where it is known; a Slurm daemon's lines in a system log are of another.
    """
    site = site or {}
    text, labels = _unwrapped(entry.text, entry.labels)
    path = path or stream_path(labels, site)
    manner = _manner(identifying_labels(labels, site), tuple(site.items()))
    time = stamp(entry.time_ns)
    of_node = path.startswith("nodes/")
    for part in text.removesuffix("\n").split("\n"):
        part = part.removesuffix("\r")
        yield _of_node(time, part, manner, path) if of_node else (path, _of_output(time, part, manner))


class _Manner(NamedTuple):
    """How the lines of a stream are written."""

    stream: str
    node: str
    tag: str


@lru_cache(maxsize=1 << 12)
def _manner(labels: tuple[tuple[str, str], ...], site: tuple[tuple[str, str], ...]) -> _Manner:
    own, theirs = dict(labels), dict(site)
    stream = "stderr" if label_value("stream", own, theirs) == "stderr" else "stdout"
    return _Manner(stream, label_value("node", own, theirs) or "localhost", tag_of(own, theirs))


def _of_output(time: str, text: str, manner: _Manner) -> str:
    """A line of a program's output after the time that the store has for it.

    A time of its own that tells its zone is surer than when a collector took the line, so it stays alone. One without a
    zone is not: nothing says where its clock stood, and the store's is UTC; the first on a line is what counts.
    """
    return f"{text}\n" if _ZONED.match(text) else f"{time} {manner.stream} F {text}\n"


def _of_node(time: str, text: str, manner: _Manner, path: str) -> Written:
    """A line of a node's program as syslog writes it, with a time that has year and zone."""
    if found := _ZONED_SYSLOG.match(text):
        return _log_of(found["tag"], path), f"{text}\n"
    if found := _SYSLOG.match(text):
        return _log_of(found["tag"], path), f"{time} {text[found.start('rest') :]}\n"
    return _log_of(manner.tag, path), f"{time} {manner.node} {manner.tag}: {text}\n"


def _log_of(tag: str, path: str) -> str:
    """The log of the program that wrote a line, in the folder of its node."""
    return f"{path.rpartition('/')[0]}/{tag}.log" if tag in DAEMONS else path


def _unwrapped(text: str, labels: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """A line without the JSON that a collector put around it, whose other words join the labels."""
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return text, labels
    try:
        members: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text, labels
    inner = next((members[word] for word in _WORDS if isinstance(members.get(word), str)), None)
    if inner is None or not all(_ENVELOPE.fullmatch(name) for name in members):
        return text, labels
    more = {name: value for name, value in members.items() if isinstance(value, str) and name not in _WORDS}
    return inner, {**more, **labels}
