"""An event as one line of text, where the line that it was read from stays on its node.

    trackside-event {"kind": "exception", "line": 812, "fields": {"type": "ValueError", "about": "application"}, ...}

Of its fields, figures go along, and those words that are a library's or Slurm's and none of the job's: class names, but no
message; reasons, but no path, no command and no line of code. What may go is listed here; anything else stays.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trackside.catalog.events import EVENTS
from trackside.logs.stamp import find_time
from trackside.model import Event, Plane, Position, Role, Scalar

MARK = "trackside-event "
WITHHELD = "(withheld: no text leaves the node)"
"""Stands where a message or the place in the code would."""
PULSE = "pulse"
"""A line that tells only how far the output went."""
WORDS = frozenset(
    (
        "about", "address", "backend", "busid", "chain", "code", "comm", "cgroup", "core", "device", "framework", "gpu",
        "group", "host", "job", "last_completed", "last_enqueued", "launcher", "library", "metric", "missing_ranks", "name",
        "node", "nodes", "objective", "op", "phase", "pid", "reason", "root_type", "scope", "severity", "signal_name",
        "source", "split", "state", "status", "step", "task", "throughput_unit", "top", "transport", "type", "collective",
    )
)  # fmt: skip
"""Fields that hold words of a closed set, or names of classes, nodes and processes."""
_ALSO = frozenset(
    (("python_fatal", "what"), ("scheduler_notice", "by"), ("env_flag", "value"), ("signal_received", "by"),
     ("heartbeat_lost", "what"), ("checkpoint_missing", "what"), ("resume_requested", "by"))
)  # fmt: skip
"""(kind, field) of others that do."""
_SPOKEN = frozenset(("scheduler_notice",))
"""Kinds whose lines are Slurm's own."""
_NEEDED: Mapping[str, tuple[str, ...]] = {"exception": ("message", "root_message", "user_frame", "frame")}
"""Fields that stand as WITHHELD where the event had them."""
_PLAIN = re.compile(r"[\w.:;,@+\-\[\]()/=* ]{1,200}")
_WORD = re.compile(r"[\w.-]{1,40}")
_UNFINITE = frozenset(("nan", "inf", "-inf"))
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Pulse:
    """How many lines and bytes of output there were until then."""

    lines: int
    bytes: int


def written(event: Event) -> str:
    """The line of an event."""
    fields = {
        name: kept for name, value in event.fields.items() if (kept := _kept(event.kind, name, value)) is not None
    }
    fields |= dict.fromkeys((name for name in _NEEDED.get(event.kind, ()) if event.fields.get(name)), WITHHELD)
    place = {"time": event.time, "rank": event.rank, "node": event.node}
    told: dict[str, Any] = {"kind": event.kind, "line": event.at.line, "parser": event.parser, "role": event.role.value}
    told |= {name: value for name, value in place.items() if value is not None}
    told["fields"] = fields
    if event.kind in _SPOKEN:
        told["text"] = event.text[:400]
    return MARK + json.dumps(told, ensure_ascii=True)


def pulse(lines: int, size: int) -> str:
    """The line that tells how much output there was."""
    return MARK + json.dumps({"kind": PULSE, "lines": lines, "bytes": size})


def _kept(kind: str, name: str, value: Scalar) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        return value
    if (kind, name) == ("host", "command"):
        return value if _WORD.fullmatch(value) else None
    if name in WORDS or (kind, name) in _ALSO:
        return value if _PLAIN.fullmatch(value) else None
    return _SHARED_MEMORY if name == "path" and value.startswith(_SHARED_MEMORY) else None


def read(text: str, at: Position, plane: Plane = "log", before: str = "") -> Event | Pulse | None:
    """What such a line says; None for one that says nothing that is known. ``before``: what a collector put before it,
    which gives the time where the event has none of its own."""
    try:
        told = json.loads(text.removeprefix(MARK))
        kind, fields = told["kind"], told.get("fields", {})
        if kind == PULSE:
            return Pulse(int(told["lines"]), int(told["bytes"]))
        known = EVENTS.get(kind)
        if known is None or plane not in known.planes or not isinstance(fields, dict):
            return None
        time, rank, node = told.get("time"), told.get("rank"), told.get("node")
        return Event(
            kind,
            at,
            plane,
            text=str(told.get("text", "")),
            time=float(time) if isinstance(time, (int, float)) else find_time(before),
            rank=int(rank) if isinstance(rank, int) else None,
            node=str(node) if node is not None else None,
            role=Role(told.get("role", "fact")),
            parser=str(told.get("parser", "")),
            fields={
                str(name): _figure(value)
                for name, value in fields.items()
                if isinstance(value, (str, int, float, bool))
            },
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _figure(value: Scalar) -> Scalar:
    return float(value) if isinstance(value, str) and value in _UNFINITE else value
