"""What is taken of a job that seems to hang, and the lines that it is sent as: bounded in time, ranks and bytes.

The kernel's word of all ranks comes first, since it costs nothing and needs nobody's help; then the stacks, of those
ranks first that stand apart from most, as the one at fault does; then flight recorders, which were asked at the start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.hang import py_spy, recorder
from trackside.agent.hang.doings import state_of
from trackside.agent.hang.ranks import Rank
from trackside.agent.hang.watch import Key, Suspicion
from trackside.agent.source import Reading
from trackside.catalog.hang_lines import (
    State,
    Thread,
    Who,
    piece_line,
    place_of,
    resumed_line,
    state_line,
    thread_line,
    words_line,
)
from trackside.catalog.python_stack import collective_in

NAME = "hang"
"""The stream's name, as ``filename``."""


MOST_STATES = 256
"""Ranks of which the kernel's word is taken."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much may be taken."""

    one_s: float = 5.0
    """A dump takes 10 to 200 ms, with native frames of PyTorch 1.5 s; one of a process that does not answer must not
    keep the others waiting."""
    all_s: float = 60.0
    ranks: int = 64
    bytes: int = 4 << 20
    """Of stacks, and of all flight recorders together."""
    recorder_s: float = 10.0
    """For a flight recorder to dump: its pipe is looked at once a second."""
    native: bool = True
    """Native frames of the ranks that wait without saying for what."""
    blocking: bool = True
    """Stop a process for the milliseconds in which its stack is read; else it may be read wrong."""


@dataclass(slots=True)
class Taker:
    """Takes what is to be known of ranks. ``program``: py-spy, None where there is none."""

    proc: Path
    bounds: Bounds
    program: str | None

    def stacks(self, ranks: Sequence[Rank], end: float) -> tuple[dict[Key, tuple[Thread, ...]], dict[Key, str]]:
        """Python stacks, and why there are none of others. ``end``: in monotonic seconds."""
        found: dict[Key, tuple[Thread, ...]] = {}
        failed: dict[Key, str] = {}
        for rank in ranks:
            try:
                found[rank.key] = self._stack(rank, end, native=False)
            except py_spy.NoStack as error:
                failed[rank.key] = str(error)
        return found, failed

    def _stack(self, rank: Rank, end: float, native: bool) -> tuple[Thread, ...]:
        if self.program is None:
            raise py_spy.NoStack("py-spy is not there: pip install trackside[agent]")
        left = min(self.bounds.one_s, end - time.monotonic())
        if left <= 0:
            raise py_spy.NoStack(f"the {self.bounds.all_s:g} s for all ranks are over")
        seen = state_of(self.proc, rank)
        if seen is None:
            raise py_spy.NoStack("the process has ended")
        # One that is stopped, or sleeps uninterruptibly, does not answer to ptrace.
        quiet = not self.bounds.blocking or seen.state in ("D", "T", "t")
        pid = rank.main.pid
        if native and not quiet:
            try:
                return py_spy.stacks(self.program, pid, timeout_s=left, native=True)
            except py_spy.NoStack:
                left = min(self.bounds.one_s, end - time.monotonic())
        return py_spy.stacks(self.program, pid, timeout_s=max(left, 0.1), nonblocking=quiet)

    def report(
        self, reading: Reading, job: str, ranks: Sequence[Rank], suspicion: Suspicion, cores: Mapping[Key, float]
    ) -> None:
        """Add the lines of a job that seems to hang."""
        said = _Lines(reading, self.bounds.bytes)
        end = time.monotonic() + self.bounds.all_s
        chosen = list(ranks)[:MOST_STATES]
        said.add(Who(job), words_line(Who(job), _why(suspicion, len(ranks))))
        asked = self._asked(chosen)
        states = {}
        for rank in chosen:
            seen = state_of(self.proc, rank, cores.get(rank.key))
            if seen is not None:
                states[rank.key] = seen
                said.add(_who(rank), state_line(_who(rank), seen))
        order = sorted(chosen, key=_apart(states, cores))
        self._stacks(said, order[: self.bounds.ranks], end)
        if len(ranks) > self.bounds.ranks:
            said.add(Who(job), words_line(Who(job), f"stacks of {self.bounds.ranks} of {len(ranks)} ranks were taken"))
        self._recorders(said, asked, end)
        if said.left_out:
            reading.lost["hang_lines"] += said.left_out

    def _stacks(self, said: _Lines, ranks: Sequence[Rank], end: float) -> None:
        """Python stacks of all; then, in the time that is left, native ones of those that do not say what they wait
        for."""
        found, failed = self.stacks(ranks, end)
        for rank in ranks if self.bounds.native else ():
            if rank.key in found and not _says_why(found[rank.key][0]):
                with suppress(py_spy.NoStack):
                    found[rank.key] = self._stack(rank, end, native=True)
        for rank in ranks:
            who = _who(rank)
            for thread in found.get(rank.key, ()):
                said.add(who, thread_line(who, thread))
            if rank.key in failed:
                said.add(who, words_line(who, f"no stack: {failed[rank.key]}"))

    def _asked(self, ranks: Sequence[Rank]) -> list[tuple[Rank, recorder.Recorder, int, bool]]:
        """Flight recorders, when each had dumped last, and whether it was asked now."""
        found = []
        for rank in ranks[: self.bounds.ranks]:
            one = recorder.recorder(self.proc, rank)
            if one is not None:
                before = recorder.written_ns(one)
                found.append((rank, one, before, recorder.ask(one)))
        return found

    def _recorders(self, said: _Lines, asked: Sequence[tuple[Rank, recorder.Recorder, int, bool]], end: float) -> None:
        left = self.bounds.bytes
        until = min(end, time.monotonic() + self.bounds.recorder_s)
        for rank, one, before, was_asked in asked:
            if was_asked:
                _settled(one, before, until)
            newest = recorder.written_ns(one)
            recent = time.time_ns() - 3600 * 10**9
            try:
                # One that was made before the process was asked is worth sending, too, if it tells of this hang.
                found = recorder.pieces(one, recent if newest <= before else before + 1, left)
            except recorder.NoDump as error:
                if was_asked or newest > recent:
                    said.add(_who(rank), words_line(_who(rank), str(error)))
                continue
            left = max(0, left - sum(len(piece.data) for piece in found))
            for piece in found:
                said.add(_who(rank), piece_line(_who(rank), piece), counted=False)

    def resumed(self, reading: Reading, job: str, ranks: Sequence[Rank], after_s: float) -> None:
        """Take a suspicion back, in the streams of the job and of each rank."""
        said = _Lines(reading, self.bounds.bytes)
        for who in (Who(job), *(_who(rank) for rank in ranks)):
            said.add(who, resumed_line(Who(job, who.rank), after_s))


def _says_why(thread: Thread) -> bool:
    """Whether a thread's Python frames name the collective that it waits in."""
    own = next((place for place, call in enumerate(thread.calls) if place_of(call) == thread.place), None)
    return collective_in(thread.calls[:own]) is not None


class _Lines:
    """Lines of one job, each a nanosecond after the one before so that their order is kept."""

    def __init__(self, reading: Reading, most: int) -> None:
        self._reading, self._left, self._at = reading, most, time.time_ns()
        self.left_out = 0

    def add(self, who: Who, text: str, counted: bool = True) -> None:
        """Add a line; ``counted``: among the bytes that there may be."""
        if counted:
            self._left -= len(text)
            if self._left < 0:
                self.left_out += 1
                return
        self._at += 1
        self._reading.line(text, self._at, slurm_job_id=who.job, rank=who.rank, filename=NAME)


def _who(rank: Rank) -> Who:
    return Who(rank.job, rank.number, rank.main.pid)


def _why(suspicion: Suspicion, count: int) -> str:
    ranks = f"{count} ranks" if count != 1 else "1 rank"
    silent = "no output is known of it" if suspicion.silent_s is None else f"no output for {suspicion.silent_s:.0f} s"
    usual = "" if suspicion.gap_s is None else f", {suspicion.gap_s:.0f} s between outputs before"
    if suspicion.working:
        return f"{silent}{usual}; {len(suspicion.standing)} of {ranks} on this node stand still, the rest works"
    verb = "stand" if count != 1 else "stands"
    return f"{silent}{usual}; {ranks} on this node {verb} still, for {suspicion.still_s:.0f} s"


def _apart(states: Mapping[Key, State], cores: Mapping[Key, float]) -> Callable[[Rank], tuple[int, int]]:
    """Orders ranks: those first whose kernel state few others share."""

    def manner(key: Key) -> tuple[str, str, bool]:
        seen = states.get(key)
        busy = cores.get(key, 0.0) >= 0.1
        return ("", "", busy) if seen is None else (seen.state, seen.wait, busy)

    shared = Counter(map(manner, states))
    return lambda rank: (shared[manner(rank.key)], rank.number if rank.number is not None else 1 << 30)


def _settled(one: recorder.Recorder, before: int, until: float) -> None:
    """Wait until a dump is there and no longer grows."""
    last = before
    while time.monotonic() < until:
        now = recorder.written_ns(one)
        if now > before and now == last:
            return
        last = now
        time.sleep(min(0.25, max(0.0, until - time.monotonic())))
