"""``trackside runs``: the runs of a store or an archive, as a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackside.show.text import trimmed


class Row(Protocol):
    """What is shown of a run."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def state(self) -> str | None: ...
    @property
    def start(self) -> float | None: ...
    @property
    def end(self) -> float | None: ...
    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def n_gpus(self) -> int | None: ...
    @property
    def planes(self) -> tuple[str, ...]: ...
    @property
    def verdict(self) -> str | None: ...


_RIGHT = ("nodes", "GPUs")


def runs_table(rows: Iterable[Row], console: Console) -> None:
    """Print the runs: of those of a store what it has of them, of judged ones the verdict."""
    rows = list(rows)
    judged = any(row.verdict for row in rows)
    last = "verdict" if judged else "planes"
    table = Table(box=None, pad_edge=False)
    for title in ("job", "name", "state", "start (UTC)", "end (UTC)", "nodes", "GPUs", last):
        table.add_column(title, justify="right" if title in _RIGHT else "left", overflow="fold")
    for row in rows:
        table.add_row(
            Text(row.id),
            Text(row.name or "-"),
            Text(row.state or "-"),
            _moment(row.start),
            _moment(row.end),
            str(len(row.nodes)) if row.nodes else "-",
            "-" if row.n_gpus is None else str(row.n_gpus),
            Text((row.verdict or "-") if judged else ", ".join(row.planes)),
        )
    with trimmed(console):
        console.print(table)


def _moment(time: float | None) -> str:
    if time is None:
        return "-"
    try:
        return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(time)
