"""The system log of the run's nodes around a moment: it shows who was logged in and which services stopped."""

from __future__ import annotations

import datetime as dt
import shlex

from trackside.evidence import Value, derived
from trackside.finding import ShellCommand
from trackside.model import Run

SHOW_SYSTEM_LOG = (
    ShellCommand("ssh {node} \"journalctl --since '{since}' --until '{until}'\""),
    ShellCommand("for node in {all_nodes}; do ssh $node \"journalctl --since '{since}' --until '{until}'\"; done"),
    ShellCommand("journalctl --since '{since}' --until '{until}'"),
)
AROUND_S = 120
"""Seconds before and after the moment for which the log is shown."""
MAX_NODES = 8
"""Nodes that a command names, at most."""


def system_log_values(time: float, node: str | None, run: Run, line: Value) -> dict[str, Value]:
    """The placeholders of :data:`SHOW_SYSTEM_LOG`. ``time``: POSIX seconds; ``node``: where it happened, if known;
    ``line``: the line that shows it."""
    template = "%Y-%m-%d %H:%M UTC" if run.has_time_zone else "%Y-%m-%d %H:%M"  # else as printed: the nodes' own time
    since, until = (
        dt.datetime.fromtimestamp(time + shift, dt.UTC).strftime(template) for shift in (-AROUND_S, AROUND_S)
    )
    values = {"since": derived(since, line), "until": derived(until, line)}
    if node or len(run.nodes) == 1:
        values["node"] = derived(shlex.quote(node or run.nodes[0]), line)
    elif 1 < len(run.nodes) <= MAX_NODES:
        values["all_nodes"] = derived(shlex.join(run.nodes), line)
    return values
