"""Collects information about a job that seems to hang and writes it as lines, limited in time, ranks and bytes.

The kernel's thread states of all ranks come first, since they are cheap and need no tool. Then the stacks, starting
with ranks whose state few others share, as the faulty rank's usually is. Then flight recorder dumps, which were
requested at the start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.hang import py_spy, recorder
from trackside.agent.hang.activity import state_of
from trackside.agent.hang.ranks import Rank
from trackside.agent.hang.watch import Key, Suspicion
from trackside.agent.source import Reading
from trackside.catalog.hang_lines import (
    LineSubject,
    ProcessState,
    ThreadStack,
    piece_line,
    place_of,
    resumption_line,
    state_line,
    text_line,
    thread_line,
)
from trackside.catalog.python_stack import collective_in
from trackside.extras import install_command

NAME = "hang"
"""The stream's name, as ``filename``."""


MAX_RANK_STATES = 256
"""Ranks whose kernel state is reported."""


@dataclass(frozen=True, kw_only=True)
class ReportLimits:
    """Limits of a hang report."""

    max_process_s: float = 5.0
    """Time limit per process. A dump takes 10 to 200 ms, 1.5 s with native frames of PyTorch; a process that does not
    respond must not delay the others."""
    max_total_s: float = 60.0
    ranks: int = 64
    bytes: int = 4 << 20
    """Limit for stacks, and separately for all flight recorder dumps together."""
    recorder_s: float = 10.0
    """Time for a flight recorder to dump: it polls its pipe once a second."""
    native: bool = True
    """Whether to add native frames for ranks whose Python frames do not show what they wait for."""
    blocking: bool = True
    """Whether to stop a process for the milliseconds in which its stack is read; otherwise the stack may be
    inconsistent."""


@dataclass(slots=True)
class HangReporter:
    """Collects hang information of ranks. ``program``: path of py-spy, None if not installed."""

    proc: Path
    limits: ReportLimits
    program: str | None

    def stacks(self, ranks: Sequence[Rank], end: float) -> tuple[dict[Key, tuple[ThreadStack, ...]], dict[Key, str]]:
        """Python stacks by rank, and the reason for each rank without one. ``end``: deadline in monotonic seconds."""
        stacks: dict[Key, tuple[ThreadStack, ...]] = {}
        failures: dict[Key, str] = {}
        for rank in ranks:
            try:
                stacks[rank.key] = self._stack(rank, end, native=False)
            except py_spy.StackUnavailable as error:
                failures[rank.key] = str(error)
        return stacks, failures

    def _stack(self, rank: Rank, end: float, native: bool) -> tuple[ThreadStack, ...]:
        if self.program is None:
            raise py_spy.StackUnavailable(f"py-spy is not installed: {install_command('agent')}")
        remaining_s = min(self.limits.max_process_s, end - time.monotonic())
        if remaining_s <= 0:
            raise py_spy.StackUnavailable(f"the time limit of {self.limits.max_total_s:g} s for all ranks was reached")
        state = state_of(self.proc, rank)
        if state is None:
            raise py_spy.StackUnavailable("the process has ended")
        # A stopped process, or one in uninterruptible sleep, does not respond to ptrace.
        nonblocking = not self.limits.blocking or state.state in ("D", "T", "t")
        pid = rank.main.pid
        if native and not nonblocking:
            try:
                return py_spy.stacks(self.program, pid, timeout_s=remaining_s, native=True)
            except py_spy.StackUnavailable:
                remaining_s = min(self.limits.max_process_s, end - time.monotonic())
        return py_spy.stacks(self.program, pid, timeout_s=max(remaining_s, 0.1), nonblocking=nonblocking)

    def report(
        self, reading: Reading, job: str, ranks: Sequence[Rank], suspicion: Suspicion, cores: Mapping[Key, float]
    ) -> None:
        """Add the lines of a job that seems to hang."""
        lines = _Lines(reading, self.limits.bytes)
        end = time.monotonic() + self.limits.max_total_s
        chosen = list(ranks)[:MAX_RANK_STATES]
        lines.add(LineSubject(job), text_line(LineSubject(job), _reason(suspicion, len(ranks))))
        dump_requests = self._request_dumps(chosen)
        states = {}
        for rank in chosen:
            state = state_of(self.proc, rank, cores.get(rank.key))
            if state is not None:
                states[rank.key] = state
                lines.add(_subject(rank), state_line(_subject(rank), state))
        order = sorted(chosen, key=_rarest_state_first(states, cores))
        self._stacks(lines, order[: self.limits.ranks], end)
        if len(ranks) > self.limits.ranks:
            lines.add(
                LineSubject(job),
                text_line(LineSubject(job), f"stacks of {self.limits.ranks} of {len(ranks)} ranks were taken"),
            )
        self._recorders(lines, dump_requests, end)
        if lines.left_out:
            reading.lost["hang_lines"] += lines.left_out

    def _stacks(self, lines: _Lines, ranks: Sequence[Rank], end: float) -> None:
        """Add Python stacks of all ranks; then, if time is left, native stacks of those that do not show what they wait
        for."""
        stacks, failures = self.stacks(ranks, end)
        for rank in ranks if self.limits.native else ():
            if rank.key in stacks and not _shows_collective(stacks[rank.key][0]):
                with suppress(py_spy.StackUnavailable):
                    stacks[rank.key] = self._stack(rank, end, native=True)
        for rank in ranks:
            subject = _subject(rank)
            for thread in stacks.get(rank.key, ()):
                lines.add(subject, thread_line(subject, thread))
            if rank.key in failures:
                lines.add(subject, text_line(subject, f"no stack: {failures[rank.key]}"))

    def _request_dumps(self, ranks: Sequence[Rank]) -> list[tuple[Rank, recorder.Recorder, int, bool]]:
        """(rank, flight recorder, time of its last dump, whether a dump was requested) of each rank that has one."""
        requests = []
        for rank in ranks[: self.limits.ranks]:
            rank_recorder = recorder.recorder(self.proc, rank)
            if rank_recorder is not None:
                previous_ns = recorder.last_dump_ns(rank_recorder)
                requests.append((rank, rank_recorder, previous_ns, recorder.request_dump(rank_recorder)))
        return requests

    def _recorders(
        self, lines: _Lines, dump_requests: Sequence[tuple[Rank, recorder.Recorder, int, bool]], end: float
    ) -> None:
        remaining_bytes = self.limits.bytes
        deadline = min(end, time.monotonic() + self.limits.recorder_s)
        for rank, rank_recorder, previous_ns, is_requested in dump_requests:
            if is_requested:
                _wait_for_dump(rank_recorder, previous_ns, deadline)
            newest_ns = recorder.last_dump_ns(rank_recorder)
            recent_ns = time.time_ns() - 3600 * 10**9
            try:
                # A dump made before the request is sent as well if it is recent enough to belong to this hang.
                since_ns = recent_ns if newest_ns <= previous_ns else previous_ns + 1
                pieces = recorder.dump_pieces(rank_recorder, since_ns, remaining_bytes)
            except recorder.DumpUnavailable as error:
                if is_requested or newest_ns > recent_ns:
                    lines.add(_subject(rank), text_line(_subject(rank), str(error)))
                continue
            remaining_bytes = max(0, remaining_bytes - sum(len(piece.data) for piece in pieces))
            for piece in pieces:
                lines.add(_subject(rank), piece_line(_subject(rank), piece), counted=False)

    def report_resumption(self, reading: Reading, job: str, ranks: Sequence[Rank], silent_s: float) -> None:
        """Withdraw a report, in the streams of the job and of each rank."""
        lines = _Lines(reading, self.limits.bytes)
        for subject in (LineSubject(job), *(_subject(rank) for rank in ranks)):
            lines.add(subject, resumption_line(LineSubject(job, subject.rank), silent_s))


def _shows_collective(thread: ThreadStack) -> bool:
    """Whether a thread's Python frames name the collective that it waits in."""
    own_index = next((index for index, call in enumerate(thread.calls) if place_of(call) == thread.place), None)
    return collective_in(thread.calls[:own_index]) is not None


class _Lines:
    """The lines of one job; each is a nanosecond after the previous, so that their order is kept."""

    def __init__(self, reading: Reading, max_bytes: int) -> None:
        self._reading, self._remaining_bytes, self._time_ns = reading, max_bytes, time.time_ns()
        self.left_out = 0

    def add(self, subject: LineSubject, text: str, counted: bool = True) -> None:
        """Add a line; ``counted``: whether it counts toward the byte limit."""
        if counted:
            self._remaining_bytes -= len(text)
            if self._remaining_bytes < 0:
                self.left_out += 1
                return
        self._time_ns += 1
        self._reading.line(text, self._time_ns, slurm_job_id=subject.job, rank=subject.rank, filename=NAME)


def _subject(rank: Rank) -> LineSubject:
    return LineSubject(rank.job, rank.number, rank.main.pid)


def _reason(suspicion: Suspicion, count: int) -> str:
    ranks = f"{count} ranks" if count != 1 else "1 rank"
    silent = f"no output for {suspicion.silent_s:.0f} s" if suspicion.silent_s is not None else "its output is unknown"
    usual = "" if suspicion.gap_s is None else f", {suspicion.gap_s:.0f} s between outputs before"
    if suspicion.working:
        return f"{silent}{usual}; {len(suspicion.inactive)} of {ranks} on this node are inactive, the others work"
    verb = "are" if count != 1 else "is"
    return f"{silent}{usual}; {ranks} on this node {verb} inactive for {suspicion.since_work_s:.0f} s"


def _rarest_state_first(
    states: Mapping[Key, ProcessState], cores: Mapping[Key, float]
) -> Callable[[Rank], tuple[int, int]]:
    """Sort key of ranks: first those whose kernel state few others share."""

    def state_key(key: Key) -> tuple[str, str, bool]:
        state = states.get(key)
        busy = cores.get(key, 0.0) >= 0.1
        return ("", "", busy) if state is None else (state.state, state.wait, busy)

    shared = Counter(map(state_key, states))
    return lambda rank: (shared[state_key(rank.key)], rank.number if rank.number is not None else 1 << 30)


def _wait_for_dump(rank_recorder: recorder.Recorder, previous_ns: int, deadline: float) -> None:
    """Wait until a new dump exists and no longer grows."""
    last_ns = previous_ns
    while time.monotonic() < deadline:
        newest_ns = recorder.last_dump_ns(rank_recorder)
        if newest_ns > previous_ns and newest_ns == last_ns:
            return
        last_ns = newest_ns
        time.sleep(min(0.25, max(0.0, deadline - time.monotonic())))
