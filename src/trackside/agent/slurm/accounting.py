"""Accounting records of ended jobs, as lines: their attempts and steps, with exit codes and memory.

Accounting records an end some seconds late, so it is queried :data:`DELAY_S` after the end, for many jobs at once, and
again for jobs that it does not have yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.agent.slurm.command import CommandFailed, Commands
from trackside.agent.slurm.jobs import JobEvent
from trackside.catalog.job_states import is_over
from trackside.catalog.slurm.commands import SEPARATOR, accounting_columns, accounting_table

MAX_JOBS_PER_CALL = 100
"""Jobs per sacct call."""
DELAY_S = 10.0
MAX_TRIES = 6
"""The first query is after DELAY_S, and each further one after twice the delay: five minutes in all."""
MAX_WAITING = 20_000
"""Jobs that wait for a query."""
_STEP = re.compile(r"\.[\w+]+\Z")


@dataclass(slots=True)
class _Query:
    due_s: float
    tries: int = 0
    is_last: bool = True
    """Whether the job's last attempt must have ended; otherwise any attempt."""


class Accounting:
    """Queries accounting for ended jobs."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._queries: dict[str, _Query] = {}
        self._columns: list[str] | None = None
        self._reported: dict[str, set[tuple[str, str]]] = {}
        """Job number -> (row, its state) pairs that were already reported."""

    def add(self, number: str, now: float, is_last: bool = True) -> None:
        """Queue a job of which an attempt is over. ``is_last``: it is the last attempt, not followed by another."""
        if len(self._queries) < MAX_WAITING:
            self._queries[number] = _Query(now + DELAY_S, is_last=is_last)

    def query(self, now: float) -> list[JobEvent]:
        """Lines of the jobs that accounting has now. Raises CommandFailed."""
        due = [number for number, query in self._queries.items() if query.due_s <= now][:MAX_JOBS_PER_CALL]
        if not due:
            return []
        for number in due:
            query = self._queries[number]
            query.tries += 1
            query.due_s = now + DELAY_S * 2**query.tries
        rows = self._rows(due)
        events: list[JobEvent] = []
        for number in due:
            job_rows = rows.get(number, [])
            attempts = [row for row in job_rows if not _STEP.search(row["JobID"])]
            ended = [row for row in attempts if is_over(_state(row))]
            query = self._queries[number]
            is_complete = bool(ended) and (not query.is_last or is_over(_state(attempts[-1])))
            if is_complete or query.tries >= MAX_TRIES:
                del self._queries[number]
                events += self._lines(number, job_rows, now)
                if query.is_last:
                    self._reported.pop(number, None)
        return events

    def _rows(self, numbers: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        """Numeric job id -> rows of the job and its steps."""
        columns = self._available_columns()
        rows_by_job: dict[str, list[dict[str, str]]] = {}
        for line in self._commands.lines("sacct", "-n", "-D", *accounting_table(columns), "-j", ",".join(numbers)):
            values = line.replace("\t", " ").split(SEPARATOR)
            if len(values) != len(columns):
                continue  # a line break in a name
            row = dict(zip(columns, values, strict=True))
            rows_by_job.setdefault(row["JobIDRaw"].partition(".")[0], []).append(row)
        return rows_by_job

    def _available_columns(self) -> list[str]:
        """The columns that this sacct has; asking for an unknown column is an error."""
        if self._columns is None:
            available = accounting_columns(" ".join(self._commands.lines("sacct", "--helpformat")))
            # Not these: they would hide the expanded paths that scontrol reports.
            columns = [column for column in available if column not in ("StdOut", "StdErr")]
            if not {"JobID", "JobIDRaw", "State"} <= set(columns):
                raise CommandFailed("sacct lists no known columns")
            self._columns = columns
        return self._columns

    def _lines(self, number: str, rows: Iterable[dict[str, str]], now: float) -> Iterable[JobEvent]:
        reported = self._reported.setdefault(number, set())
        for row in rows:
            state = _state(row)
            row_key = row["JobID"], f"{row.get('Submit')} {row.get('Start')} {state}"
            if not is_over(state) or row_key in reported:
                continue
            reported.add(row_key)
            job, step = _STEP.sub("", row["JobID"]), bool(_STEP.search(row["JobID"]))
            record = "\t".join(f"{name}={value}" for name, value in row.items() if value)
            end = row.get("End", "")
            time = float(end) if end.isdecimal() and 0 < int(end) < now else now
            subject = f"step {row['JobID']}" if step else f"job {job}"
            yield JobEvent(job, number, "accounted", time, f"{subject} accounted for as {state}\t{record}")


def _state(row: dict[str, str]) -> str:
    return row["State"].partition(" ")[0]
