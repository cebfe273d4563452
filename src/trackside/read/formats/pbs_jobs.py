"""PBS's and Torque's full status of jobs: ``qstat -f``, ``qstat -fx``, as text or JSON, whole or in part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from trackside.catalog.slurm.values import number, vocabulary
from trackside.logs.job_report import parse_duration, parse_size, state_of
from trackside.logs.pbs import end_of, hosts_of
from trackside.logs.stamp import find_time
from trackside.model import Position, Record
from trackside.read.batch_jobs import job_record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give

Get = Callable[[str], str | None]
_BEGIN = re.compile(r"^Job Id: (?P<id>\S{1,200})\s*$")
_FIELD = re.compile(r"^ {2,8}(?P<key>[A-Za-z][\w.]{1,60}) = (?P<value>.*)$")
_OWN_KEYS = vocabulary(
    "Job_Name Job_Owner job_state exec_host exec_vnode Exit_status substate ctime qtime mtime "
    "Resource_List.walltime resources_used.walltime"
)
_ID = re.compile(r"(?P<job>\d{1,12})(?:\[(?P<index>\d{0,9})\])?")
_STATES = {
    "Q": "PENDING",
    "H": "PENDING",
    "W": "PENDING",
    "T": "PENDING",
    "R": "RUNNING",
    "B": "RUNNING",
    "E": "COMPLETING",
    "S": "SUSPENDED",
    "U": "SUSPENDED",
}
_COMMENT = re.compile(r"\band (?:(?P<end>failed|finished|terminated)|exceeded resource (?P<limit>\w+))")
_TIMES = {"walltime": "time_limit", "cput": "time_limit"}
MAX_VALUE_CHARS = 20_000


def _sniff(source: InputSource) -> Match | None:
    text = source.text
    if text.lstrip().startswith("{"):
        is_own = '"Jobs"' in text and '"job_state"' in text and "pbs_" in text
        return Match(0.95, "qstat -f as JSON") if is_own else None
    lines = [line for line in text.splitlines()[:200] if line.strip()]
    keys = {match["key"] for line in lines if (match := _FIELD.match(line))}
    if lines and _BEGIN.match(lines[0]) and keys & _OWN_KEYS:
        return Match(0.96, "qstat -f")
    known = sum(1 for line in lines if _FIELD.match(line) or line.startswith(("\t", "        ")) or _BEGIN.match(line))
    return Match(0.9, "qstat -f in part") if len(keys & _OWN_KEYS) >= 3 and known == len(lines) else None


def _read(source: InputSource, sink: Sink) -> Result:
    if source.text.lstrip().startswith("{"):
        return _read_json(source, sink)
    return Result(give(_jobs(source), sink))


def _jobs(source: InputSource) -> Iterator[Record]:
    values: dict[str, str] = {}
    position, id_, key = Position(source.path, 1), "", ""
    for line_number, offset, text in source.lines():
        here = Position(source.path, line_number, offset, len(text.encode()))
        if begin := _BEGIN.match(text):
            if values:
                yield _record(position, id_, values.get)
            values, position, id_, key = {}, here, begin["id"], ""
        elif field := _FIELD.match(text):
            if not values and not id_:
                position = here
            key = field["key"]
            values[key] = field["value"].strip()
        elif text.startswith(("\t", "        ")) and key and len(values[key]) < MAX_VALUE_CHARS:
            values[key] += text[1:] if text.startswith("\t") else text.strip()
    if values:
        yield _record(position, id_, values.get)


def _read_json(source: InputSource, sink: Sink) -> Result:
    document = msgspec.json.decode(source.whole())
    jobs = document.get("Jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, dict):
        return Result(0, "empty", "no job")
    for order, (id_, job) in enumerate(jobs.items(), 1):
        if isinstance(job, dict):
            sink.record(_record(Position(source.path, order), str(id_), _flat(job).get))
    return Result(len(jobs))


def _flat(job: dict[str, Any]) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in job.items():
        if isinstance(value, dict):
            values |= {f"{key}.{name}": str(part) for name, part in value.items()}
        else:
            values[key] = str(value)
    return values


def _record(position: Position, id_: str, get: Get) -> Record:
    limit_s = parse_duration(get("Resource_List.walltime"))
    used_s = parse_duration(get("resources_used.walltime"))
    status = re.match(r"-?\d{1,6}\b", get("Exit_status") or get("exit_status") or "")
    reason, exit_fields = end_of(int(status[0]) if status else None, used_s, limit_s)
    printed = get("job_state") or ""
    comment = _COMMENT.search(get("comment") or "")
    if comment is not None and comment["limit"]:
        reason = _reason_of_limit(comment["limit"])
    elif reason is None and (get("substate") == "91" or (comment is not None and comment["end"] == "terminated")):
        reason = "cancelled"
    state = _STATES.get(printed)
    if state is None:
        state = state_of(reason, exit_fields.get("exit_code"), exit_fields.get("signal"))
    if state is None and printed in ("F", "C", "X"):
        finished = comment is not None and comment["end"] == "finished"
        state = "COMPLETED" if finished else "CANCELLED" if get("stime") is None else None
    start = _time(get("stime") or get("start_time"))
    end = _time(get("obittime") or get("comp_time"))
    if end is None and start is not None and used_s is not None and state not in _STATES.values():
        end = start + used_s
    runs, owner = number(get("run_count")), get("Job_Owner")
    match = _ID.match(id_)
    return job_record(
        position,
        f"Job Id: {id_} job_state = {printed} Exit_status = {status[0] if status else ''}",
        "pbs",
        "" if match is None else match["job"] + (f"_{match['index']}" if match["index"] else ""),
        name=get("Job_Name"),
        user=None if owner is None else owner.partition("@")[0],
        partition=get("queue"),
        state=state,
        exit_code=exit_fields.get("exit_code"),
        signal=exit_fields.get("signal"),
        reason=get("comment"),
        submit=_time(get("ctime") or get("qtime")),
        start=start,
        end=end,
        elapsed_s=used_s,
        time_limit_s=limit_s,
        nodes=hosts_of(get("exec_host") or get("exec_vnode") or ""),
        n_cpus=number(get("Resource_List.ncpus")),
        n_gpus=number(get("Resource_List.ngpus")) or None,
        restarts=None if runs is None else max(runs - 1, 0),
        max_rss_bytes=parse_size(get("resources_used.mem")),
        req_mem_bytes=parse_size(get("Resource_List.mem")),
        std_out=_path(get("Output_Path")),
        std_err=_path(get("Error_Path")),
    )


def _reason_of_limit(resource: str) -> str:
    return "out_of_memory" if resource.endswith("mem") else _TIMES.get(resource, "resource_limit")


def _time(text: str | None) -> float | None:
    """A date as ``Mon May  4 10:00:00 2026``, or POSIX seconds."""
    if text is None:
        return None
    return float(text) if re.fullmatch(r"1\d{9}", text) else find_time(text)


def _path(text: str | None) -> str | None:
    """The path of ``host:/path``."""
    return None if text is None else text.partition(":")[2] or text


FORMAT = Format("pbs-jobs", "PBS and Torque jobs (qstat -f)", "scheduler", _sniff, _read)
