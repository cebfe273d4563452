"""``sdiag``: the controller's statistics as metrics of the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_PLAIN = {
    "Server thread count": "slurm_server_threads",
    "Agent queue size": "slurm_agent_queue",
    "DBD Agent queue size": "slurm_accounting_queue",
}
_JOBS = {
    "submitted": "submitted",
    "started": "started",
    "completed": "completed",
    "canceled": "cancelled",
    "failed": "failed",
}
_SECTIONS = (("Main schedule statistics", "main"), ("Backfilling stats", "backfill"))
_STATISTICS = {"Last cycle": "last", "Max cycle": "max", "Mean cycle": "mean"}
_LINE = re.compile(r"\s*([A-Za-z][\w ().,:-]*?):\s+(\d{1,18})\s*\Z")
_RPC = re.compile(r"\s+([A-Z][A-Z0-9_]{2,60})\s+\(\s*\d+\)\s+count:(\d{1,15})\s+ave_time:\d+\s+total_time:(\d{1,18})")
Statistic = tuple[str, float, dict[str, str]]
"""Metric, value, labels."""


def statistics(lines: Iterable[str]) -> Iterator[Statistic]:
    """The metrics in the output of sdiag; for each message type, the count and the total time."""
    section, by_type = "", False
    for line in lines:
        if line and not line[0].isspace():
            section = next((name for begin, name in _SECTIONS if line.startswith(begin)), "")
            by_type = line.startswith("Remote Procedure Call statistics by message type")
        if by_type and (rpc := _RPC.match(line)):
            yield "slurm_rpcs_total", float(rpc[2]), {"rpc": rpc[1]}
            yield "slurm_rpc_seconds_total", int(rpc[3]) / 1e6, {"rpc": rpc[1]}
            continue
        match = _LINE.match(line)
        if match is not None:
            yield from _value(section, match[1], float(match[2]))


def _value(section: str, name: str, value: float) -> Iterator[Statistic]:
    if name in _PLAIN:
        yield _PLAIN[name], value, {}
    elif name.startswith("Jobs ") and (event := _JOBS.get(name[5:])):
        yield "slurm_job_events_total", value, {"event": event}
    elif name == "Total backfilled jobs (since last slurm start)":
        yield "slurm_backfilled_jobs_total", value, {}
    elif section and name in _STATISTICS:
        yield "slurm_schedule_cycle_seconds", value / 1e6, {"scheduler": section, "statistic": _STATISTICS[name]}
    elif section and name == "Total cycles":
        yield "slurm_schedule_cycles_total", value, {"scheduler": section}
    elif section and name == "Last queue length":
        yield "slurm_schedule_queue_jobs", value, {"scheduler": section}
