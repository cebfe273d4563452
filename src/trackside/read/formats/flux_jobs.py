"""Flux: a job's event log, ``flux job eventlog`` as JSON lines or as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from trackside.catalog.slurm.values import dig, number, vocabulary
from trackside.logs.flux import reason_of
from trackside.logs.job_report import state_of
from trackside.model import Position
from trackside.read.batch_jobs import job_record
from trackside.read.format import Format, InputSource, Match, Result, Sink

_TEXT = re.compile(r"^(?P<time>\d{9,11}\.\d{1,6}) (?P<name>[a-z][\w.-]{2,40})(?P<context>(?: \w+=.*)?)$")
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.){0,2000}"|\{.{0,2000}\}|\S+)')
_NAMES = vocabulary("submit validate depend priority alloc start finish release free clean exception")


def _sniff(source: InputSource) -> Match | None:
    events = [event for line in source.text.splitlines()[:40] if line.strip() and (event := _event(line))]
    lines = [line for line in source.text.splitlines()[:40] if line.strip()]
    names = {str(event["name"]) for event in events}
    return Match(0.95, "flux job eventlog") if len(events) == len(lines) and len(names & _NAMES) >= 2 else None


def _event(line: str) -> Mapping[str, Any] | None:
    """Time, name and context of an event; None if the line is no event."""
    if line.startswith("{"):
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            return None
        return event if isinstance(event, dict) and {"timestamp", "name"} <= event.keys() else None
    match = _TEXT.match(line)
    if match is None:
        return None
    context = {key: value.strip('"') for key, value in _PAIR.findall(match["context"])}
    return {"timestamp": float(match["time"]), "name": match["name"], "context": context}


def _read(source: InputSource, sink: Sink) -> Result:
    fields: dict[str, Any] = {"state": "PENDING"}
    position, text, reason = Position(source.path, 1), "", None
    count = 0
    for line_number, offset, line in source.lines():
        event = _event(line)
        if event is None:
            continue
        count += 1
        context, now = event.get("context") or {}, event["timestamp"]
        now = float(now) if isinstance(now, (int, float)) else None
        name = event["name"]
        if name == "submit":
            fields["submit"] = now
        elif name == "start":
            fields |= {"start": now, "zoned": True, "state": "RUNNING"}
        elif name == "finish":
            status = number(dig(context, "status")) or 0
            fields |= {"end": now, "exit_code": status >> 8 & 0xFF, "signal": status & 0x7F}
            fields["state"] = state_of(reason, fields["exit_code"], fields["signal"])
        elif name == "exception" and number(dig(context, "severity")) == 0:
            reason = reason_of(str(dig(context, "type")), str(dig(context, "note") or "")) or "other"
            fields |= {"state": state_of(reason, None), "reason": dig(context, "note"), "end": now}
            if reason == "cancelled" and dig(context, "userid") is not None:
                fields["cancelled_by"] = str(dig(context, "userid"))
        else:
            continue
        position, text = Position(source.path, line_number, offset, len(line.encode())), line
    if not count:
        return Result(0, "empty", "no event")
    sink.record(job_record(position, text, "flux", "", **fields))
    return Result(1)


FORMAT = Format("flux-eventlog", "Flux job events (flux job eventlog)", "scheduler", _sniff, _read)
