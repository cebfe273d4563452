"""Whether NCCL chose sockets between the nodes of a run, with nothing faster beside.

Sockets within one node, or with one rank, are harmless. Whether the cluster has a faster fabric is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence
from trackside.facts.fact import fact
from trackside.facts.training.learning import number
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import events

SOCKETS = Sentence("NCCL chose sockets between the nodes: {line}")


@dataclass(frozen=True)
class SocketTransport:
    """The line that shows it; None if there is none."""

    row: Event | None
    claims: tuple[Claim, ...]


@fact({"transports": events("nccl_transport"), "ready": events("distributed_ready"), "hosts": events("host")})
def socket_transport(evidence: Evidence, run: Run) -> SocketTransport:
    """Of NCCL's lines; nothing is needed."""
    transports = evidence["transports"]
    sized = [row for name in ("transports", "ready", "hosts") for row in evidence[name].events]
    nodes = max([len(run.nodes), *(int(number(row, "nnodes") or 0) for row in sized)], default=0)
    ranks = max((int(number(row, "nranks") or 0) for row in transports.events), default=0)
    fast = any(row.get("transport") == "ib" for row in transports.events)
    chosen = next((row for row in transports.events if row.get("transport") == "socket"), None)
    if chosen is None or fast or nodes < 2 or ranks == 1:
        return SocketTransport(None, ())
    return SocketTransport(chosen, (SOCKETS(line=transports.value(chosen, "text")),))
