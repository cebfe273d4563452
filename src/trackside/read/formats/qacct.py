"""Accounting of Grid Engine: ``qacct -j``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.slurm.values import number, vocabulary
from trackside.logs.job_report import parse_duration, parse_size, parse_time, state_of
from trackside.model import Position, Record
from trackside.read.batch_jobs import job_record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give

_FIELD = re.compile(r"^(?P<key>[a-z][a-z_]{2,24})\s{1,24}(?P<value>\S.*)$")
_OWN_KEYS = vocabulary(
    "qname hostname owner jobname jobnumber qsub_time start_time end_time failed exit_status ru_wallclock"
)
_RULE = re.compile(r"^={20,}\s*$")
_BEFORE_JOB = 1, 14
"""Codes of ``failed`` from 1 to 14: the job's script never ran."""


def _sniff(source: InputSource) -> Match | None:
    lines = [line for line in source.text.splitlines()[:80] if line.strip()]
    keys = {match["key"] for line in lines if (match := _FIELD.match(line))}
    if len(keys & _OWN_KEYS) >= 5 and lines and (_RULE.match(lines[0]) or _FIELD.match(lines[0])):
        return Match(0.95, "qacct -j")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    count = give(_jobs(source), sink)
    return Result(count) if count else Result(0, "empty", "no job")


def _jobs(source: InputSource) -> Iterator[Record]:
    values: dict[str, str] = {}
    position = Position(source.path, 1)
    for line_number, offset, text in source.lines():
        field = _FIELD.match(text)
        if _RULE.match(text) or (field is not None and field["key"] == "qname" and "qname" in values):
            if values.keys() & _OWN_KEYS:
                yield _record(position, values)
            values = {}
        if field is not None:
            if not values:
                position = Position(source.path, line_number, offset, len(text.encode()))
            values.setdefault(field["key"], field["value"].strip())
    if values.keys() & _OWN_KEYS:
        yield _record(position, values)


def _record(position: Position, values: dict[str, str]) -> Record:
    get = values.get
    code = number((get("exit_status") or "").partition(" ")[0])
    failed = number((get("failed") or "").partition(":")[0])
    limits = dict(re.findall(r"\b(h_rt|h_vmem|h_rss|h_cpu)=([\w.:]{1,20})", get("category") or ""))
    limit_s, limit_bytes = parse_duration(limits.get("h_rt")), parse_size(limits.get("h_vmem") or limits.get("h_rss"))
    elapsed_s = parse_duration(get("ru_wallclock") or get("wallclock"))
    peak = parse_size(get("maxvmem") or get("ru_maxrss"))
    deleted_by = next((name for name in [get("deleted_by")] if name not in (None, "NONE", "none")), None)
    signal = code - 128 if code is not None and 128 < code < 128 + 65 else None
    reason = None
    if failed == 37 or signal is not None:
        # 37: the queue master enforced a limit; 100 and a signal: the execution daemon did, or somebody deleted it.
        if limit_s and elapsed_s is not None and elapsed_s >= limit_s:
            reason = "time_limit"
        elif limit_bytes and peak is not None and peak >= limit_bytes:
            reason = "out_of_memory"
        elif deleted_by is not None:
            reason = "cancelled"
    elif failed in (25, 20):
        reason = "requeue"
    elif failed is not None and _BEFORE_JOB[0] <= failed <= _BEFORE_JOB[1]:
        reason = "launch_failure"
    state = state_of(reason, code, signal) if failed in (None, 0, 100) or reason else "FAILED"
    task = get("taskid") or ""
    return job_record(
        position,
        f"jobnumber {get('jobnumber')} failed {get('failed')} exit_status {get('exit_status')}",
        "grid_engine",
        (get("jobnumber") or "") + (f"_{task}" if task.isdecimal() else ""),
        name=get("jobname"),
        user=get("owner"),
        partition=get("qname"),
        state=state,
        cancelled_by=deleted_by if state == "CANCELLED" else None,
        exit_code=code,
        reason=get("failed") if failed else None,
        submit=parse_time(get("qsub_time") or get("submission_time")),
        start=parse_time(get("start_time")),
        end=parse_time(get("end_time")),
        elapsed_s=elapsed_s,
        time_limit_s=limit_s,
        nodes=(get("hostname") or "",) if get("hostname") else (),
        n_cpus=number(get("slots")),
        max_rss_bytes=peak,
        req_mem_bytes=limit_bytes,
        work_dir=get("cwd"),
    )


FORMAT = Format("qacct", "Grid Engine accounting (qacct -j)", "scheduler", _sniff, _read)
