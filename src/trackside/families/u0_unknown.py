"""Unknown: no cause found.

Meaning
-------
No other family explains, with the given evidence, how the run ended or what it is doing now. It is an
answer, not a failure: naming a cause without evidence would be worse. A job that has not started is not a
failure: the only question is what it waits for.

What it looks like
------------------
Logs without an exception, a signal or a scheduler message; or only signs of teardown. A job in PENDING, with
Slurm's reason for it.

Not this family when
--------------------
- Any other family is found.

Impact
------
A person has to investigate; the verdict lists what was seen and what would settle it.

Do next
-------
Collect what the undecided families need, and diagnose again. For a pending job: do what its reason requires.

What it cannot decide
---------------------
The cause of the end. When a pending job will start.

References
----------
- [Slurm: job reason codes](https://slurm.schedmd.com/job_reason_codes.html)
- [Slurm: job state codes](https://slurm.schedmd.com/job_state_codes.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from trackside.catalog.job_states import WAITING_STATES
from trackside.catalog.pending_reasons import pending_reason
from trackside.catalog.xid import xid
from trackside.evidence import Value, derived
from trackside.facts.fact import Maybe
from trackside.facts.gpu.activity import GpuActivity
from trackside.facts.hardware.kernel_crashes import KernelCrashes
from trackside.facts.hardware.reports import HardwareReports
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.silence import Silence
from trackside.facts.logs.unread_errors import UnreadErrors
from trackside.facts.trust.unanswered import UnansweredSources
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, action, present, unknown
from trackside.model import Record

PENDING = "Pending: the job has not begun"

NEVER_BEGAN = "Canceled before it began: its dependency failed"
DEPENDENCY_FAILED = Sentence("never started: its dependency can't be satisfied, so Slurm canceled it")
DEPENDENCY_LINE = Sentence("slurmctld's log: {line}")
DIAGNOSE_DEPENDENCY = Sentence("diagnose the job that it depends on, and submit this one again with it")
XID_ALONE = Sentence("the kernel reported Xid {xid} ({name}), which alone does not show what failed: {line}")
XID_ADVICE = Sentence("NVIDIA's advice for Xid {xid}: {advice}")
KERNEL_ERROR = Sentence("the kernel met an error of its own: {line}")
MAX_XIDS = 4
"""Maximum number of Xids in the evidence."""
NO_CAUSE_FOUND = Sentence("no cause found in the inputs")
NO_FAILURE_RECOGNIZED = Sentence(
    "no failure was recognized in the inputs; whether the run failed is not known",
    running="no failure was recognized in the inputs so far",
)
NO_DATA = Sentence("no data of the job: no answer from {sources}")
NOT_STARTED = Sentence("the job has not started: {state}, reason {reason}")
NOT_STARTED_NO_REASON = Sentence("the job has not started: {state}, no reason given yet")
REASON_MEANING = Sentence("meaning: {meaning}")
WAITS_FOR = Sentence("waiting for other jobs: {dependency}")
WAITING_SINCE = Sentence("waiting since {time}")
NO_FAILURE = Sentence("nothing has failed: no node is allocated and nothing has run")
START_UNKNOWN = Sentence("when the job will start: Slurm's estimate changes with every job that is submitted or ends")
NEXT_STEPS = {
    "wait": Sentence("wait, and ask Slurm for the job's priority and expected start"),
    "change": Sentence("change what the job requests, or submit it again: as it is, it will not start"),
    "release": Sentence("release the job once it may run"),
    "ask": Sentence("the job will not start by itself: an operator of the cluster has to remove what it waits for"),
}
SHOW_JOB = ShellCommand("squeue --start -j {id}; scontrol show job -d {id}")
LAST_LINE = Sentence("the log ends with: {line}")
REFERS_TO_LOG = re.compile(r"\b[Cc]heck (?:its|their|the) (?:\w+ )?logs?\b")
ADD_REFERRED_LOG = Sentence("run diagnose again with the log that the error line refers to")
RECORDED_STATE = Sentence("the scheduler recorded {state}", running="the scheduler lists it as {state}")
NOTHING_FITS = Sentence(
    "nothing in the inputs points to a cause", running="nothing in the inputs points to a fault so far"
)
ERRORS_UNREAD = Sentence("Trackside recognized no cause; an error line that it does not recognize may name it")
READ_LINE = Sentence("read {place}: it may name the cause")
INPUTS = {
    "jobs": "its sacct record",
    "kernel": "the kernel logs of its nodes",
    "metrics": "the metrics of its GPUs",
}
"""Kind of input, besides the job's output -> its name in an action."""


def _enumeration(names: list[str]) -> str:
    """Names with commas, and "and" before the last."""
    head, last = ", ".join(names[:-1]), names[-1]
    return f"{head}{',' if len(names) > 2 else ''} and {last}" if head else last


ADD_INPUTS = {
    names: Sentence(
        "run diagnose again with whichever of these you have: "
        + _enumeration(["the job's whole output", *(INPUTS[name] for name in names)])
    )
    for size in range(len(INPUTS) + 1)
    for names in combinations(INPUTS, size)
}
"""Inputs that were not given -> the action."""


def judge(
    silence: Silence, ending: Ending, unread: UnreadErrors, unanswered: UnansweredSources,
    reports: Maybe[HardwareReports], crashes: KernelCrashes, activity: Maybe[GpuActivity],
) -> Finding:  # fmt: skip
    """The last evidence, so that the reader has a starting point."""
    if ending.job is not None and ending.job.get("state") in WAITING_STATES:
        return _waiting(ending, ending.job)
    if (never_run := _dependency_failed(ending)) is not None:
        return never_run
    jobs, logs = ending.jobs, silence.signs["logs"]
    last = [log for log in logs.events[-1:] if not unread.ends(log)]
    shows = [*unread.claims, *(LAST_LINE(line=logs.value(log, "text")) for log in last)]
    shows += [RECORDED_STATE(state=jobs.value(job, "state")) for job in jobs.records[-1:]]
    by_kernel = list(_kernel_reports(reports, crashes))
    shows += [claim for claim, _ in by_kernel]
    kernel = isinstance(reports, HardwareReports) and reports.has_kernel_log
    inputs = {"jobs": bool(jobs), "kernel": kernel, "metrics": isinstance(activity, GpuActivity)}
    add_inputs = action(ADD_INPUTS[tuple(name for name in INPUTS if not inputs[name])])
    if not shows:
        return replace(_without_data(unanswered), actions=(add_inputs,))
    place = unread.place
    read = [] if place is None else [action(READ_LINE, place=place)]
    referred = [action(ADD_REFERRED_LOG)] if any(REFERS_TO_LOG.search(row.text) for row in unread.rows) else []
    may_be_good = not unread.claims and ending.abnormal is None and not jobs
    return present(
        Certainty.POSSIBLE,
        "unknown",
        shows,
        headline=NO_FAILURE_RECOGNIZED() if may_be_good else NO_CAUSE_FOUND(),
        implies=[] if may_be_good else [NOTHING_FITS() if place is None else ERRORS_UNREAD()],
        actions=[
            *read,
            *referred,
            *(advice for _, advice in by_kernel if advice),
            add_inputs,
        ],
    )


def _dependency_failed(ending: Ending) -> Finding | None:
    """The finding about a job that Slurm canceled before it began, because its dependency cannot be satisfied."""
    job, notices = ending.job, ending.notices
    if job is None or job.get("start") is not None or job.get("state") != "CANCELLED":
        return None
    line = next((row for row in notices.events if row.get("reason") == "dependency"), None)
    if line is None:
        return None
    return present(
        Certainty.ESTABLISHED,
        "none",
        [DEPENDENCY_LINE(line=notices.value(line, "text")), RECORDED_STATE(state=ending.jobs.value(job, "state"))],
        headline=DEPENDENCY_FAILED(),
        implies=[NO_FAILURE()],
        actions=[action(DIAGNOSE_DEPENDENCY)],
        since=line.time,
        variant="never-started",
        title=NEVER_BEGAN,
    )


def _kernel_reports(reports: Maybe[HardwareReports], crashes: KernelCrashes) -> Iterator[tuple[Claim, Action | None]]:
    """The last of each Xid of the run's GPUs with NVIDIA's advice, and the kernel's first own error: none of them
    decides by itself."""
    if isinstance(reports, HardwareReports):
        last = {row.get("xid"): row for row in reports.own_xids}
        for row in list(last.values())[-MAX_XIDS:]:
            value, line = reports.xids.value(row, "xid"), reports.xids.value(row, "text")
            entry = xid(int(str(value.value)))
            advice = action(XID_ADVICE, xid=value, advice=derived(entry.action, value))
            yield XID_ALONE(xid=value, name=derived(entry.name, value), line=line), advice
    yield from ((KERNEL_ERROR(line=crashes.frame.value(row, "text")), None) for row in crashes.rows[:1])


def _without_data(unanswered: UnansweredSources) -> Finding:
    """Nothing was read of the run; with the sources that did not answer as the headline, if there are any."""
    finding, rows = unknown(["no log or record of the run was given"], COLLECT), unanswered.rows
    if not rows:
        return finding
    sources = [rows.value(row, "source") for row in rows.events]
    names = tuple(dict.fromkeys(str(source.value) for source in sources))
    return replace(finding, headline=NO_DATA(sources=derived(names, *sources)))


def _waiting(ending: Ending, job: Record) -> Finding:
    """Why it waits, since when, and what Slurm's reason means. Several sources may have records of one job: fields
    missing in the last attempt's record come from the newest record that has them."""
    jobs, remedy = ending.jobs, "wait"

    def newest(field: str, unit: str = "") -> Value | None:
        row = next((row for row in (job, *reversed(jobs.records)) if row.get(field) is not None), None)
        return None if row is None else jobs.value(row, field, unit)

    state, reason = jobs.value(job, "state"), newest("reason")
    shows = [NOT_STARTED_NO_REASON(state=state) if reason is None else NOT_STARTED(state=state, reason=reason)]
    if reason is not None and (pending := pending_reason(str(reason.value))) is not None:
        shows.append(REASON_MEANING(meaning=derived(pending.meaning, reason)))
        remedy = pending.remedy
    if (dependency := newest("dependency")) is not None:
        shows.append(WAITS_FOR(dependency=dependency))
    if (submitted := newest("submit", "time")) is not None:
        shows.append(WAITING_SINCE(time=submitted))
    return present(
        Certainty.ESTABLISHED,
        "none",
        shows,
        headline=shows[0],
        implies=[NO_FAILURE()],
        cannot_decide=[START_UNKNOWN()],
        actions=[action(NEXT_STEPS[remedy], SHOW_JOB, id=jobs.value(job, "id"))],
        variant="pending",
        title=PENDING,
    )


COLLECT = (
    "the job's whole output (slurm-JOB_ID.out, every rank's log)",
    "sacct -P -j JOB_ID --format=ALL and scontrol show job JOB_ID",
    "dmesg -T of the job's nodes",
)

FAMILY = Family(
    code="U0",
    role="last_resort",
    id="unknown",
    title="Unknown: no cause found",
    judge=judge,
    cost_kind="unknown",
    collect=COLLECT,
)
