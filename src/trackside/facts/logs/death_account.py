"""How a process died, by the strongest kind of evidence.

The kinds, strongest first: a report of a fatal signal, a log line of the OOM killer, its counter, a worker that was
lost without a message, and the scheduler's record. Each gives the signal, the ranks, corroborating evidence, and the
host memory there at that time. A counted kill names no process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.catalog.signals import signal_name
from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.hardware.host_memory import HostMemory, HostShortage
from trackside.facts.logs.deaths import KILL, Deaths
from trackside.facts.logs.ending import CUT_SHORT, ENDED_WELL, FATAL_SIGNALS, LIVE_STATES, RECORDED, Ending, exit_signal
from trackside.facts.logs.oom_kills import OomKills
from trackside.facts.ranks import ranks_of
from trackside.finding import Certainty, Claim, Sentence
from trackside.model import Event, EventRole, Run

ABRUPT_END = re.compile(r"has abruptly died|was terminated abruptly|terminated abruptly")
AMBIGUOUS_EXIT_CODES = (4, 6, 7, 8, 9, 11)
"""Exit codes that sacct before 25.11 also writes for 128 + n (139 becomes 11:0)."""

WORKER_LOST = Sentence("a worker process died without a traceback: {line}")
RAY_WORKER_LOST = Sentence("Ray's worker with process id {pid} died without a traceback: {detail}")
RAY_NAMES_CAUSES = Sentence(
    "Ray names its usual causes, and does not say which it was: the kernel's OOM killer, ray stop --force, or a crash"
)
RAY_DETAIL = re.compile(
    r"Worker PID: (?P<pid>\d{1,9})\b.*?Worker exit detail: (?P<detail>.{1,300}?)"
    r"(?P<causes> (?:Some common causes include|There are some potential root causes).*)?$"
)
BY_RECORD = Sentence("the scheduler recorded {code}, which is {signal}")
AS_EXIT_CODE = Sentence("the scheduler recorded exit code {code}, which older Slurm releases use for {signal}")

MEMORY_NOT_CHECKED = HostShortage()


@dataclass(frozen=True)
class Limits:
    """When a kill stopped the training."""

    stopped_s: float = 600.0
    """Maximum time between the last logged step and the kill: points are printed at least every few minutes."""


@dataclass(frozen=True, slots=True)
class DeathAccount:
    """What one kind of evidence shows about a death."""

    certainty: Certainty
    number: int | None
    """The signal; None if it is unknown."""
    claims: tuple[Claim, ...] = ()
    row: Event | None = None
    ranks: tuple[int, ...] = ()
    memory: HostShortage = MEMORY_NOT_CHECKED
    of_memory: bool = False
    """Whether it shows that host memory was the reason."""
    outlived: bool = False
    """Whether the run continued without the process."""
    exception: tuple[str, str] | None = None


@fact(limits=Limits())
def death_account(
    deaths: Deaths, kills: OomKills, memory: HostMemory, ending: Ending, run: Run, limits: Limits
) -> Maybe[DeathAccount]:
    """Needs any kind of evidence of a death; otherwise missing."""
    return (
        _by_signal(deaths, kills, memory, ending)
        or _by_oom_line(kills, memory, ending)
        or _by_oom_count(deaths, memory, ending, run, limits)
        or _by_lost_worker(deaths)
        or _by_record(deaths, kills, memory, ending)
        or Missing("nothing shows a death")
    )


def _by_signal(deaths: Deaths, kills: OomKills, memory: HostMemory, ending: Ending) -> DeathAccount | None:
    """The death as reported by a fatal signal that nothing else explains."""
    report, oom_report, bad_end = deaths.report, kills.report, ending.abnormal
    if report is None:
        return None
    main, ranks, kill = report.main, report.ranks, report.main.number == KILL
    elsewhere = bad_end is not None and bad_end.cites[0].plane != main.line.cites[0].plane
    return DeathAccount(
        Certainty.ESTABLISHED if report.strong or oom_report is not None or elsewhere else Certainty.SUPPORTED,
        main.number,
        report.claims if oom_report is None or not kill else (oom_report.claim, *report.claims),  # the reason first
        main.row,
        ranks,
        memory.at(main.row, ranks) if kill else MEMORY_NOT_CHECKED,
        of_memory=oom_report is not None,
        exception=report.exception,
    )


def _by_oom_line(kills: OomKills, memory: HostMemory, ending: Ending) -> DeathAccount | None:
    """The death as a log line of the kernel, Slurm or Ray reports it: host memory ran out."""
    oom_report = kills.report
    if oom_report is None:
        return None
    ranks = ranks_of([oom_report.event], ending.launchers) if oom_report.event is not None else ()
    shortage = memory.at(oom_report.event)
    return DeathAccount(
        Certainty.ESTABLISHED, KILL, (oom_report.claim,), oom_report.event, ranks, shortage, of_memory=True
    )


def _by_oom_count(deaths: Deaths, memory: HostMemory, ending: Ending, run: Run, limits: Limits) -> DeathAccount | None:
    """Without a log line: by the kernel's count of kills, or by exhausted memory as the run failed."""
    if deaths.own_exceptions or deaths.memory:
        return None
    state, good_end, bad_end = ending.state, ending.completed, ending.abnormal
    ended = good_end is not None or (state is not None and state.value in CUT_SHORT | LIVE_STATES)
    shortage = memory.near((), None if ended else run.end)
    if not shortage.kills and (ended or bad_end is None or not shortage.short):
        return None
    if ended and not (bad_end is not None and _stopped_at(shortage.kills[0].until, deaths, run, limits)):
        end_claims = (
            (ENDED_WELL(state=good_end),)
            if good_end is not None
            else ()
            if bad_end is None
            else (RECORDED(state=bad_end),)
        )
        claims = (*shortage.claims, *end_claims)
        return DeathAccount(Certainty.POSSIBLE, KILL, claims, memory=shortage, of_memory=True, outlived=True)
    confirmed = bool(shortage.kills) and (shortage.short or shortage.ample) and bad_end is not None
    certainty = Certainty.ESTABLISHED if confirmed else Certainty.SUPPORTED
    return DeathAccount(certainty if shortage.kills else Certainty.POSSIBLE, KILL, memory=shortage, of_memory=True)


def _by_lost_worker(deaths: Deaths) -> DeathAccount | None:
    """The death as reported by a parent, Ray or a pool whose worker disappeared without a message, if nothing explains
    it; the signal is unknown."""
    if deaths.own_exceptions or deaths.evidence["timeouts"] or deaths.memory:
        return None
    exits, exceptions = deaths.evidence["exits"], deaths.exceptions.frame
    ray = (row for row in exits.events if row.get("source") == "ray" and row.role is EventRole.ROOT)
    rows = [(row, exits) for row in ray if exit_signal(row) is None]
    rows += [(row, exceptions) for row in exceptions.events if ABRUPT_END.search(str(row.get("message") or ""))]
    for row, frame in rows:
        if not deaths.restarts.has_recovered(row):
            return DeathAccount(Certainty.SUPPORTED, None, _lost_worker_claims(frame.value(row, "text")), row)
    return None


def _lost_worker_claims(line: Value) -> tuple[Claim, ...]:
    """How a worker was lost. Ray's message ends in a list of usual causes, the last of which reads like the finding."""
    if (match := RAY_DETAIL.search(str(line.value))) is None:
        return (WORKER_LOST(line=line),)
    lost = RAY_WORKER_LOST(pid=derived(match["pid"], line), detail=derived(match["detail"], line))
    return (lost,) if match["causes"] is None else (lost, RAY_NAMES_CAUSES(line=line))


def _by_record(deaths: Deaths, kills: OomKills, memory: HostMemory, ending: Ending) -> DeathAccount | None:
    """The death as the scheduler's records alone show it, if no exception explains the end and nobody else ended the
    run."""
    job, jobs, steps = ending.job, ending.jobs, kills.steps
    if deaths.own_exceptions or job is None or job.get("state") in CUT_SHORT or job.get("state") == "COMPLETED":
        return None
    for frame, row in ((jobs, job), *((steps, row) for row in steps.records if row.get("state") not in CUT_SHORT)):
        number = exit_signal(row)
        if number in FATAL_SIGNALS:
            code = frame.value(row, "signal" if row.get("signal") else "exit_code")
            return _record_account(BY_RECORD, number, code, memory, Certainty.SUPPORTED)
    status = job.get("exit_code")
    # A shell or srun names the signal in the output; where that was read and names none, it is an exit code.
    if status in AMBIGUOUS_EXIT_CODES and isinstance(status, int) and not deaths.evidence.has("exits"):
        return _record_account(AS_EXIT_CODE, status, jobs.value(job, "exit_code"), memory, Certainty.POSSIBLE)
    return None


def _record_account(
    sentence: Sentence, number: int, code: Value, memory: HostMemory, certainty: Certainty
) -> DeathAccount:
    claim = sentence(code=code, signal=derived(signal_name(number), code))
    shortage = memory.at(None) if number == KILL else MEMORY_NOT_CHECKED
    return DeathAccount(certainty, number, (claim,), memory=shortage)


def _stopped_at(time: float, deaths: Deaths, run: Run, limits: Limits) -> bool:
    """Whether training continued until about this time, and not after it."""
    times = [point.time for point in deaths.points if point.time is not None]
    end, near_s = run.end, limits.stopped_s
    return bool(times) and end is not None and abs(max(times) - time) <= near_s < end - max(times)
