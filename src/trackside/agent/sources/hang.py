"""Jobs that seem to hang: suspected from outside, and then, once a hang, where each of their ranks stands.

While nothing is wrong it reads a few counters of each rank's processes. Only a job whose output has fallen silent and
whose ranks do no work (:mod:`trackside.agent.hang.watch`) has its stacks taken, which stops each process for some
milliseconds; and only if these are the same several times is it reported. Nothing of the job is ended, signalled or
written to, but for the pipe by which its own flight recorder is set up to be asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.agent.hang import py_spy
from trackside.agent.hang.doings import TICKS, Counts, Doings, counts, last_output_ns, since
from trackside.agent.hang.ranks import Rank, jobs_of
from trackside.agent.hang.report import Bounds, Taker
from trackside.agent.hang.seen import Seen
from trackside.agent.hang.watch import Key, Kind, Suspicion, Thresholds, Watch, kind_of
from trackside.agent.pseudo_files import uptime_s
from trackside.agent.source import Collector, Context, Reading, Source, Unavailable

SM_WORKS = 0.2
"""SM activity above what polling alone comes to: one or two SMs a channel, 32 channels at most, of 100 and more."""


@dataclass(frozen=True, kw_only=True)
class Options(Thresholds, Bounds):
    """``[collect.hang]``."""

    times: int = 3
    """How often the same stacks must have been seen, one reading after another. One that is at work on the same line
    each time is told by what it reads, writes and touches."""
    reports: int = 8
    """Of one job at most, however often it goes on and stops again."""
    py_spy: str = ""
    """Where py-spy is; empty: beside this Python, else on PATH."""


class _Job:
    """What is remembered of one job."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.counts: dict[Key, Counts] = {}
        self.cores: dict[Key, float] = {}
        self.read = 0.0
        self.reports = 0
        self.new = True


class Hangs(Collector):
    """The collector."""

    def __init__(self, context: Context) -> None:
        options: Options = context.options
        self._options, self._owners, self._proc = options, context.owners, context.node.proc
        self._jobs: dict[str, _Job] = {}
        self._seen = Seen(context.newest)
        program = py_spy.program(options.py_spy)
        if program is None:
            context.say(
                f"hang: no py-spy{f' at {options.py_spy}' if options.py_spy else ''}: jobs that seem to hang are "
                "reported without stacks, and only if all their ranks sleep; pip install trackside[agent]"
            )
        self._taker = Taker(self._proc, options, program)

    def collect(self, reading: Reading) -> None:
        """Read the counters of all ranks, and report the jobs that seem to hang."""
        jobs = jobs_of(self._owners.processes())
        self._seen.look()
        for job in self._jobs.keys() - jobs.keys():
            del self._jobs[job]
        for job, ranks in jobs.items():
            if ranks:
                self._job(reading, job, ranks)

    def _job(self, reading: Reading, job: str, ranks: Sequence[Rank]) -> None:
        now = time.monotonic()
        known = self._jobs.get(job)
        if known is None:
            known = self._jobs[job] = _Job(Watch(self._options, began=now - self._age_s(ranks), worked=now))
        read = {rank.key: told for rank in ranks if (told := counts(self._proc, rank)) is not None}
        self._note(known, ranks, read, now)
        if known.watch.resumed_s is not None:
            self._taker.resumed(reading, job, ranks, known.watch.resumed_s)
        suspicion = known.watch.suspicion(now) if known.reports < self._options.reports else None
        if suspicion is not None and known.watch.is_due(now) and self._confirmed(known.watch, ranks, suspicion, now):
            self._taker.report(reading, job, ranks, suspicion, known.cores)
            known.watch.report(time.monotonic())
            known.reports += 1

    def _note(self, known: _Job, ranks: Sequence[Rank], read: Mapping[Key, Counts], now: float) -> None:
        spoke, kinds = False, dict[Key, Kind]()
        for rank in ranks:
            counted, before = read.get(rank.key), known.counts.get(rank.key)
            if counted is None:
                continue
            if before is None:
                spoke = spoke or not known.new  # a process that has just begun
                kinds[rank.key] = "working" if not known.new else "asleep"
                continue
            doings = since(before, counted, now - known.read)
            known.cores[rank.key] = doings.cores
            spoke = spoke or doings.spoke
            kinds[rank.key] = self._kind(rank, doings)
        output = last_output_ns(read.values()) if known.new else None
        heard = None if output is None else now - max(0.0, time.time() - output / 1e9)
        known.watch.note(now, spoke, kinds, heard)
        known.counts, known.read, known.new = dict(read), now, False

    def _kind(self, rank: Rank, doings: Doings) -> Kind:
        """Collectives that are completed are work, whatever else is seen."""
        frozen = self._seen.frozen_s(rank.main.pid)
        if frozen is not None and frozen < self._options.still_s:
            return "working"
        return kind_of(doings, self._options, self._seen.works(rank.main.visible_gpus, SM_WORKS))

    def _confirmed(self, watch: Watch, ranks: Sequence[Rank], suspicion: Suspicion, now: float) -> bool:
        """Whether stacks bear it out; where they can't be had, only that all ranks sleep."""
        standing = [rank for rank in ranks if rank.key in suspicion.standing][: self._options.ranks]
        if self._taker.program is not None:
            found, _ = self._taker.stacks(standing, time.monotonic() + self._options.all_s / 2)
            if found:
                stacks = {key: {each.tid: each.calls for each in threads} for key, threads in found.items()}
                return watch.compared(now, stacks, suspicion, self._options.times)
        return all(watch.kinds[key][0] == "asleep" for key in suspicion.standing)

    def _age_s(self, ranks: Sequence[Rank]) -> float:
        """For how long the oldest of these processes has run."""
        return max(0.0, uptime_s(self._proc) - min(rank.main.started for rank in ranks) / TICKS)


def _open(context: Context) -> Hangs:
    if not os.path.isdir(context.node.proc / "self"):
        raise Unavailable(f"{context.node.proc} is no proc file system", "mount the host's /proc there")
    return Hangs(context)


SOURCE = Source(
    id="hang",
    title="jobs that seem to hang: states, stacks and flight recorders of their ranks",
    open=_open,
    lines="states, stacks and flight recorders of the ranks of a job that seems to hang",
    timeout_s=150.0,
    needs="CAP_SYS_PTRACE, for processes of other users",
    options=Options,
)
