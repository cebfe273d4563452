"""Idle-GPU hang: the job holds its GPU and does nothing.

Meaning
-------
A job keeps its allocation without computing: the process is alive but stuck before or between GPU work, in a host-side
deadlock, a blocking wait, a stuck DataLoader or a file that never answers.

What it looks like
------------------
In metrics: memory or allocation held, engine and SM activity and kernel launches near zero for long; stronger still
when no process ever attached to the GPU. A single GPU may also be kept busy by one kernel that never ends.
A stack taken while it hangs (by the agent, or with py-spy) names the line of code that the process stands at.
Without either only a shadow of it: an empty or silent log of a job that ran until its time limit.

Not this when
-------------
The run was there for less than ten minutes when somebody cancelled it.
The log shows progress up to the end; several ranks wait for each other (rendezvous or collective hang); the
job is in a phase of CPU work with progress; it finished and is only cleaning up.

Impact
------
The allocation is wasted until somebody or the time limit ends it.

Do next
-------
Cancel it; look where the process waits (py-spy, /proc/PID/stack), and rerun with a wall-clock limit.

What it cannot tell
-------------------
The host-side cause, where no stack was taken. Without GPU metrics: whether the GPU was idle at all, so that a silent
log alone stays possible only.

References
----------
The catalogue of failure families, C3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.signals import NEED, STANDSTILL, STILL_GOING, STILL_SAYS, Limits, nodes_of, watched
from trackside.facts.gpus import ranks_at
from trackside.facts.logs import absentee, stacks
from trackside.facts.logs.ending import OWN_END_SAYS, completed, disposition, own_end
from trackside.facts.logs.silence import REAPED, duration, last_sign, several_ranks, stood_still
from trackside.facts.logs.stacks import Stood, stood
from trackside.facts.training.learning import training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Outcome, absent, action, claim, found, unknown
from trackside.model import Role, Run
from trackside.query import events, record

if TYPE_CHECKING:
    from trackside.facts.gpu.activity import GpuActivity

COLLECT = (
    "DCGM_FI_PROF_SM_ACTIVE, DCGM_FI_PROF_GR_ENGINE_ACTIVE and DCGM_FI_DEV_FB_USED of the job's GPUs over the run",
    "the job's output with time stamps, and sacct with State, Start, End and Timelimit",
    "a stack of the process while it hangs (py-spy dump, cat /proc/PID/stack)",
)


IMPORTS_S = 30.0
"""Within which a job may not have come to its first word: importing a framework takes that long on a cold node."""


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """GPUs that are held and do nothing, of a run that did not end by itself; without metrics, a silent log."""
    state = disposition(evidence)
    well = completed(evidence)
    if well is not None:
        return absent(claim("completed", state=well))
    limit = [row for row in evidence["notices"].events if row.get("reason") == "time_limit"]
    if state is not None and state.value not in REAPED and not limit:
        return absent(claim("not_reaped", state=state))
    closing = own_end(evidence)
    if closing is not None:
        return absent(closing)
    own = [row for row in evidence["exceptions"].events if row.role is Role.ROOT]
    if own:
        return absent(claim("raised", type=evidence["exceptions"].value(own[0], "type")))
    end = state if state is not None else evidence["notices"].value(limit[0], "text") if limit else None
    caught = stood(evidence, training_points(evidence["progress"]))
    if caught is not None and caught.waiting and (len(caught.ranks) > 1 or several_ranks(evidence, run)):
        return absent(*caught.shows())
    away = absentee.from_dumps(evidence["dumps"])
    if away is not None:
        return absent(away.claim)
    seen = watched(evidence, run)
    told = _by_metrics(evidence, run, limits, seen, end) if seen is not None else None
    if caught is not None and told is not None and told.outcome is Outcome.FOUND:
        return _at_its_line(told, caught, Certainty.ESTABLISHED)
    if told is not None:
        return told
    quiet = stood_still(evidence, run, limits) if caught is not None else None
    if caught is not None and (caught.suspected or quiet is not None):
        shows = [claim("silent", seconds=quiet[0])] if quiet is not None and quiet[1] else []
        shows += [claim("reaped", state=end)] if end is not None else []
        whole = len(caught.ranks) >= (run.n_ranks or 1)  # of the others, some may be waited for elsewhere
        certainty = Certainty.SUPPORTED if whole else Certainty.POSSIBLE
        return _at_its_line(_found(evidence, shows, caught), caught, certainty)
    return _by_log(evidence, run, limits, end)


def _at_its_line(finding: Finding, caught: Stood, certainty: Certainty) -> Finding:
    """What was found, and the line of code that the process stands at: a witness of its own."""
    place = caught.place()
    if place is None:
        return finding
    told = [each for each in caught.shows() if each not in finding.shows]
    planes = tuple(dict.fromkeys([*finding.planes, *(cite.plane for each in told for cite in each.cites)]))
    return replace(
        finding,
        certainty=certainty,
        shows=(*finding.shows, *told),
        planes=planes,
        ranks=finding.ranks or tuple(sorted(caught.ranks)),
        cannot_decide=tuple(each for each in finding.cannot_decide if each.key != "why"),
        actions=(action("look_line", place=place),),
    )


def _by_metrics(evidence: Evidence, run: Run, limits: Limits, seen: GpuActivity, end: Value | None) -> Finding | None:
    """What the GPUs say; None where they don't."""
    from trackside.facts.gpu.signals import all_along, stall_of

    idle = all_along(evidence, run, seen)
    if idle is not None:
        if idle.forming:
            return absent(claim("formed", nodes=derived(len(nodes_of(seen.gpus)), idle.seconds)))
        if idle.seconds.number < limits.least_s:
            return None
        start = float(seen.times[0]) - seen.step
        talk = _talk(evidence, start + limits.least_s)
        if talk is not None:
            return absent(claim("on_the_host", time=talk))
        strong = idle.attached is False or len(idle.claims) > 2  # two signals and more
        return _held(evidence, run, list(idle.claims), end, seen.gpus, run.start, strong)
    still = stall_of(evidence, run, seen).at_end()
    users = seen.named(seen.users)
    alone = not several_ranks(evidence, run)  # then no collective keeps it busy: a kernel without end does
    if still is not None and len(users) == 1 and (alone or not still.frozen):
        talk = _talk(evidence, still.since + limits.least_s)
        if talk is not None:
            return absent(claim("on_the_host", time=talk))
        return _held(evidence, run, list(still.claims), end, users, still.since, still.sure)
    if still is not None:
        return absent(
            claim("waiting", count=derived(len(users), still.seconds, unit="GPUs" if len(users) > 1 else "GPU"))
        )
    name = seen.basis
    grid = evidence.grid(name) if name is not None else None
    if grid is not None and len(users) and name != "utilisation" and stall_of(evidence, run, seen).to_the_end:
        counted = name in ("launches", "collectives")
        level = grid.value("sum" if counted else "median", unit="" if name != "power" else None)
        return absent(claim(f"worked_{name}", level=level))
    return None


def _talk(evidence: Evidence, since: float) -> Value | None:
    """A stamped sign of the job's own doings after a moment: it works on the host."""
    sign = last_sign(evidence)
    return sign if sign is not None and isinstance(sign.value, (int, float)) and sign.value > since else None


def _held(
    evidence: Evidence, run: Run, shows: list[Claim], end: Value | None, gpus: tuple[str, ...], since: float | None,
    strong: bool,
) -> Finding:  # fmt: skip
    """GPUs at rest; more than supported where the log, too, says nothing or the scheduler that they are held."""
    said = _said(evidence)
    if said is not None and said.value == 0:
        shows.append(claim("empty", count=said))
    if end is not None:
        shows.append(claim("reaped", state=end))
    agree = end is not None or (said is not None and said.value == 0)
    certainty = Certainty.ESTABLISHED if strong and agree else Certainty.SUPPORTED
    return found(
        certainty,
        "job",
        shows,
        implies=[claim("idle")],
        cannot_decide=[claim("why")],
        actions=[action("look", "stack")],
        since=since,
        ranks=ranks_at(run, gpus),
        gpus=gpus,
        nodes=nodes_of(gpus),
    )


def _by_log(evidence: Evidence, run: Run, limits: Limits, end: Value | None) -> Finding:
    """A reaped run that was there for long and said nothing at all, or nothing for long, and that is no affair between
    ranks. A limit is as long as its user thought it would take; a user cancels a job for any reason."""
    if end is None:
        return unknown(["GPU activity over the run, or the scheduler's record of its end"], COLLECT)
    if not evidence.has("logs"):
        return unknown(["GPU activity over the run, or its log"], COLLECT)
    held = duration(evidence)
    by_limit = end.value == "TIMEOUT" or disposition(evidence) is None
    if held is not None and held.number < (IMPORTS_S if by_limit else limits.least_s):
        return absent(claim("brief", seconds=held, state=end))
    points = training_points(evidence["progress"])
    said = _said(evidence)
    if said is not None and said.value == 0:
        return _found(evidence, [claim("empty", count=said), claim("reaped", state=end)])
    met = _met(evidence)
    if met is not None and several_ranks(evidence, run):
        return absent(claim("several", line=met))
    still = stood_still(evidence, run, limits)
    if still is not None:
        return _found(evidence, [claim("silent", seconds=still[0]), claim("reaped", state=end)])
    if points and points[-1].time is not None:
        return absent(claim("worked", point=evidence["progress"].value(points[-1], "text")))
    return unknown(["GPU activity over the run; the log carries no times to judge by"], COLLECT)


def _met(evidence: Evidence) -> Value | None:
    """What shows that ranks had begun to work together: a standstill is then an affair between them."""
    for name in ("progress", "ready", "communicators", "inits"):
        for row in evidence[name].events:
            return evidence[name].value(row, "text")
    return None


def _said(evidence: Evidence) -> Value | None:
    """Lines that the job itself wrote: those of its logs less the scheduler's closing words."""
    logs, notices = evidence["logs"], evidence["notices"]
    lines = [row for row in logs.events if isinstance(row.get("lines"), int)]
    if not lines:
        return None
    paths = {row.at.path for row in lines}
    closing = [row for row in notices.events if row.at.path in paths]
    closing += [row for row in evidence["exits"].events if row.at.path in paths and row.get("source") == "srun"]
    own = sum(int(str(row.get("lines"))) for row in lines) - len({(row.at.path, row.at.line) for row in closing})
    sources = [logs.value(row, "lines") for row in lines]
    sources += [notices.value(row, "text") for row in notices.events if row.at.path in paths]
    return derived(max(0, own), *sources, unit="lines")


def _found(evidence: Evidence, shows: list[Claim], caught: Stood | None = None) -> Finding:
    shows = [*shows, *(caught.shows() if caught is not None else ())]
    last = evidence["logs"].events[-1:]
    return found(
        Certainty.POSSIBLE,
        "job",
        shows,
        implies=[claim("idle")],
        cannot_decide=[claim("why"), claim("no_metric")],
        actions=[action("look", "stack")],
        at=last[0].at if last else None,
    )


FAMILY = Family(
    code="C3",
    id="idle-gpu-hang",
    title="Idle-GPU hang: the job holds its GPU and does nothing",
    pictured=("idle-gpu-with-memory", "busy-wait"),
    asks={
        **STANDSTILL,
        "exceptions": events("exception"),
        "stacks": events("stack"),
        "dumps": record("flight_recorder_group"),
    },
    needs=(("jobs", "notices", "stacks", *NEED),),
    limits=Limits(),
    explains=("F3", "H1"),
    rivals=("C1", "C2", "D1"),
    collect=COLLECT,
    by_silence=True,
    says={
        **STILL_SAYS,
        **absentee.SAYS,
        **stacks.SAYS,
        "formed": "the GPUs of {nodes} nodes, whose ranks were to meet, never worked: that is the rendezvous",
        "on_the_host": "the job went on by itself without its GPU, last at {time}",
        "waiting": "{count} stopped together: that is an affair between ranks",
        "worked_launches": "{level} kernels were launched",
        "worked_collectives": "{level} collectives were completed",
        "worked_sm": "SM activity was {level} (median)",
        "worked_power": "the GPUs drew {level} (median), more than at rest",
        "empty": "the job wrote {count} of its own to its log",
        "silent": "nothing was heard of the job for {seconds} before its end",
        "reaped": "it was ended from outside: {state}",
        "idle": "the allocation is held and nothing shows that work is done with it; an empty log is not health",
        "why": "what the process waits for on the host: a lock, a pipe, storage or a stuck worker",
        "no_metric": "whether the GPU was idle: no GPU metric was given",
        "look": "see where the process waits, cancel it, and rerun with a wall-clock limit",
        "look_line": "look at the line that it stands at, {place}, and at what it waits for there; cancel the job, and "
        "rerun with a wall-clock limit",
        "stack": "py-spy dump --pid PID; cat /proc/PID/stack",
        "completed": "the run ended well: {state}",
        **OWN_END_SAYS,
        "not_reaped": "neither a time limit nor somebody ended it: the scheduler recorded {state}",
        "brief": "it was there for {seconds} only before it was ended: {state}",
        "raised": "the run ended with {type}",
        "several": "several ranks had met: {line}",
        "worked": "the run worked up to its end: {point}",
    },
    going={
        **STILL_GOING,
        **stacks.STILL_SAYS,
        "silent": "nothing has been heard of the job for {seconds}",
        "reaped": "it goes on: {state}",
        "brief": "it has been there for {seconds} only: {state}",
        "worked": "the run is at work: {point}",
        "raised": "the job raised {type}",
        "not_reaped": "neither a time limit nor somebody ended it: the scheduler has it as {state}",
    },
    judge=judge,
    loses="standstill",
)
