"""Groups the rows of one job into its attempts; the last one gives the facts of the run.

A requeued job keeps its id: accounting distinguishes its attempts by Submit and Start, and several sources may report
the same attempt at different times. A restart by a launcher inside an attempt does not start a new attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trackside.catalog.job_states import ACTIVE_STATES, ENDING_STATES, WAITING_STATES, is_over
from trackside.catalog.signals import SLURM_SIGNALS
from trackside.model import Attempt, Record, Scalar
from trackside.runs.jobs import SOURCES

MAX_GAP_S = 2.0
"""Seconds by which two sources may differ on one time."""
ZONE_S, MAX_ZONE_OFFSET_S = 900.0, 14 * 3600.0
"""Text without a time zone and JSON in UTC differ by a multiple of ZONE_S seconds, at most by MAX_ZONE_OFFSET_S."""
MAX_SIGNAL = 64
"""Higher numbers in the signal field are Slurm's own marks, as are those of SLURM_SIGNALS."""

_STARTED_STATES = ACTIVE_STATES | ENDING_STATES
_PLACEHOLDER_NAME = "allocation"
"""JobName of a job that ended before accounting had received its record (Slurm 22.05)."""
_SACCT_SUBTRAHEND = 128
"""sacct before 25.11 subtracts this from exit codes above it."""
_FATAL_SIGNALS = frozenset({3, 4, 6, 7, 8, 9, 11, 15})
"""Fatal signals: an exit code below 128 means such a signal only if other evidence confirms it."""


@dataclass(frozen=True, slots=True)
class AttemptRows:
    """One attempt and all rows about it, the most final row first."""

    rows: tuple[Record, ...]

    def get(self, name: str) -> Scalar:
        """A field from the most final row that gives it."""
        return next((value for row in self.rows if (value := row.get(name)) is not None), None)

    def time(self, name: str) -> float | None:
        """A number from the most final row that gives it; times are POSIX seconds."""
        value = self.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def state(self) -> str | None:
        """Slurm's state, from the most final row that gives it."""
        value = self.get("state")
        return None if value is None else str(value)

    @property
    def started(self) -> bool:
        """Whether the attempt got its nodes."""
        return self.get("start") is not None

    @property
    def over(self) -> bool:
        """Whether its state is final."""
        return self.state is not None and is_over(self.state)

    @property
    def end(self) -> float | None:
        """End in POSIX seconds; computed from start and duration if only these are given."""
        end, start, elapsed = self.time("end"), self.time("start"), self.time("elapsed_s")
        return start + elapsed if end is None and self.over and start is not None and elapsed is not None else end

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, from the most final row that lists any."""
        return next((row.many("nodes") for row in self.rows if row.many("nodes")), ())

    @property
    def signal(self) -> int | None:
        """The signal that ended the attempt; None if none did."""
        value = self.get("signal")
        return value if isinstance(value, int) and value > 0 and not _is_slurm_mark(value) else None

    def exit_code(self, signals: frozenset[int] = frozenset()) -> int | None:
        """The exit code; 128 is added back where another source or ``signals`` show that old sacct subtracted it.

        ``signals``: signals in the run's own log. None where Slurm wrote its own mark instead of an exit code.
        """
        unmarked_rows = [row for row in self.rows if not _is_slurm_mark(row.get("signal"))]
        codes = [code for row in unmarked_rows if isinstance(code := row.get("exit_code"), int)]
        if not codes:
            return None
        code = codes[0]
        if code + _SACCT_SUBTRAHEND in codes:
            return code + _SACCT_SUBTRAHEND
        may_be_reduced = 0 < code < _SACCT_SUBTRAHEND and self.get("source") == "sacct" and self.signal is None
        if may_be_reduced and (
            code in signals & _FATAL_SIGNALS or _SACCT_SUBTRAHEND - code in signals & _FATAL_SIGNALS
        ):
            return code + _SACCT_SUBTRAHEND  # 128+n of a shell, or 256-n of a Python launcher
        return code


def attempts_of(rows: Sequence[Record]) -> tuple[AttemptRows, ...]:
    """The attempts that the rows describe, in order of time."""
    groups: list[list[Record]] = []
    # Rows with a start come first: a snapshot of the queue has none, and attempts may be submitted a second apart.
    for row in sorted(rows, key=lambda row: (row.get("start") is None, _start_or_submit(row))):
        candidates = [
            (gap, -index, group) for index, group in enumerate(groups) if (gap := _group_gap(row, group)) is not None
        ]
        if candidates:
            min(candidates, key=lambda candidate: candidate[:2])[2].append(row)
        else:
            groups.append([row])
    attempts = [AttemptRows(tuple(sorted(group, key=_finality_key))) for group in groups]
    # A job that returns to the queue because its prolog failed keeps its submission: the waiting row belongs to the
    # next start.
    attempts.sort(
        key=lambda attempt: min(_start_or_submit(row) for row in _rows_with_start(attempt.rows) or attempt.rows)
    )
    return _drop_other_jobs(attempts)


def numbered_attempts(attempts: Sequence[AttemptRows], signals: frozenset[int] = frozenset()) -> tuple[Attempt, ...]:
    """The attempts that started, for the run; ``signals``: signals in the log of the last one."""
    started = [attempt for attempt in attempts if attempt.started]
    return tuple(
        Attempt(
            number=max(index, int(restarts) + 1) if isinstance(restarts := attempt.get("restarts"), int) else index,
            state=attempt.state,
            start=attempt.time("start"),
            end=attempt.end,
            exit_code=attempt.exit_code(signals if index == len(started) else frozenset()),
            signal=attempt.signal,
            nodes=attempt.nodes,
        )
        for index, attempt in enumerate(started, 1)
    )


def final_attempt(attempts: Sequence[AttemptRows]) -> AttemptRows | None:
    """The attempt whose state is the job's: the last one, unless it still waits in the queue."""
    if not attempts:
        return None
    return next((attempt for attempt in reversed(attempts) if attempt.started or attempt.over), attempts[-1])


def _start_or_submit(row: Record) -> float:
    """Start, else submission; a row with neither sorts last, as the present."""
    for name in ("start", "submit"):
        value = row.get(name)
        if isinstance(value, (int, float)):
            return float(value)
    return float("inf")


def _rows_with_start(rows: Sequence[Record]) -> list[Record]:
    """The rows that give a start."""
    return [row for row in rows if row.get("start") is not None]


def _finality_key(row: Record) -> tuple[int, int, float]:
    """Sort key of one attempt's rows, the most final first: by state, by source, the latest first."""
    state, source, as_of = row.get("state"), row.get("source"), row.get("as_of")
    life = 2 if state in WAITING_STATES else 1 if state in _STARTED_STATES or state is None else 0
    rank = SOURCES.index(str(source)) if source in SOURCES else len(SOURCES)
    return life, rank, -float(as_of) if isinstance(as_of, (int, float)) else 0.0


def _group_gap(row: Record, group: Sequence[Record]) -> float | None:
    """Seconds between a row and an attempt that it may describe; None if it describes another."""
    gaps = [gap for other in group[:8] if (gap := _row_gap(row, other)) is not None]
    return min(gaps, default=None)


def _row_gap(row: Record, other: Record) -> float | None:
    """Seconds between the starts of two rows, else their submissions; None if they are of different attempts."""

    def difference(name: str) -> float | None:
        a, b = row.get(name), other.get(name)
        return abs(float(a) - float(b)) if isinstance(a, (int, float)) and isinstance(b, (int, float)) else None

    start_gap = difference("start")
    if start_gap is not None:
        if start_gap <= MAX_GAP_S:
            return start_gap
        is_zone_shift = (
            min(start_gap % ZONE_S, ZONE_S - start_gap % ZONE_S) <= MAX_GAP_S and start_gap <= MAX_ZONE_OFFSET_S
        )
        elapsed_gap = difference("elapsed_s")
        is_same = (
            is_zone_shift
            and row.get("source") != other.get("source")
            and elapsed_gap is not None
            and elapsed_gap <= MAX_GAP_S
        )
        return MAX_GAP_S if is_same else None
    submit_gap = difference("submit")
    if submit_gap is None:
        return MAX_GAP_S
    return submit_gap if submit_gap <= MAX_GAP_S else None


def _is_slurm_mark(number: Scalar) -> bool:
    """Whether a signal field holds a mark of Slurm, not a signal."""
    return isinstance(number, int) and (number in SLURM_SIGNALS or number > MAX_SIGNAL)


def _drop_other_jobs(attempts: list[AttemptRows]) -> tuple[AttemptRows, ...]:
    """The attempts with the last one's job name: a controller that lost its state assigns the same id to other jobs."""
    name: Callable[[AttemptRows], Scalar] = lambda attempt: attempt.get("name")  # noqa: E731
    last_name = next(
        (name(attempt) for attempt in reversed(attempts) if name(attempt) not in (None, _PLACEHOLDER_NAME)), None
    )
    if last_name is None:
        return tuple(attempts)
    # squeue cuts names to its column.
    return tuple(
        attempt
        for attempt in attempts
        if (attempt_name := name(attempt)) in (None, _PLACEHOLDER_NAME)
        or str(last_name).startswith(str(attempt_name))
        or str(attempt_name).startswith(str(last_name))
    )
