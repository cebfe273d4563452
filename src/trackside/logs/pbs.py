"""PBS Professional, OpenPBS and Torque: the notice that ends a job, and blocks about it by epilogues and mails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trackside.logs.job_report import notice, parse_duration, parse_size, state_of
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.logs.stamp import find_time
from trackside.model import Event, EventRole

EXIT_REASONS: Mapping[int, str] = {
    -4: "node_failure",
    -5: "node_failure",
    -6: "node_failure",
    -24: "resource_limit",
    -25: "resource_limit",
    -26: "out_of_memory",
    -27: "out_of_memory",
    -28: "time_limit",
    -29: "time_limit",
}
"""Negative Exit_status of PBS Professional (JOB_EXEC_...) -> reason: MoM was restarted (-4 to -6), or ended the job at a
limit."""
_RESOURCES = (("walltime", "time_limit"), ("cput", "time_limit"), ("mem", "out_of_memory"))
MAX_BLOCK_LINES = 60
"""Lines of one block."""
MAX_LINE_CHARS = 2_000
"""Characters of a line that are read."""
_FIELD = re.compile(r"^\s{0,20}(?P<key>[A-Za-z][\w. ]{1,40}?)\s{0,20}[:=]\s{0,40}(?P<value>\S.{0,1000})")
_SECOND_FIELD = re.compile(r"\s{2,20}(?P<key>[A-Z][A-Za-z ]{3,24}?)\s{0,20}:\s{1,40}(?P<value>\S{1,80})$")
_BLOCK_START = re.compile(
    r"^\s*(?:Begin PBS Epilogue\b|Resource Usage on (?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d):?\s*$"
    r"|PBS Job Id: (?P<id>\d{1,12})(?:\[\d*\])?[.\w-]{0,120}\s*$)"
)
_BLOCK_END = re.compile(r"^\s*(?:End PBS Epilogue\b|={20,}\s*$)")

PARSER = Parser("pbs", "PBS and Torque", "system")


def end_of(status: int | None, used_s: float | None, limit_s: float | None) -> tuple[str | None, dict[str, int]]:
    """(reason, fields with exit code and signal) of a job's Exit_status: 256 and above are 256 plus a signal.

    PBS ends jobs with SIGTERM, then SIGKILL: at the limit of walltime, else because somebody deleted the job; which one is
    unknown without the limit.
    """
    if status is None:
        return ("time_limit" if _is_at_limit(used_s, limit_s) else None), {}
    if status in EXIT_REASONS:
        return EXIT_REASONS[status], {"exit_code": status}
    signal = status - 256 if 256 < status < 256 + 65 else status - 128 if 128 < status < 128 + 65 else None
    fields = {"exit_code": status} if status < 256 else {"exit_code": 0, "signal": signal or 0}
    if signal in (9, 15) and _is_at_limit(used_s, limit_s):
        return "time_limit", fields
    was_deleted = status == 256 + 15 and used_s is not None and limit_s is not None
    return ("cancelled" if was_deleted else None), fields


def _is_at_limit(used_s: float | None, limit_s: float | None) -> bool:
    """Whether a job used all the time that it might."""
    return used_s is not None and limit_s is not None and limit_s > 0 and used_s >= limit_s


def hosts_of(text: str) -> tuple[str, ...]:
    """The nodes of ``n1/0*8+n2/0*8``, ``n1/0-7+n2/3`` or ``(n1:ncpus=8)+(n2:ncpus=8)``, in order, each once."""
    names = (re.split(r"[/:]", part.strip("() "), maxsplit=1)[0] for part in text.split("+"))
    return tuple(dict.fromkeys(name for name in names if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,120}", name)))


@PARSER.pattern(
    rb"=>> PBS: job killed: ",
    r"=>> PBS: job killed: (?P<what>[a-z]{3,10})\b(?P<rest>.{0,300})",
    safety="PBS's own notice at the end of the job's error output; nothing else begins like it.",
    matches=(
        "=>> PBS: job killed: walltime 7230 exceeded limit 7200",
        "=>> PBS: job killed: mem 17301504kb exceeded limit 16777216kb",
        "=>> PBS: job killed: vmem 9001kb exceeded limit 9000kb",
        "=>> PBS: job killed: node 1 (n2) requested job terminate, 'EOF' (code 1099)",
    ),
    avoids=("=>> PBS: job killed: see the manual",),
)
def _kill_notice(line: Line, match: re.Match[str]) -> Iterator[Event]:
    what, rest = match["what"], match["rest"]
    if what == "node" and "requested job" in rest:
        reason = "node_failure"
    elif "exceeded limit" in rest:
        reason = next((reason for name, reason in _RESOURCES if what.endswith(name)), "resource_limit")
    else:
        return
    line.notes("pbs")["reason"] = reason
    if reason == "resource_limit":
        yield line.event("scheduler_notice", EventRole.CONFIRMATION, reason=reason)
        return
    yield from notice(line, reason)


@PARSER.pattern(
    rb"(Begin PBS Epilogue|Resource Usage on [0-9]{4}-|PBS Job Id: [0-9])",
    _BLOCK_START,
    safety="An epilogue's or a mail's block with a job id below or in its first line.",
    matches=(
        "PBS Job Id: 4711.pbs1\nJob Name:   train\nExecution terminated\nExit_status=271\nresources_used.walltime=02:00:31",
        "Resource Usage on 2026-05-04 10:00:00:\n   Job Id:             88.hub-pbs\n   Exit Status:        0\n",
        "Begin PBS Epilogue Mon May  4 10:00:00 EDT 2026\nJob ID:     12.sched\nEnd PBS Epilogue",
    ),
    avoids=("Resource Usage on 2026-05-04 10:00:00:\nCPU 12%", "Begin PBS Epilogue"),
)
def _end_report(line: Line, match: re.Match[str]) -> Event | None:
    values: dict[str, str] = {"job id": match["id"] or ""}
    texts, last = [line.text], line.number
    for below in line.following(MAX_BLOCK_LINES):
        if _BLOCK_END.match(below.text) or _BLOCK_START.match(below.text):
            break
        texts.append(below.text[:MAX_LINE_CHARS].rstrip())
        last = below.number
    for text in texts[1:]:
        second = _SECOND_FIELD.search(text)
        for field in (_FIELD.match(text[: second.start()] if second else text), second):
            if field is not None:
                values[field["key"].lower()] = values.get(field["key"].lower()) or field["value"]
    job = re.match(r"\d{1,12}", values.get("job id", ""))
    if job is None:
        return None
    get = values.get
    limit_s = parse_duration(get("walltime requested") or _named_part(get("resources"), "walltime"))
    used_s = parse_duration(
        get("walltime used") or get("resources_used.walltime") or _named_part(get("rsrc used"), "walltime")
    )
    status = re.match(r"-?\d{1,6}\b", get("exit status") or get("exit_status") or "")
    reason, fields = end_of(int(status[0]) if status else None, used_s, limit_s)
    reason = line.notes("pbs").pop("reason", None) or reason
    nodes = get("exec host") or (get("nodes") or "").replace(" ", "+")
    return line.event(
        "job_report",
        EventRole.ROOT,
        source="pbs",
        job=job[0],
        name=get("job name"),
        user=get("user id") or get("username"),
        state=state_of(reason, fields.get("exit_code"), fields.get("signal")),
        reason=next((text.strip() for text in texts if text.startswith(("Aborted by PBS", "Job exceeded"))), None),
        end=find_time(line.text),
        elapsed_s=used_s,
        time_limit_s=limit_s,
        hosts=",".join(hosts_of(nodes)) or None,
        max_rss_bytes=parse_size(
            get("memory used") or get("resources_used.mem") or _named_part(get("rsrc used"), "mem")
        ),
        req_mem_bytes=parse_size(get("memory requested") or _named_part(get("resources"), "mem")),
        exit_code=fields.get("exit_code"),
        signal=fields.get("signal"),
        above=True,
        lines=last - line.number + 1,
    )


def _named_part(text: str | None, name: str) -> str | None:
    """The value of a name in ``cput=00:30:10,walltime=00:30:30``; None if it is missing."""
    match = re.search(rf"(?:^|,){name}=([^,\s]{{1,40}})", text or "")
    return match[1] if match else None
