"""Kubernetes: pods and jobs (``kubectl describe``, ``kubectl get -o json``), and tables of events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from trackside.catalog.slurm.values import dig, number, zoned
from trackside.catalog.slurm.values import time as posix
from trackside.logs.job_report import STATES, parse_duration, state_of
from trackside.logs.kubernetes import reason_of
from trackside.logs.line import FileContext
from trackside.logs.scan import scan
from trackside.model import Event, Position, Record
from trackside.read.batch_jobs import job_record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give

_TOP = re.compile(r"^(?P<key>[A-Z][A-Za-z ]{2,40}):(?:\s+(?P<value>\S.*))?$")
_INNER = re.compile(
    r"^ +(?P<key>Reason|Exit Code|Signal|Started|Finished|State|Last State|Message):\s+(?P<value>\S.*)$"
)
_EVENT = re.compile(
    r"^\s{0,8}(?:(?:\S{1,64}\s{1,20})?(?:\d{1,6}\w{0,8}|<unknown>)(?: \(x\d{1,6} over \w{1,12}\))?\s{1,20})?"
    r"(?:Normal|Warning)\s{1,20}[A-Z]\w{1,40}\s{1,40}\S"
)
_HEADER = re.compile(
    r"^(?:NAMESPACE +)?LAST SEEN +(?:FIRST SEEN +)?(?:COUNT +)?TYPE +REASON +|^  Type +Reason +Age +From +Message"
)
_STATUS_KEYS = frozenset(("Status", "Pods Statuses", "Completed At"))
_OTHER_KEYS = frozenset(("Name", "Namespace", "Node", "Containers", "Start Time", "Events", "Conditions"))
_PHASES = {"Pending": "PENDING", "Running": "RUNNING", "Succeeded": "COMPLETED", "Failed": "FAILED"}
_DATE = re.compile(r"[A-Z][a-z]{2}, (\d{2}) ([A-Z][a-z]{2}) (20\d\d) (\d\d:\d\d:\d\d) ([+-]\d{4})")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def _sniff(source: InputSource) -> Match | None:
    text = source.text
    if text.lstrip().startswith("{"):
        has_status = re.search(r'"kind": ?"(?:Pod|Job)"', text) and re.search(r'"status": ?\{', text)
        return Match(0.95, "kubectl get -o json") if has_status and '"apiVersion"' in text else None
    lines = [line for line in text.splitlines()[:400] if line.strip()]
    keys = {match["key"] for line in lines if (match := _TOP.match(line))}
    if keys & _STATUS_KEYS and len(keys & _OTHER_KEYS) >= 3:
        return Match(0.93, "kubectl describe")
    rows = sum(1 for line in lines if _EVENT.match(line))
    if lines and (_HEADER.match(lines[0]) or rows >= 2) and rows >= 0.7 * (len(lines) - 1):
        return Match(0.9, "events")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    if source.text.lstrip().startswith("{"):
        document = msgspec.json.decode(source.whole())
        items = document.get("items") if isinstance(document.get("items"), list) else [document]
        objects = [item for item in items if dig(item, "kind") in ("Pod", "Job") or dig(item, "status", "phase")]
        return Result(give((_of_object(source.path, order, item) for order, item in enumerate(objects, 1)), sink))
    count = 0
    if not _is_table(source):
        lines = list(source.lines())
        count = give(_records_of_description(source.path, lines), sink)
        return Result(count)

    def add(event: Event) -> None:
        nonlocal count
        if event.kind != "log_activity":
            count += 1
            sink.event(event)

    scan(source.stream, add, FileContext(source.path, "scheduler"))
    return Result(count) if count else Result(0, "empty", "no event about an end")


def _is_table(source: InputSource) -> bool:
    first = next((line for line in source.text.splitlines() if line.strip()), "")
    return _HEADER.match(first) is not None or _EVENT.match(first) is not None


def _records_of_description(path: str, lines: list[tuple[int, int, str]]) -> Iterator[Record]:
    """A pod or job of ``kubectl describe``."""
    top: dict[str, str] = {}
    containers: list[dict[str, str]] = []
    section, position, message = "", Position(path, 1), ""
    for line_number, offset, text in lines:
        if (match := _TOP.match(text)) is not None:
            if match["key"] == "Name" and "Name" in top:
                yield _of_description(position, top, containers)
                top, containers = {}, []
            section = match["key"]
            if match["value"]:
                top.setdefault(section, match["value"].strip())
            if section in ("Status", "Pods Statuses", "Reason"):
                position = Position(path, line_number, offset, len(text.encode()))
        elif section == "Containers" and (inner := _INNER.match(text)) is not None:
            if inner["key"] in ("State", "Last State"):
                containers.append({})
            if containers:
                containers[-1][inner["key"]] = inner["value"].strip()
        elif section == "Events":
            message = f"{message} {text}"[:4000]
            for reason in ("DeadlineExceeded", "Preempted", "Evicted"):
                if re.search(rf"\b{reason}\b", text):
                    top.setdefault("Event", reason)
                    top.setdefault("Message", text.strip())
    if top:
        yield _of_description(position, top, containers)


def _of_description(position: Position, top: dict[str, str], containers: list[dict[str, str]]) -> Record:
    ended = [one for one in containers if one.get("State") == "Terminated"] or [
        one for one in containers if "Exit Code" in one
    ]
    worst = next((one for one in ended if one.get("Exit Code") not in (None, "0")), ended[0] if ended else {})
    code = number(worst.get("Exit Code"))
    reason = reason_of(top.get("Reason") or top.get("Event"), top.get("Message", ""))
    phase = _PHASES.get(top.get("Status", "").partition(" ")[0])
    counts = re.search(r"(\d+) (?:Active|Running).*?/ (\d+) Succeeded / (\d+) Failed", top.get("Pods Statuses", ""))
    if phase is None and counts is not None:
        phase = "RUNNING" if counts[1] != "0" else "COMPLETED" if counts[3] == "0" else "FAILED"
    state = _state(phase, reason, worst.get("Reason"), code)
    node = top.get("Node", "").partition("/")[0]
    return job_record(
        position,
        f"Name: {top.get('Name')} Status: {top.get('Status') or top.get('Pods Statuses')} Reason: {top.get('Reason')}",
        "kubernetes",
        top.get("Name", ""),
        name=top.get("Name"),
        state=state,
        exit_code=code,
        signal=number(worst.get("Signal")),
        reason=top.get("Reason") or worst.get("Reason"),
        start=_date(worst.get("Started") or top.get("Start Time")),
        zoned=True,
        end=_date(worst.get("Finished") or top.get("Completed At")),
        time_limit_s=parse_duration(top.get("Active Deadline Seconds")),
        nodes=(node,) if node and node != "<none>" else (),
    )


def _state(phase: str | None, reason: str | None, container: str | None, code: int | None) -> str | None:
    """The state by pod phase, the reason of a notice, and a container's reason and exit code."""
    if phase in ("PENDING", "COMPLETED"):
        return phase
    if container == "OOMKilled":
        return "OUT_OF_MEMORY"
    if reason is not None:
        return STATES.get(reason, "FAILED")
    return phase or state_of(None, code)


def _of_object(path: str, order: int, item: dict[str, Any]) -> Record:
    status = item.get("status") or {}
    name = str(dig(item, "metadata", "name") or "")
    position = Position(path, order)
    conditions = {
        str(dig(condition, "type")): condition
        for condition in status.get("conditions") or []
        if dig(condition, "status") == "True"
    }
    if item.get("kind") == "Job":
        ending = conditions.get("Failed") or conditions.get("FailureTarget") or conditions.get("Complete")
        ended = "FAILED" if "Failed" in conditions else "COMPLETED" if "Complete" in conditions else None
        phase = ended or ("RUNNING" if status.get("active") else None)
        text = str(dig(ending, "reason") or "")
        start, end, code, node, container = status.get("startTime"), status.get("completionTime"), None, None, None
        end = end or dig(ending, "lastTransitionTime")
        message = str(dig(ending, "message") or "")
    else:
        phase = _PHASES.get(str(status.get("phase")))
        text, message = str(status.get("reason") or ""), str(status.get("message") or "")
        if not text and "DisruptionTarget" in conditions:
            text = str(dig(conditions["DisruptionTarget"], "reason") or "")
            message = str(dig(conditions["DisruptionTarget"], "message") or "")
        ends = [
            terminated
            for one in status.get("containerStatuses") or []
            if (terminated := dig(one, "state", "terminated") or dig(one, "lastState", "terminated"))
        ]
        worst = next((one for one in ends if dig(one, "exitCode")), ends[0] if ends else {})
        code, container = number(dig(worst, "exitCode")), dig(worst, "reason")
        start, end = dig(worst, "startedAt") or status.get("startTime"), dig(worst, "finishedAt")
        node = dig(item, "spec", "nodeName")
    state = _state(phase, reason_of(text, message), container, code)
    return job_record(
        position,
        f"{item.get('kind')} {name} {status.get('phase') or phase} {text or container or ''} {message}",
        "kubernetes",
        name,
        name=name,
        state=state,
        exit_code=code,
        reason=text or container,
        start=posix(start),
        zoned=zoned(start),
        end=posix(end),
        time_limit_s=number(dig(item, "spec", "activeDeadlineSeconds")),
        nodes=(str(node),) if node else (),
    )


def _date(text: str | None) -> float | None:
    """``Wed, 29 Nov 2023 11:02:54 +0000`` as POSIX seconds."""
    match = _DATE.match(text or "")
    if match is None or match[2] not in _MONTHS:
        return None
    return posix(f"{match[3]}-{_MONTHS.index(match[2]) + 1:02}-{match[1]}T{match[4]}{match[5]}")


FORMAT = Format("kubernetes", "Kubernetes pods, jobs and events (kubectl)", "scheduler", _sniff, _read)
