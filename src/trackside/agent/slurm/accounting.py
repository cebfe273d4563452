"""What accounting has of jobs that ended: their attempts and steps, with exit codes and memory, as lines.

Accounting hears of an end some seconds late, so it is asked a while after, for many jobs at once, and again where it
has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.agent.slurm.command import CommandFailed, Commands
from trackside.agent.slurm.jobs import Happening
from trackside.catalog.job_states import is_over
from trackside.catalog.slurm.commands import SEPARATOR, accounting_columns, accounting_table

AT_ONCE = 100
"""Jobs of one call."""
LATER_S = 10.0
TRIES = 6
"""After LATER_S, and then after twice as long each time: for five minutes in all."""
MOST = 20_000
"""Jobs that wait to be asked for."""
_STEP = re.compile(r"\.[\w+]+\Z")


@dataclass(slots=True)
class _Due:
    at: float
    tries: int = 0
    last: bool = True
    """Whether its last attempt is to be over, or any."""


class Accounting:
    """Which jobs are still to be asked for."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._due: dict[str, _Due] = {}
        self._columns: list[str] | None = None
        self._told: dict[str, set[tuple[str, str]]] = {}
        """Number -> (row, its submission) that were told already."""

    def wants(self, number: str, now: float, last: bool = True) -> None:
        """A job's attempt is over: its last one, or one that another follows."""
        if len(self._due) < MOST:
            self._due[number] = _Due(now + LATER_S, last=last)

    def ask(self, now: float) -> list[Happening]:
        """Lines of jobs that accounting has by now. Raises CommandFailed."""
        due = [number for number, each in self._due.items() if each.at <= now][:AT_ONCE]
        if not due:
            return []
        for number in due:
            each = self._due[number]
            each.tries += 1
            each.at = now + LATER_S * 2**each.tries
        rows = self._rows(due)
        found: list[Happening] = []
        for number in due:
            mine = rows.get(number, [])
            whole = [row for row in mine if not _STEP.search(row["JobID"])]
            over = [row for row in whole if is_over(_state(row))]
            each = self._due[number]
            settled = bool(over) and (not each.last or is_over(_state(whole[-1])))
            if settled or each.tries >= TRIES:
                del self._due[number]
                found += self._lines(number, mine, now)
                if each.last:
                    self._told.pop(number, None)
        return found

    def _rows(self, numbers: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        """The rows of each job and of its steps, by Slurm's number."""
        columns = self._known()
        found: dict[str, list[dict[str, str]]] = {}
        for line in self._commands.lines("sacct", "-n", "-D", *accounting_table(columns), "-j", ",".join(numbers)):
            values = line.replace("\t", " ").split(SEPARATOR)
            if len(values) != len(columns):
                continue  # a line break in a name
            row = dict(zip(columns, values, strict=True))
            found.setdefault(row["JobIDRaw"].partition(".")[0], []).append(row)
        return found

    def _known(self) -> list[str]:
        """Those of the columns that this sacct has: one that it hasn't is an error."""
        if self._columns is None:
            offered = accounting_columns(" ".join(self._commands.lines("sacct", "--helpformat")))
            # They would hide the expanded paths that scontrol has.
            columns = [column for column in offered if column not in ("StdOut", "StdErr")]
            if not {"JobID", "JobIDRaw", "State"} <= set(columns):
                raise CommandFailed("sacct lists no columns that are known")
            self._columns = columns
        return self._columns

    def _lines(self, number: str, rows: Iterable[dict[str, str]], now: float) -> Iterable[Happening]:
        told = self._told.setdefault(number, set())
        for row in rows:
            state = _state(row)
            mark = row["JobID"], f"{row.get('Submit')} {row.get('Start')} {state}"
            if not is_over(state) or mark in told:
                continue
            told.add(mark)
            job, step = _STEP.sub("", row["JobID"]), bool(_STEP.search(row["JobID"]))
            record = "\t".join(f"{name}={value}" for name, value in row.items() if value)
            end = row.get("End", "")
            time = float(end) if end.isdecimal() and 0 < int(end) < now else now
            what = f"step {row['JobID']}" if step else f"job {job}"
            yield Happening(job, number, "accounted", time, f"{what} accounted for as {state}\t{record}")


def _state(row: dict[str, str]) -> str:
    return row["State"].partition(" ")[0]
