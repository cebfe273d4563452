"""HTCondor: a job's log of events, and the attributes of jobs that ``condor_history -l`` and ``condor_q -l`` print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trackside.catalog.slurm.values import number, vocabulary
from trackside.logs.htcondor import EVENT, hold_reason, job_id
from trackside.logs.job_report import parse_duration, parse_time, state_of
from trackside.model import Position, Record
from trackside.read.batch_jobs import job_record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give

MAX_EVENT_LINES = 200
MAX_JOBS = 100_000
_SLOT = re.compile(r"SlotName: (?:[\w-]{1,60}@)?(?P<host>[\w.-]{1,120})")
_ALIAS = re.compile(r"alias=(?P<host>[\w.-]{1,120})")
_NORMAL = re.compile(r"\(1\) Normal termination \(return value (?P<code>\d{1,5})\)")
_KILLED = re.compile(r"\(0\) Abnormal termination \(signal (?P<signal>\d{1,3})\)")
_BY = re.compile(r"\(by user (?P<user>[\w.@-]{1,80})\)")
_CODE = re.compile(r"^\s*Code (?P<code>\d{1,4}) Subcode", re.MULTILINE)
_MEMORY = re.compile(r"Memory \(MB\)\s*:\s*(?P<used>\d{1,9})\s+(?P<requested>\d{1,9})")
_ATTRIBUTE = re.compile(r"^(?P<key>[A-Z]\w{2,60}) = (?P<value>.*)$")
_OWN_KEYS = vocabulary("ClusterId ProcId JobStatus Owner QDate GlobalJobId")
_STATUSES = {1: "PENDING", 2: "RUNNING", 6: "COMPLETING", 7: "SUSPENDED"}


@dataclass(slots=True)
class _Job:
    """What the events so far say about a job."""

    position: Position
    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


def _sniff(source: InputSource) -> Match | None:
    lines = [line for line in source.text.splitlines()[:60] if line.strip()]
    if lines and EVENT.match(lines[0]) and (len(lines) < 4 or "..." in (line.strip() for line in lines)):
        return Match(0.96, "log of a job's events")
    keys = {match["key"] for line in lines if (match := _ATTRIBUTE.match(line))}
    if len(keys) >= 0.9 * len(lines) and len(keys & _OWN_KEYS) >= 3:
        return Match(0.95, "attributes of jobs")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    is_log = EVENT.match(source.text.lstrip()) is not None
    count = give(_records_of_event_log(source) if is_log else _records_of_job_list(source), sink)
    return Result(count) if count else Result(0, "empty", "no job")


def _records_of_event_log(source: InputSource) -> Iterator[Record]:
    jobs: dict[str, _Job] = {}
    match: re.Match[str] | None = None
    position = Position(source.path, 1)
    lines: list[str] = []
    for line_number, offset, text in source.lines():
        begin = EVENT.match(text)
        if begin is not None or text.strip() == "...":
            if match is not None:
                _apply(jobs, match, "\n".join(lines), position)
            match, lines = begin, []
            position = Position(source.path, line_number, offset, len(text.encode()))
        elif match is not None and len(lines) < MAX_EVENT_LINES:
            lines.append(text)
    if match is not None:
        _apply(jobs, match, "\n".join(lines), position)
    for id_, job in jobs.items():
        yield job_record(job.position, job.text, "htcondor", id_, **job.fields)


def _apply(jobs: dict[str, _Job], match: re.Match[str], details: str, position: Position) -> None:
    """Add what an event says to its job."""
    id_ = job_id(match)
    if id_ not in jobs and len(jobs) >= MAX_JOBS:
        return
    job = jobs.setdefault(id_, _Job(position))
    fields, now = job.fields, parse_time(match["time"])
    event = match["event"]
    if event == "000":
        fields |= {"submit": now, "state": "PENDING"}
    elif event == "001":
        host = _SLOT.search(details) or _ALIAS.search(match["text"] + details)
        restarts = fields.get("restarts", -1) + 1
        fields |= {"start": now, "state": "RUNNING", "end": None, "restarts": restarts}
        fields["nodes"] = (host["host"],) if host else ()
    elif event == "004":
        fields |= {"state": "PREEMPTED", "end": now}
    elif event == "005":
        normal, killed = _NORMAL.search(details), _KILLED.search(details)
        code, signal = int(normal["code"]) if normal else None, int(killed["signal"]) if killed else None
        memory = _MEMORY.search(details)
        fields |= {"state": state_of(None, code, signal) or "FAILED", "end": now, "exit_code": code, "signal": signal}
        if memory is not None:
            fields |= {"max_rss_bytes": int(memory["used"]) << 20, "req_mem_bytes": int(memory["requested"]) << 20}
    elif event == "007":
        fields |= {"state": "FAILED", "end": now, "reason": details.strip()[:400] or None}
    elif event == "009":
        by = _BY.search(details)
        fields |= {"state": "CANCELLED", "end": now, "cancelled_by": by["user"] if by else None}
        fields["reason"] = details.strip()[:400] or None
    elif event == "012":
        code_line, by = _CODE.search(details), _BY.search(details)
        reason = hold_reason(details, int(code_line["code"]) if code_line else None)
        fields |= {"state": state_of(reason or "other", None), "end": now, "cancelled_by": by["user"] if by else None}
        fields["reason"] = details.strip()[:400] or None
    elif event == "013":
        fields |= {"state": "PENDING", "reason": None}
    elif event == "024":
        fields |= {"state": "NODE_FAIL", "end": now}
    else:
        return
    job.position, job.text = position, f"{match[0]} {' '.join(details.split())[:300]}"


def _records_of_job_list(source: InputSource) -> Iterator[Record]:
    values: dict[str, str] = {}
    position = Position(source.path, 1)
    for line_number, offset, text in source.lines():
        attribute = _ATTRIBUTE.match(text)
        if attribute is not None:
            if not values:
                position = Position(source.path, line_number, offset, len(text.encode()))
            values.setdefault(attribute["key"], attribute["value"].strip().strip('"'))
        elif not text.strip() and values:
            yield _of_attributes(position, values)
            values = {}
    if values:
        yield _of_attributes(position, values)


def _of_attributes(position: Position, values: dict[str, str]) -> Record:
    get = values.get
    status = number(get("JobStatus")) or 0
    code, signal = number(get("ExitCode")), number(get("ExitSignal"))
    removal, hold = get("RemoveReason"), get("HoldReason")
    reason = None
    if status == 3:
        reason = "cancelled" if "condor_rm" in (removal or "") else "other"
    elif status == 5:
        reason = hold_reason(hold or "", number(get("HoldReasonCode"))) or "other"
    state = _STATUSES.get(status) or state_of(reason, code, signal) or ("COMPLETED" if status == 4 else None)
    by = _BY.search(removal or hold or "")
    start = number(get("JobCurrentStartDate") or get("JobStartDate"))
    end = number(get("CompletionDate")) or number(get("EnteredCurrentStatus")) if status in (3, 4, 5) else None
    host, process = (get("LastRemoteHost") or get("RemoteHost") or "").rpartition("@")[2], get("ProcId")
    memory, requested = number(get("MemoryUsage")), number(get("RequestMemory"))
    return job_record(
        position,
        f"ClusterId = {get('ClusterId')} JobStatus = {status}",
        "htcondor",
        (get("ClusterId") or "") + (f"_{process}" if process not in (None, "0") else ""),
        user=get("Owner"),
        state=state,
        cancelled_by=by["user"] if by is not None and state == "CANCELLED" else None,
        exit_code=code,
        signal=signal,
        reason=removal or hold,
        submit=_posix(number(get("QDate"))),
        start=_posix(start),
        zoned=True,
        end=_posix(end),
        elapsed_s=parse_duration(get("RemoteWallClockTime")),
        nodes=(host,) if host else (),
        n_cpus=number(get("RequestCpus")),
        n_gpus=number(get("RequestGPUs")) or None,
        max_rss_bytes=None if memory is None else memory << 20,
        req_mem_bytes=None if requested is None else requested << 20,
        command=get("Cmd"),
        std_out=get("Out"),
        std_err=get("Err"),
    )


def _posix(seconds: int | None) -> float | None:
    return float(seconds) if seconds else None


FORMAT = Format("htcondor", "HTCondor jobs (event log, condor_history -l)", "scheduler", _sniff, _read)
