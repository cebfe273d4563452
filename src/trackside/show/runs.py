"""``trackside runs``: the runs in a store or an archive, as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from trackside.runs.listing import RunSummary
from trackside.show.text import print_table
from trackside.wording import moment


def runs_table(rows: Iterable[RunSummary], console: Console) -> None:
    """Print the runs. The last column is the verdict for archived runs, and the kinds of data for those of a store."""
    rows = list(rows)
    has_verdicts = any(row.verdict for row in rows)
    print_table(
        ("job", "name", "state", "start (UTC)", "end (UTC)", "nodes", "GPUs", "verdict" if has_verdicts else "data"),
        [
            (row.id, row.name or "-", row.state or "-", _moment(row.start), _moment(row.end),
             str(len(row.nodes) or "-"), "-" if row.n_gpus is None else str(row.n_gpus),
             (row.verdict or "-") if has_verdicts else ", ".join(row.planes))
            for row in rows
        ],
        console,
        right=("nodes", "GPUs"),
    )  # fmt: skip


def _moment(time: float | None) -> str:
    return "-" if time is None else moment(time).removesuffix(" UTC")
