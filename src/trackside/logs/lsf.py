"""IBM Spectrum LSF: the report that it adds to a job's output, above or below it, and the reasons in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trackside.catalog.signals import Exit, read_code
from trackside.logs import exits
from trackside.logs.job_report import MAX_REPORT_LINES, notice, parse_duration, parse_size, parse_time, state_of
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

REASONS: Mapping[str, str] = {
    "RUNLIMIT": "time_limit",
    "CPULIMIT": "time_limit",
    "DEADLINE": "deadline",
    "WINDOW": "deadline",
    "MEMLIMIT": "out_of_memory",
    "SWAP": "out_of_memory",
    "OWNER": "cancelled",
    "FORCE_OWNER": "cancelled",
    "ADMIN": "cancelled",
    "FORCE_ADMIN": "cancelled",
    "PREEMPT": "preemption",
    "LOAD": "preemption",
    "RC_RECLAIM": "preemption",
    "BUCKET_KILL": "preemption",
    "REQUEUE_OWNER": "requeue",
    "REQUEUE_ADMIN": "requeue",
    "PRE_EXEC_FAIL": "launch_failure",
    "CWD_NOTEXIST": "launch_failure",
}
"""LSF's termination reasons, without ``TERM_`` -> reason of a notice; others only say that the job failed."""
_SUBJECT = re.compile(
    r"^Subject: Job (?P<job>\d{1,12})(?:\[(?P<index>\d{1,9})\])?: <(?P<name>[^>\n]{0,400})>"
    r"(?: in cluster <[^>\n]{0,120}>)? (?P<end>Done|Exited)\s*$"
)
_END = re.compile(r"The output \(if any\) (?:is (?P<above>above) this job summary|follows:)|^PS:$")
_NEXT_REPORT = re.compile(r"^(?:Sender: LSF |Subject: Job \d)")
_TERM = re.compile(r"^TERM_(?P<term>[A-Z_]{3,24}): ")
_EXITED = re.compile(
    r"^(?:Exited with exit code (?P<code>\d{1,3})\b|Exited (?:with signal termination: |by signal )(?P<signal>\d{1,2})\b"
    r"|(?P<done>Successfully completed)\.$)"
)
_SUBMITTED = re.compile(r"^Job <.{0,400}> was submitted from host <.{0,200}> by user <(?P<user>[^>]{1,80})>")
_FIELDS = (
    ("start", re.compile(r"^Started at (.{10,40})$"), parse_time),
    ("end", re.compile(r"^Terminated at (.{10,40})$"), parse_time),
    ("elapsed_s", re.compile(r"^\s*Run time :\s+(\d{1,12}) sec\."), parse_duration),
    ("max_rss_bytes", re.compile(r"^\s*Max Memory :\s+(\d[\d.]{0,15} [KMGT]?B)"), parse_size),
    ("req_mem_bytes", re.compile(r"^\s*Total Requested Memory :\s+(\d[\d.]{0,15} [KMGT]?B)"), parse_size),
)
_HOSTS = re.compile(r"<(?:\d{1,5}\*)?([\w.-]{1,120})>")
_MORE_HOSTS = re.compile(r"^\s+<(?:\d{1,5}\*)?[\w.-]{1,120}>$")
_RULE = re.compile(r"^-{20,}\s*$")

PARSER = Parser("lsf", "LSF", "system")


@PARSER.pattern(
    rb"Subject: Job [0-9]{1,12}[^\n]{0,600}(Done|Exited)",
    _SUBJECT,
    safety="Only the subject of LSF's own report; what the job's script says in it is not read.",
    matches=(
        "Subject: Job 4711: <finetune> in cluster <hpc1> Exited",
        "Subject: Job 4712: <finetune> in cluster <hpc1> Done",
        "Subject: Job 31[4]: <sweep[1-9]> Exited",
    ),
    avoids=("Subject: Job offer in cluster Exited", "Re: Subject: Job 1: <a> Done"),
)
def _report(line: Line, match: re.Match[str]) -> Event:
    return _event(line, match["end"], [line, *_lines_of_report(line)], match)


def _lines_of_report(line: Line) -> Iterator[Line]:
    """The lines of a report below its subject."""
    for below in line.following(MAX_REPORT_LINES):
        if _NEXT_REPORT.match(below.text):
            return
        yield below
        if _END.search(below.text):
            return


def _event(line: Line, printed_end: str | None, lines: list[Line], subject: re.Match[str] | None) -> Event:
    fields: dict[str, Any] = {}
    hosts: list[str] = []
    reason = term = None
    is_quoted = False
    for below in lines:
        text = below.text.rstrip()
        if is_quoted:
            is_quoted = _RULE.match(text) is None
        elif text.startswith("# LSBATCH: "):
            is_quoted = True
        elif submitted := _SUBMITTED.match(text):
            fields["user"], fields["submit"] = submitted["user"], parse_time(text.rpartition(" at ")[2])
        elif text.startswith("Job was executed on host(s) ") or (hosts and _MORE_HOSTS.match(text)):
            hosts += _HOSTS.findall(text.partition(", in queue")[0])
        elif ended := _TERM.match(text):
            term, reason = text.partition(":")[0], REASONS.get(ended["term"], "other")
        elif exited := _EXITED.match(text):
            fields["exit_code"] = 0 if exited["done"] else int(exited["code"]) if exited["code"] else None
            fields["signal"] = int(exited["signal"]) if exited["signal"] else None
        else:
            for name, regex, parse in _FIELDS:
                if name not in fields and (value := regex.match(text)):
                    fields[name] = parse(value[1])
    state = state_of(reason, fields.get("exit_code"), fields.get("signal")) or {
        "Done": "COMPLETED",
        "Exited": "FAILED",
    }.get(printed_end or "")
    if subject is not None:
        fields["job"] = subject["job"] + (f"_{subject['index']}" if subject["index"] else "")
        fields["name"] = subject["name"]
    end = _END.search(lines[-1].text)
    below_it = subject is not None and end is not None and end["above"] is None
    line.notes("lsf")["until"] = lines[-1].number
    return line.event(
        "job_report",
        EventRole.ROOT,
        time=fields.get("end"),
        source="lsf",
        state=state,
        cancelled_by=fields.get("user") if term in ("TERM_OWNER", "TERM_FORCE_OWNER") else None,
        reason=term,
        hosts=",".join(dict.fromkeys(hosts)) or None,
        above=not below_it,
        lines=lines[-1].number - line.number + 1,
        **fields,
    )


@PARSER.pattern(
    rb"# LSBATCH: User input",
    safety="The job's script is quoted from here to the next rule: it is not evidence.",
    matches=(),
    avoids=("echo '# LSBATCH: User inputs'",),
)
def _skip_script(line: Line) -> None:
    notes = line.notes("lsf")
    if not line.text.startswith("# LSBATCH: User input") or line.number <= notes.get("searched", 0):
        return
    for below in line.following(MAX_REPORT_LINES):
        notes["searched"] = below.number
        if _RULE.match(below.text):
            line.context.quoted_until = below.number
            return


@PARSER.pattern(
    rb"TERM_[A-Z_]{3,24}: [a-zA-Z]",
    r"^(?:Completed <exit>; )?TERM_(?P<term>[A-Z_]{3,24}): (?:job|Job|The job|Termination|the job)\b",
    safety="LSF's reason at the start of its line; a reason that is not listed says nothing more than the exit code.",
    matches=(
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        "TERM_OWNER: job killed by owner.",
        "TERM_PREEMPT: job killed after preemption.",
    ),
    avoids=("export TERM_RUNLIMIT: job", "TERM_PROGRAM: job", "TERM_UNKNOWN: termination reason unknown."),
)
def _termination_reason(line: Line, match: re.Match[str]) -> Iterator[Event]:
    reason = REASONS.get(match["term"])
    if reason is not None:
        yield from notice(line, reason)


@PARSER.pattern(
    rb"Exited (with exit code [0-9]{1,3}|with signal termination: [0-9]{1,2}|by signal [0-9]{1,2})",
    r"^Exited (?:with exit code (?P<code>\d{1,3})|(?:with signal termination: |by signal )(?P<signal>\d{1,2}))\.",
    safety="srun names host and task before it; LSF's line begins with it and ends in a dot.",
    matches=("Exited with exit code 143.", "Exited with signal termination: 9.", "Exited by signal 9."),
    avoids=("srun: error: n1: task 0: Exited with exit code 1", "Exited with exit code 1 from the script"),
)
def _exit(line: Line, match: re.Match[str]) -> Event:
    end = Exit(signal=int(match["signal"])) if match["signal"] else read_code(int(match["code"]))
    return exits.process_exit(line, end, "lsf")


@PARSER.pattern(
    rb"Resource usage summary:",
    r"^Resource usage summary:\s*$",
    safety="The end of a report whose subject was cut off: its result is in the lines above.",
    matches=("Successfully completed.\n\nResource usage summary:",),
    avoids=("Resource usage summary: see the wiki", "Resource usage summary:"),
)
def _report_without_subject(line: Line, _: re.Match[str]) -> Event | None:
    if line.notes("lsf").get("until", 0) >= line.number:
        return None
    above = []
    for near in line.preceding(6):
        if near.number == line.number:
            continue
        above.append(near)
        if _RULE.match(near.text) or _TERM.match(near.text):
            break
    if not any(_EXITED.match(near.text) or _TERM.match(near.text) for near in above):
        return None
    return _event(line, None, [*reversed(above), line, *_lines_of_report(line)], None)
