"""Settings that slow a run down, as its log shows them: CUDA_LAUNCH_BLOCKING set, NCCL on sockets between nodes.

With CUDA_LAUNCH_BLOCKING every kernel launch waits for its kernel; advice about it in an error text does not count.
Sockets within one node, with one rank, or in addition to a faster transport are harmless. Whether the cluster has a
faster fabric is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.facts.training.learning import numeric_field
from trackside.model import Event, Run
from trackside.query import events


@dataclass(frozen=True)
class SlowSetting:
    """An active setting, and the line that shows it."""

    row: Event
    line: Value


@dataclass(frozen=True)
class SlowSettings:
    """Settings that slow a run down, each with its line; None if the log does not show it."""

    blocking: SlowSetting | None
    """CUDA_LAUNCH_BLOCKING."""
    sockets: SlowSetting | None
    """NCCL chose sockets between the nodes."""
    no_infiniband: SlowSetting | None = None
    """NCCL chose sockets between the nodes and found no InfiniBand device."""


@fact({
    "flags": events("env_flag"),
    "transports": events("nccl_transport"),
    "ready": events("distributed_ready"),
    "hosts": events("host"),
})  # fmt: skip
def slow_settings(evidence: Evidence, run: Run) -> SlowSettings:
    """Needs no particular input; empty if the log shows none of them."""
    flags, transports = evidence["flags"], evidence["transports"]
    set_flags = (row for row in flags.events if str(row.get("value")).strip("'\" ") == "1")
    blocking = next((row for row in set_flags if row.get("name") == "CUDA_LAUNCH_BLOCKING"), None)
    sized = [row for name in ("transports", "ready", "hosts") for row in evidence[name].events]
    nodes = max([len(run.nodes), *(int(numeric_field(row, "nnodes") or 0) for row in sized)])
    ranks = max((int(numeric_field(row, "nranks") or 0) for row in transports.events), default=0)
    fast = any(row.get("transport") == "ib" for row in transports.events)
    sockets = next((row for row in transports.events if row.get("transport") == "socket"), None)
    no_infiniband = next((row for row in transports.events if row.get("transport") == "no_ib"), None)
    if fast or nodes < 2 or ranks == 1:
        sockets = None
    if sockets is None:
        no_infiniband = None
    return SlowSettings(_setting(flags, blocking), _setting(transports, sockets), _setting(transports, no_infiniband))


def _setting(frame: Frame, row: Event | None) -> SlowSetting | None:
    return None if row is None else SlowSetting(row, frame.value(row, "text"))
