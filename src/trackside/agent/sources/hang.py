"""Jobs that seem to hang: suspected from outside, then confirmed by stacks, then reported with the state of each rank.

Normally it reads only a few counters of each rank's processes. Only if a job's output has stopped and its ranks do no
work (:mod:`trackside.agent.hang.watch`) are stacks taken, which stops each process for some milliseconds; and only if
these are the same several times is the job reported. Nothing of the job is killed, signaled or written to, except the
pipe that its own flight recorder is configured to read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.agent.hang import py_spy
from trackside.agent.hang.activity import (
    TICKS,
    ProcessActivity,
    RankCounters,
    activity_between,
    last_output_ns,
    read_counters,
)
from trackside.agent.hang.gpu_progress import GpuProgress
from trackside.agent.hang.ranks import Rank, ranks_by_job
from trackside.agent.hang.report import HangReporter, ReportLimits
from trackside.agent.hang.watch import Key, Kind, Suspicion, Thresholds, Watch, activity_kind
from trackside.agent.pseudo_files import uptime_s
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading
from trackside.extras import install_command

MIN_SM_ACTIVITY = 0.2
"""SM activity above what polling alone causes: one or two SMs per channel, up to 32 channels, of 100 or more SMs."""


@dataclass(frozen=True, kw_only=True)
class HangOptions(Thresholds, ReportLimits):
    """The table ``[collect.hang]``."""

    times: int = 3
    """Minimum number of consecutive readings with the same stacks. A process that works on the same line each time is
    recognized by the bytes that it reads and writes and the memory that it touches."""
    reports: int = 8
    """Maximum number of reports per job, however often it resumes and stops again."""
    py_spy: str = ""
    """Path of py-spy; empty: next to this Python, else on PATH."""


class _JobState:
    """State of one job."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.counters: dict[Key, RankCounters] = {}
        self.cores: dict[Key, float] = {}
        self.read_at = 0.0
        self.reports = 0
        self.is_new = True


class Hangs(Collector):
    """Detects and reports hanging jobs."""

    def __init__(self, context: Context) -> None:
        options: HangOptions = context.options
        self._options, self._owners, self._proc = options, context.owners, context.node.proc
        self._jobs: dict[str, _JobState] = {}
        self._gpu_progress = GpuProgress(context.newest)
        program = py_spy.program(options.py_spy)
        if program is None:
            context.say(
                f"hang: py-spy not found{f' at {options.py_spy}' if options.py_spy else ''}: hanging jobs are reported "
                f"without stacks, and only if all their ranks are asleep; {install_command('agent')}"
            )
        self._reporter = HangReporter(self._proc, options, program)

    def collect(self, reading: Reading) -> None:
        """Read the counters of all ranks, and report the jobs that seem to hang."""
        jobs = ranks_by_job(self._owners.processes())
        self._gpu_progress.update()
        for job in self._jobs.keys() - jobs.keys():
            del self._jobs[job]
        for job, ranks in jobs.items():
            if ranks:
                self._update_job(reading, job, ranks)

    def _update_job(self, reading: Reading, job: str, ranks: Sequence[Rank]) -> None:
        now = time.monotonic()
        state = self._jobs.get(job)
        if state is None:
            state = self._jobs[job] = _JobState(Watch(self._options, began_s=now - self._age_s(ranks), last_work_s=now))
        counters = {rank.key: value for rank in ranks if (value := read_counters(self._proc, rank)) is not None}
        self._note(state, ranks, counters, now)
        if state.watch.resumed_s is not None:
            self._reporter.report_resumption(reading, job, ranks, state.watch.resumed_s)
        suspicion = state.watch.suspicion(now) if state.reports < self._options.reports else None
        if suspicion is not None and state.watch.is_due(now) and self._is_confirmed(state.watch, ranks, suspicion, now):
            self._reporter.report(reading, job, ranks, suspicion, state.cores)
            state.watch.report(time.monotonic())
            state.reports += 1

    def _note(self, state: _JobState, ranks: Sequence[Rank], counters: Mapping[Key, RankCounters], now: float) -> None:
        has_output, kinds = False, dict[Key, Kind]()
        for rank in ranks:
            current, previous = counters.get(rank.key), state.counters.get(rank.key)
            if current is None:
                continue
            if previous is None:
                has_output = has_output or not state.is_new  # a process that has just started
                kinds[rank.key] = "working" if not state.is_new else "asleep"
                continue
            activity = activity_between(previous, current, now - state.read_at)
            state.cores[rank.key] = activity.cpu_cores
            has_output = has_output or activity.has_output
            kinds[rank.key] = self._kind(rank, activity)
        output_ns = last_output_ns(counters.values()) if state.is_new else None
        last_output = None if output_ns is None else now - max(0.0, time.time() - output_ns / 1e9)
        state.watch.add_reading(now, has_output, kinds, last_output)
        state.counters, state.read_at, state.is_new = dict(counters), now, False

    def _kind(self, rank: Rank, activity: ProcessActivity) -> Kind:
        """What a rank does. Completed collectives count as work, whatever else is observed."""
        since_collective_s = self._gpu_progress.since_collective_s(rank.main.pid)
        if since_collective_s is not None and since_collective_s < self._options.inactive_s:
            return "working"
        return activity_kind(
            activity, self._options, self._gpu_progress.is_active(rank.main.visible_gpus, MIN_SM_ACTIVITY)
        )

    def _is_confirmed(self, watch: Watch, ranks: Sequence[Rank], suspicion: Suspicion, now: float) -> bool:
        """Whether stacks confirm the suspicion; without stacks, whether all ranks are asleep."""
        inactive = [rank for rank in ranks if rank.key in suspicion.inactive][: self._options.ranks]
        if self._reporter.program is not None:
            threads_by_rank, _ = self._reporter.stacks(inactive, time.monotonic() + self._options.max_total_s / 2)
            if threads_by_rank:
                stacks = {
                    key: {thread.tid: thread.calls for thread in threads} for key, threads in threads_by_rank.items()
                }
                return watch.add_stacks(now, stacks, suspicion, self._options.times)
        return all(watch.kinds[key][0] == "asleep" for key in suspicion.inactive)

    def _age_s(self, ranks: Sequence[Rank]) -> float:
        """Age of the oldest of these processes in seconds."""
        return max(0.0, uptime_s(self._proc) - min(rank.main.started for rank in ranks) / TICKS)


def _open(context: Context) -> Hangs:
    if not os.path.isdir(context.node.proc / "self"):
        raise AgentSourceUnavailable(f"{context.node.proc} is not a proc file system", "mount the host's /proc there")
    return Hangs(context)


SOURCE = AgentSource(
    id="hang",
    title="jobs that seem to hang: states, stacks and flight recorder dumps of their ranks",
    open=_open,
    lines="states, stacks and flight recorder dumps of the ranks of a job that seems to hang",
    timeout_s=150.0,
    needs="CAP_SYS_PTRACE, for processes of other users",
    capabilities=("CAP_SYS_PTRACE",),
    options=HangOptions,
)
