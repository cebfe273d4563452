"""From the rows of one job to its attempts, and the facts of the last one.

A requeued job keeps its id: accounting tells its attempts apart by Submit and Start, and the same attempt may
be told by several sources at several moments. What a launcher restarts inside an attempt is none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trackside.catalog.job_states import ALIVE, CLEARING, WAITING, is_over
from trackside.catalog.signals import SLURM_SIGNALS
from trackside.model import Attempt, Record, Scalar
from trackside.runs.jobs import SOURCES

SAME_S = 2.0
"""Seconds by which two sources may differ on one moment."""
ZONE_S, ZONES_S = 900.0, 14 * 3600.0
"""Text without a zone and JSON in UTC differ by a multiple of 15 minutes, at most 14 hours."""
LAST_SIGNAL = 64
"""Numbers above it in a signal's place are Slurm's own, as those of SLURM_SIGNALS are."""

_BEGUN = ALIVE | CLEARING
_PLACEHOLDER = "allocation"
"""JobName of a job that was over before accounting heard of it (22.05)."""
_HIDDEN = 128
"""sacct before 25.11 takes it off exit codes above it."""
_DEADLY = frozenset({3, 4, 6, 7, 8, 9, 11, 15})
"""Signals whose report as a code below 128 is told from a plain exit code by a witness."""


@dataclass(frozen=True, slots=True)
class Told:
    """One attempt and all rows that tell of it, the most final word first."""

    rows: tuple[Record, ...]

    def get(self, name: str) -> Scalar:
        """A field from the most final row that gives it."""
        return next((value for row in self.rows if (value := row.get(name)) is not None), None)

    def time(self, name: str) -> float | None:
        """A time, or another number."""
        value = self.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def state(self) -> str | None:
        value = self.get("state")
        return None if value is None else str(value)

    @property
    def started(self) -> bool:
        """Whether it got its nodes."""
        return self.get("start") is not None

    @property
    def over(self) -> bool:
        """Whether its state is final."""
        return self.state is not None and is_over(self.state)

    @property
    def end(self) -> float | None:
        """When it ended, from start and duration where that alone is given."""
        end, start, elapsed = self.time("end"), self.time("start"), self.time("elapsed_s")
        return start + elapsed if end is None and self.over and start is not None and elapsed is not None else end

    @property
    def nodes(self) -> tuple[str, ...]:
        return next((row.many("nodes") for row in self.rows if row.many("nodes")), ())

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None if none did."""
        value = self.get("signal")
        return value if isinstance(value, int) and value > 0 and not _mark(value) else None

    def exit_code(self, signals: frozenset[int] = frozenset()) -> int | None:
        """Its exit code, with the 128 that old sacct hides put back where another source or a witness tells so.

        ``signals`` are those that the run's own log reports. None where Slurm wrote its own mark in its place.
        """
        honest = [row for row in self.rows if not _mark(row.get("signal"))]
        codes = [code for row in honest if isinstance(code := row.get("exit_code"), int)]
        if not codes:
            return None
        code = codes[0]
        if code + _HIDDEN in codes:
            return code + _HIDDEN
        hidden = 0 < code < _HIDDEN and self.get("source") == "sacct" and self.signal is None
        if hidden and (code in signals & _DEADLY or _HIDDEN - code in signals & _DEADLY):
            return code + _HIDDEN  # 128+n of a shell, or 256-n of a Python launcher
        return code


def attempts_of(rows: Sequence[Record]) -> tuple[Told, ...]:
    """The attempts that the rows tell of, in order of time."""
    groups: list[list[Record]] = []
    # Rows with a start first: a snapshot of the queue has none, and attempts may be submitted a second apart.
    for row in sorted(rows, key=lambda row: (row.get("start") is None, _begun(row))):
        close = [(gap, -index, group) for index, group in enumerate(groups) if (gap := _apart(row, group)) is not None]
        if close:
            min(close, key=lambda each: each[:2])[2].append(row)
        else:
            groups.append([row])
    told = [Told(tuple(sorted(group, key=_finality))) for group in groups]
    # A job that goes back to the queue as its prolog fails keeps its submission: what waited then is of the next start.
    told.sort(key=lambda each: min(_begun(row) for row in _started(each.rows) or each.rows))
    return _of_one_job(told)


def numbered(told: Sequence[Told], signals: frozenset[int] = frozenset()) -> tuple[Attempt, ...]:
    """The attempts that started, for the run; ``signals`` are those that the last one's log reports."""
    started = [each for each in told if each.started]
    return tuple(
        Attempt(
            number=max(index, int(restarts) + 1) if isinstance(restarts := each.get("restarts"), int) else index,
            state=each.state,
            start=each.time("start"),
            end=each.end,
            exit_code=each.exit_code(signals if index == len(started) else frozenset()),
            signal=each.signal,
            nodes=each.nodes,
        )
        for index, each in enumerate(started, 1)
    )


def final(told: Sequence[Told]) -> Told | None:
    """The attempt whose state is the job's: the last, unless that one still waits for its turn."""
    if not told:
        return None
    return next((each for each in reversed(told) if each.started or each.over), told[-1])


def _begun(row: Record) -> float:
    """Start or else submission; a row without either comes last, as the present."""
    for name in ("start", "submit"):
        value = row.get(name)
        if isinstance(value, (int, float)):
            return float(value)
    return float("inf")


def _started(rows: Sequence[Record]) -> list[Record]:
    return [row for row in rows if row.get("start") is not None]


def _finality(row: Record) -> tuple[int, int, float]:
    state, source, as_of = row.get("state"), row.get("source"), row.get("as_of")
    life = 2 if state in WAITING else 1 if state in _BEGUN or state is None else 0
    rank = SOURCES.index(str(source)) if source in SOURCES else len(SOURCES)
    return life, rank, -float(as_of) if isinstance(as_of, (int, float)) else 0.0


def _apart(row: Record, group: Sequence[Record]) -> float | None:
    """Seconds between a row and an attempt that it may tell of; None if it tells of another."""
    gaps = [gap for other in group[:8] if (gap := _gap(row, other)) is not None]
    return min(gaps, default=None)


def _gap(one: Record, other: Record) -> float | None:
    def between(name: str) -> float | None:
        a, b = one.get(name), other.get(name)
        return abs(float(a) - float(b)) if isinstance(a, (int, float)) and isinstance(b, (int, float)) else None

    apart = between("start")
    if apart is not None:
        if apart <= SAME_S:
            return apart
        shifted = min(apart % ZONE_S, ZONE_S - apart % ZONE_S) <= SAME_S and apart <= ZONES_S
        lasted = between("elapsed_s")
        same = shifted and one.get("source") != other.get("source") and lasted is not None and lasted <= SAME_S
        return SAME_S if same else None
    submitted = between("submit")
    if submitted is None:
        return SAME_S
    return submitted if submitted <= SAME_S else None


def _mark(number: Scalar) -> bool:
    return isinstance(number, int) and (number in SLURM_SIGNALS or number > LAST_SIGNAL)


def _of_one_job(told: list[Told]) -> tuple[Told, ...]:
    """A controller that lost its state gives an id again: attempts under another name than the last are others'."""
    name: Callable[[Told], Scalar] = lambda each: each.get("name")  # noqa: E731
    last = next((name(each) for each in reversed(told) if name(each) not in (None, _PLACEHOLDER)), None)
    if last is None:
        return tuple(told)
    # squeue cuts names to its column.
    return tuple(
        each
        for each in told
        if (shown := name(each)) in (None, _PLACEHOLDER)
        or str(last).startswith(str(shown))
        or str(shown).startswith(str(last))
    )
