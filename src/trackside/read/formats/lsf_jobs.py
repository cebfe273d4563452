"""LSF's long listings of jobs: ``bjobs -l``, ``bhist -l`` and ``bacct -l``.

Lines are wrapped at 80 columns, also within a word; 21 blanks begin a continuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trackside.logs.job_report import parse_duration, parse_size, state_of
from trackside.logs.lsf import REASONS
from trackside.model import Position, Record
from trackside.read.batch_jobs import job_record, time_of
from trackside.read.format import Format, InputSource, Match, Result, Sink, give

INDENT = " " * 21
MAX_STATEMENT_CHARS = 20_000
_BEGIN = re.compile(r"^Job <(?P<job>\d{1,12})(?:\[(?P<index>\d{1,9})\])?>, ")
_STATEMENT = re.compile(
    r"^(?P<stamp>[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d(?::\d\d)?(?: 20\d\d)?): (?P<text>.*)"
)
_STARTED = re.compile(r"^(?:\[\d+\] )?(?:[Ss]tarted|[Dd]ispatched|Starting)\b")
_HOSTS = re.compile(r"<(?:\d{1,5}\*)?([\w.-]{1,120})>")
_EXIT = re.compile(
    r"\b(?:Exited with exit code (?P<code>\d{1,3})|Exited by (?:LSF )?signal (?P<signal>\d{1,2})"
    r"|(?P<done>Done successfully|Completed <done>)"
    r"|(?P<over>Completed <exit>|Exited\b))"
)
_TERM = re.compile(r"\bTERM_([A-Z_]{3,24})\b")
_KILLED_BY = re.compile(r"(?:requested|issued) by user(?: or administrator)? <([^>]{1,80})>")
_STATES = {
    "RUN": "RUNNING",
    "PEND": "PENDING",
    "PSUSP": "PENDING",
    "WAIT": "PENDING",
    "PROV": "PENDING",
    "USUSP": "SUSPENDED",
    "SSUSP": "SUSPENDED",
    "DONE": "COMPLETED",
    "EXIT": "FAILED",
}


@dataclass(slots=True)
class _Listing:
    """One job: its first line, and its unwrapped lines."""

    position: Position
    lines: list[str] = field(default_factory=list)


def _sniff(source: InputSource) -> Match | None:
    lines = [line[:200] for line in source.text.splitlines()[:200]]
    begin = next((index for index, line in enumerate(lines[:60]) if _BEGIN.match(line)), None)
    if begin is None:
        return None
    # Only a listing's own text may stand above: an error message, bacct's heading.
    if any(
        line.strip() and not re.match(r"\s*- |-{20,}|Accounting information about|Summary of|[$#%>] ", line)
        for line in lines[:begin]
    ):
        return None
    if not any(_STATEMENT.match(line) for line in lines[begin : begin + 60]):
        return None
    return Match(0.96, "bjobs -l, bhist -l or bacct -l")


def _read(source: InputSource, sink: Sink) -> Result:
    listings = _listings(source.lines(), source.path)
    count = give((_record(listing, source.modified) for listing in listings), sink)
    return Result(count) if count else Result(0, "empty", "no job")


def _listings(lines: Iterable[tuple[int, int, str]], path: str) -> Iterator[_Listing]:
    listing: _Listing | None = None
    for number, offset, text in lines:
        if _BEGIN.match(text):
            if listing is not None:
                yield listing
            listing = _Listing(Position(path, number, offset, len(text.encode())), [text])
        elif listing is None:
            continue
        elif text.startswith(INDENT) and listing.lines[-1].strip():
            if len(listing.lines[-1]) < MAX_STATEMENT_CHARS:
                listing.lines[-1] += text[len(INDENT) :]
        else:
            listing.lines.append(text)
    if listing is not None:
        yield listing


def _record(listing: _Listing, written: float | None) -> Record:
    head = listing.lines[0]
    begin = _BEGIN.match(head)
    fields: dict[str, Any] = {
        "name": _value(head, "Job Name"),
        "user": _value(head, "User"),
        "partition": _value(head, "Queue"),
        "command": _value(head, "Command"),
    }
    state = _STATES.get(_value(head, "Status") or "")
    term = killed_by = code = signal = None
    started = ended = False
    for index, text in enumerate(listing.lines):
        if (name := text.strip()) in ("RUNLIMIT", "MEMLIMIT"):
            limit = next((line.strip() for line in listing.lines[index + 1 : index + 3] if line.strip()), "")
            fields["time_limit_s" if name == "RUNLIMIT" else "req_mem_bytes"] = (
                _minutes(limit) if name == "RUNLIMIT" else parse_size(limit)
            )
        statement = _STATEMENT.match(text)
        if statement is None:
            continue
        time, message = time_of(statement["stamp"], written), statement["text"]
        if message.startswith("Submitted from"):
            fields["submit"] = time
            fields["std_out"] = _value(message, "Output File")
            fields["work_dir"] = _value(message, "CWD")
        elif _STARTED.match(message):
            started, ended = True, False
            fields["start"] = time
            hosts = _HOSTS.findall(re.split(r", (?:Allocated|Execution|Effective)", message, maxsplit=1)[0])
            fields["nodes"] = tuple(dict.fromkeys(hosts)) or fields.get("nodes", ())
        elif match := _EXIT.search(message):
            ended = True
            fields["end"] = time
            code = int(match["code"]) if match["code"] else 0 if match["done"] else code
            signal = int(match["signal"]) if match["signal"] else signal
        by, reason = _KILLED_BY.search(message), _TERM.search(message)
        killed_by = by[1] if by else killed_by
        term = reason[1] if reason else term
    if ended:
        state = state_of(REASONS.get(term or ""), code, signal) or "FAILED"
    elif state is None:
        state = "RUNNING" if started else "PENDING"
    if state == "CANCELLED":
        owner = fields["user"] if term in ("OWNER", "FORCE_OWNER") else None
        fields["cancelled_by"] = killed_by or owner
    if isinstance(fields.get("start"), float) and isinstance(fields.get("end"), float):
        fields["elapsed_s"] = fields["end"] - fields["start"]
    id_ = "" if begin is None else begin["job"] + (f"_{begin['index']}" if begin["index"] else "")
    reason_text = f"TERM_{term}" if term else None
    text = f"{head[:200]} {reason_text or ''}"
    return job_record(
        listing.position, text, "lsf", id_, state=state, exit_code=code, signal=signal, reason=reason_text, **fields
    )


def _value(text: str, name: str) -> str | None:
    match = re.search(rf"(?:^|[,;] ){name} <([^>]{{1,4000}})>", text)
    return match[1] if match else None


def _minutes(text: str) -> float | None:
    """``1440.0 min of n1``, ``24.0 hour`` in seconds."""
    value = parse_duration(text)
    return None if value is None else value * (3600 if "hour" in text else 60)


FORMAT = Format("lsf-jobs", "LSF jobs (bjobs -l, bhist -l, bacct -l)", "scheduler", _sniff, _read)
