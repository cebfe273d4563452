"""Accounts of a process's death, by each kind of evidence that may have one.

Kinds: a report of a fatal signal, a word of the OOM killer, its count, a worker that was lost without a word, and the
scheduler's record. Each says which signal it was, on which ranks, what else agrees with it, and what was sampled of the
host memory there at that time. A kill that is counted names no process.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.facts.fact import fact
from trackside.facts.hardware.host_memory import HostMemory, HostShortage
from trackside.facts.logs.deaths import KILL, Deaths
from trackside.facts.logs.ending import CUT_SHORT, LIVE_STATES, Ending
from trackside.facts.logs.oom_kills import OomKills
from trackside.facts.ranks import ranks_of
from trackside.finding import Certainty, Claim, Sentence
from trackside.model import Event, Run

ENDED_WELL = Sentence("the run ended well: {state}")
STATE = Sentence("the scheduler recorded {state}")

NOT_LOOKED_AT = HostShortage()


@dataclass(frozen=True)
class Limits:
    """What counts as stopped by a kill."""

    stopped_s: float = 600.0
    """Between the last training point and a kill that stopped training: points are printed every few minutes at
    least."""


@dataclass(frozen=True, slots=True)
class DeathAccount:
    """What one kind of evidence says of a death."""

    certainty: Certainty
    number: int | None
    """The signal; None if it isn't known."""
    claims: tuple[Claim, ...] = ()
    row: Event | None = None
    ranks: tuple[int, ...] = ()
    memory: HostShortage = NOT_LOOKED_AT
    of_memory: bool = False
    """Whether it says that host memory was why."""
    outlived: bool = False
    """Whether the run lived on without the process."""
    exception: tuple[str, str] | None = None


@dataclass(frozen=True, eq=False)
class DeathAccounts:
    """The accounts of a death, each None if that evidence has none."""

    deaths: Deaths
    kills: OomKills
    memory: HostMemory
    ending: Ending
    run: Run
    limits: Limits

    @property
    def first(self) -> DeathAccount | None:
        """The account of the strongest kind of evidence that has one."""
        kinds = (self.reported, self.worded, self.counted, self.lost, self.recorded)
        return next((account for kind in kinds if (account := kind()) is not None), None)

    def reported(self) -> DeathAccount | None:
        """By reports of a fatal signal that nothing else accounts for."""
        report, memory, bad = self.deaths.report, self.kills.report, self.ending.abnormal
        if report is None:
            return None
        main, ranks, kill = report.main, report.ranks, report.main.number == KILL
        elsewhere = bad is not None and bad.cites[0].plane != main.line.cites[0].plane
        return DeathAccount(
            Certainty.ESTABLISHED if report.strong or memory is not None or elsewhere else Certainty.SUPPORTED,
            main.number,
            report.claims if memory is None or not kill else (*report.claims, memory.claim),
            main.row,
            ranks,
            self.memory.at(main.row, ranks) if kill else NOT_LOOKED_AT,
            of_memory=memory is not None,
            exception=report.exception,
        )

    def worded(self) -> DeathAccount | None:
        """By a word of the kernel, of Slurm or of Ray that the run ran out of host memory."""
        report = self.kills.report
        if report is None:
            return None
        row, memory = report.event, self.memory.at(report.event)
        ranks = ranks_of([row], self.ending.launchers) if row is not None else ()
        return DeathAccount(Certainty.ESTABLISHED, KILL, (report.claim,), row, ranks, memory, of_memory=True)

    def counted(self) -> DeathAccount | None:
        """Without a word: by the kernel's count of kills, or by memory that was gone, as the run failed."""
        if self.deaths.raised or self.deaths.memory:
            return None
        state, well, bad = self.ending.state, self.ending.completed, self.ending.abnormal
        ended = well is not None or (state is not None and state.value in CUT_SHORT | LIVE_STATES)
        memory = self.memory.near((), None if ended else self.run.end)
        if not memory.kills and (ended or bad is None or not memory.short):
            return None
        if ended and not (bad is not None and self._stopped(memory.kills[0].until)):
            how = (ENDED_WELL(state=well),) if well is not None else () if bad is None else (STATE(state=bad),)
            claims = (*memory.claims, *how)
            return DeathAccount(Certainty.POSSIBLE, KILL, claims, memory=memory, of_memory=True, outlived=True)
        twice = bool(memory.kills) and (memory.short or memory.ample) and bad is not None
        certainty = Certainty.ESTABLISHED if twice else Certainty.SUPPORTED
        return DeathAccount(certainty if memory.kills else Certainty.POSSIBLE, KILL, memory=memory, of_memory=True)

    def lost(self) -> DeathAccount | None:
        """By a parent whose worker went without a word: its signal isn't known."""
        if self.deaths.lost is None:
            return None
        row, claim = self.deaths.lost
        return DeathAccount(Certainty.SUPPORTED, None, (claim,), row)

    def recorded(self) -> DeathAccount | None:
        """By the scheduler's records alone, if no exception accounts for the end."""
        record = self.deaths.recorded
        if record is None or self.deaths.raised:
            return None
        memory = self.memory.at(None) if record.number == KILL else NOT_LOOKED_AT
        certainty = Certainty.POSSIBLE if record.ambiguous else Certainty.SUPPORTED
        return DeathAccount(certainty, record.number, (record.claim,), memory=memory)

    def _stopped(self, moment: float) -> bool:
        """Whether training went on until about a moment, and not after it."""
        times = [point.time for point in self.deaths.points if point.time is not None]
        end, near_s = self.run.end, self.limits.stopped_s
        return bool(times) and end is not None and abs(max(times) - moment) <= near_s < end - max(times)


@fact(limits=Limits())
def death_accounts(
    deaths: Deaths,
    kills: OomKills,
    memory: HostMemory,
    ending: Ending,
    run: Run,
    limits: Limits,
) -> DeathAccounts:
    """Of everything that may show a death; missing where deaths are."""
    return DeathAccounts(deaths, kills, memory, ending, run, limits)
