"""Failed rendezvous at startup, after which no process group formed.

If there are several failures, the most informative one is reported: a final one, or a retried one if the final ones
only report a timeout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import last_after
from trackside.facts.logs.silence import Silence
from trackside.facts.ranks import cited_ranks
from trackside.finding import Claim, Culprit, Sentence
from trackside.model import Event, EventRole, Run
from trackside.query import events

FAILURES: Mapping[str, Sentence] = {
    "duplicate_rank": Sentence("two processes claimed the same rank: {line}"),
    "duplicate_gpu": Sentence("two ranks were put on the same GPU: {line}"),
    "interface": Sentence("the configured network interface does not exist or does not reach the peers: {line}"),
    "port_in_use": Sentence("the port is already in use: {line}"),
    "dns": Sentence("the coordinator's host name does not resolve: {line}"),
    "refused": Sentence("nothing listens at the coordinator's address: {line}"),
    "peer_loopback": Sentence("a rank could not connect to another one at a loopback address: {line}"),
    "peer_refused": Sentence("a rank could not connect to another one, whose port refused it: {line}"),
    "unreachable": Sentence("the coordinator is unreachable: {line}"),
    "peer_unreachable": Sentence("a rank could not reach another one: {line}"),
    "bootstrap": Sentence("NCCL's bootstrap failed: {line}"),
    "timeout": Sentence("not all ranks arrived in time: {line}"),
    "closed": Sentence("the rendezvous was closed: {line}"),
}
"""Reason -> sentence, the most informative reason first."""
START_FAILED = Sentence("connecting the ranks failed: {line}")
ADDRESS_IS = Sentence("the address is {address}")
ADDRESSES = {
    "port_in_use": Sentence("the port is {address}"),
    "interface": Sentence("the interface is {address}"),
}
RANK_NEVER_REGISTERED = Sentence(
    ("the ranks that report the error had reached the store, and waited there for another rank"),
    running=("the ranks that report the error reached the store, and wait there for another rank"),
)
REPORTED_BY = Sentence("reported by {ranks}")
FIX_RANKS = Sentence(
    "start each process with its own rank and GPU (node rank from SLURM_NODEID, local rank from SLURM_LOCALID), and "
    "resubmit"
)
FIX_NODE_RANKS = Sentence(
    "have the launch command give each node its own rank (torchrun: --node-rank $SLURM_NODEID, inside srun), and "
    "resubmit"
)
FIRST_NODES = Sentence("the ranks never connected: {count} nodes started as the first one (node rank zero)")
WAITED_AS_FIRST = Sentence(
    "{count:launchers} waited for what all nodes say of themselves, as only that of the first node does"
)
FIX_INTERFACE = Sentence(
    "set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME in the job script to the interface between the nodes, or unset both"
)
FIX_PORT = Sentence(
    "use a free port for the coordinator, for example one derived from the job id, and pass it to the launcher "
    "(torchrun: --master-port $MASTER_PORT)"
)
FIX_NAME = Sentence(
    "use a host name that every node resolves, such as the first one that scontrol show hostnames prints"
)
FIX_LOOPBACK = Sentence(
    "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME in the job script to the interface that connects the nodes, or "
    "unset them if they name the loopback interface; if they are not set, the node's own host name must not resolve to "
    "a loopback address (/etc/hosts)"
)
FIX_PEERS = Sentence(
    "check that every rank was still running, and that the nodes reach each other by the interface that the ranks use; "
    "if they do not, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one by which they do"
)
FIX_ADDRESS = Sentence(
    "check that the coordinator's address and port are those of the first node, and that its process starts"
)
FIX_START = Sentence(
    "check in the job script that the launch command starts every rank on every node, each with its own rank number; "
    "this, put above it, shows what Slurm gives each"
)
FIX_NETWORK = Sentence(
    "if the job hangs again at startup, check from each of its nodes, while it waits, that the coordinator answers "
    "(FIRST_NODE: the first of its nodes; MASTER_PORT: the port that the launcher uses), and that every rank runs",
    running="while the job waits at startup, check from each of its nodes that the coordinator answers (FIRST_NODE: "
    "the first of its nodes; MASTER_PORT: the port that the launcher uses), and that every rank runs",
)
NEVER_CONNECTED = Sentence("the ranks never connected to each other")
HEADLINES = {
    FIX_RANKS: Sentence("the ranks never connected: several processes claim the same rank or GPU"),
    FIX_INTERFACE: Sentence("the ranks never connected: the network interface that is set does not exist"),
    FIX_PORT: Sentence("the ranks never connected: the coordinator's port is in use"),
    FIX_NAME: Sentence("the ranks never connected: the coordinator's host name does not resolve"),
    FIX_ADDRESS: Sentence("the ranks never connected: nothing listens at the coordinator's address"),
    FIX_LOOPBACK: Sentence("the ranks never connected: they announced loopback addresses to other nodes"),
    FIX_START: Sentence("the ranks never connected: not all of them arrived in time"),
}
"""Remedy -> the answer in one clause; of others :data:`NEVER_CONNECTED`."""
HEADLINES_AT = {
    "interface": Sentence("the ranks never connected: network interface {address} does not exist or has no route"),
    "port_in_use": Sentence("the ranks never connected: the coordinator's port {address} is in use"),
    "dns": Sentence("the ranks never connected: the coordinator's host name does not resolve: {address}"),
    "refused": Sentence("the ranks never connected: nothing listens at the coordinator's address {address}"),
    "peer_loopback": Sentence(
        "the ranks never connected: one announced the loopback address {address}, which no other node can reach"
    ),
    "peer_refused": Sentence("the ranks never connected: {address}, the address of one of them, refused the others"),
    "unreachable": Sentence("the ranks never connected: {address} is unreachable"),
    "peer_unreachable": Sentence("the ranks never connected: {address}, the address of one of them, is unreachable"),
}
"""Reason -> the same, if the failure names the address."""
ONLY_JOINED = Sentence("the ranks never connected: only {joined} of {all} joined in time, so all had to stop")
CLIENTS_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
"""How many ranks arrived, which a timeout names in place of an address."""
REMEDIES: Mapping[str, tuple[Culprit, Sentence]] = {
    "duplicate_rank": ("job", FIX_RANKS),
    "duplicate_gpu": ("job", FIX_RANKS),
    "interface": ("job", FIX_INTERFACE),
    "port_in_use": ("job", FIX_PORT),
    "dns": ("infrastructure", FIX_NAME),
    "refused": ("job", FIX_ADDRESS),
    "peer_loopback": ("job", FIX_LOOPBACK),
    "peer_refused": ("job", FIX_PEERS),
    "peer_unreachable": ("infrastructure", FIX_PEERS),
    "unreachable": ("infrastructure", FIX_NETWORK),
}
"""Reason -> owner and remedy; for other reasons the owner is open and the network is checked first. A refused
connection means that the address was reached and nothing listened there: a wrong port, or a coordinator that was not
started."""
LOOPBACK = re.compile(r"\[?(?:127\.|::1\b|::ffff:127\.)")
HOST_LIST = re.compile(r"[\w-]\[\d[\d,-]*\]")
"""Slurm's compact form of several hosts, passed as one host name: no resolver knows it."""
VAGUE_REASONS = ("timeout", "closed", "bootstrap", "unreachable", "peer_unreachable")
"""Reasons that carry little information."""
LIBRARY_ABORT = re.compile(r"NCCL error|HCCL error|function error: Hccl")
"""The library aborts: before any group has formed that is a startup failure, too."""


@dataclass(frozen=True, eq=False)
class RendezvousFailures:
    """What failed during the rendezvous."""

    frame: Frame
    rows: tuple[Event, ...]
    """Failures that can be a cause and after which no group formed."""
    is_multi_node: bool
    """Whether the job has several nodes: then a loopback address reaches only some of the ranks."""
    startup_exceptions: tuple[Event, ...]
    """Startup exceptions, likewise."""
    first_nodes: tuple[Event, ...] = ()
    """Failures of launchers that act as node rank 0; a job has one such launcher."""
    other_launches: tuple[Event, ...] = ()
    """Ports in use before a collective timed out: a launch that cannot bind its port has no rank in a collective, so
    the log is of several launches."""

    @property
    def final(self) -> tuple[Event, ...]:
        """Failures that were not retried."""
        return tuple(row for row in self.rows if row.get("retry") is not True)

    @cached_property
    def most_informative(self) -> Event:
        """The row with the most informative reason."""
        best = min(self.final or self.rows, key=_rank)
        if not self.final or str(best.get("reason")) in VAGUE_REASONS:
            host = str(best.get("address") or "").rsplit(":", 1)[0]
            same = [row for row in self.rows if not host or host in str(row.get("address") or host)]
            best = min([*same, best], key=_rank)
        return best

    @property
    def reason(self) -> str:
        """The reason of the most informative row."""
        row = self.most_informative
        if (
            self.is_multi_node
            and row.get("reason") in ("peer_refused", "peer_unreachable")
            and LOOPBACK.match(str(row.get("address") or ""))
        ):
            return "peer_loopback"
        return str(row.get("reason"))

    @property
    def rank_absent(self) -> bool:
        """Whether those that report had reached the store: some rank never registered there."""
        return self.reason == "timeout" and all(row.get("address") is None for row in self.rows)

    @property
    def remedy(self) -> tuple[Culprit, Sentence]:
        """Owner and remedy."""
        if len(self.first_nodes) > 1:
            return "job", FIX_NODE_RANKS
        if self.rank_absent:
            return "job", FIX_START
        culprit, remedy = REMEDIES.get(self.reason, ("unknown", FIX_NETWORK))
        is_host_list = self.reason == "dns" and HOST_LIST.search(str(self.most_informative.get("address") or ""))
        return "job" if is_host_list else culprit, remedy

    @property
    def headline(self) -> Claim | None:
        """The answer, with the address or the number of ranks that the failure names; None if it names neither."""
        if len(self.first_nodes) > 1:
            return FIRST_NODES(count=self._first_node_count)
        address = str(self.most_informative.get("address") or "")
        sentence = HEADLINES_AT.get(self.reason) if address else None
        value = self.frame.value(self.most_informative, "address") if address else None
        if value is not None and (joined := CLIENTS_JOINED.fullmatch(address)) is not None:
            counts = (derived(int(number), value) for number in joined.groups())
            return ONLY_JOINED(**dict(zip(("joined", "all"), counts, strict=True)))
        return None if sentence is None or value is None else sentence(address=value)

    @property
    def _first_node_count(self) -> Value:
        lines = (self.frame.value(row, "text") for row in self.first_nodes)
        return derived(len(self.first_nodes), *lines)

    @property
    def claims(self) -> list[Claim]:
        """What failed, at which address, and who reported it."""
        frame, telling, reason = self.frame, self.most_informative, self.reason
        text = frame.value(telling, "text")
        line = derived(str(text.value).lstrip(": "), text)
        claims = [FAILURES.get(reason, START_FAILED)(line=line)]
        if telling.get("address") is not None and self.headline is None:  # which contains the address
            claims.append(ADDRESSES.get(reason, ADDRESS_IS)(address=frame.value(telling, "address")))
        if len(self.first_nodes) > 1:
            claims.append(WAITED_AS_FIRST(count=self._first_node_count))
        elif self.rank_absent:
            claims.append(RANK_NEVER_REGISTERED(count=frame.reduce("count", "address")))
        ranks = cited_ranks(frame, self.rows)
        return claims if ranks is None else [*claims, REPORTED_BY(ranks=ranks)]


@fact({"failures": events("rendezvous_failure"), "timeouts": events("collective_timeout")}, needs=("failures",))
def rendezvous_failures(
    evidence: Evidence, exceptions: Exceptions, silence: Silence, ending: Ending, run: Run
) -> RendezvousFailures:
    """Needs a job log; otherwise missing."""
    frame, group_events = evidence["failures"], silence.formed
    rows = [row for row in frame.events if row.role is EventRole.ROOT and last_after(row, group_events) is None]
    collectives = evidence["timeouts"].events
    others = [row for row in rows if row.get("reason") == "port_in_use" and last_after(row, collectives) is not None]
    startup_errors = [
        row
        for row in exceptions.frame.events
        if _is_startup_error(row) and last_after(row, group_events) is None and not _is_of(row, others)
    ]
    return RendezvousFailures(
        frame,
        tuple(row for row in rows if row not in others),
        len(run.nodes) > 1 or len({row.get("host") for row in ending.launchers.events}) > 1,
        tuple(startup_errors),
        tuple(row for row in rows if any(row.at == error.at and _is_of_first_node(error) for error in startup_errors)),
        tuple(others),
    )


def _is_of(exception: Event, failures: Sequence[Event]) -> bool:
    """Whether an exception's line is that of a failure."""
    return any(exception.at == failure.at for failure in failures)


def _is_of_first_node(exception: Event) -> bool:
    """Whether torchrun's agent waited for what all nodes say of themselves: only that of node rank 0 collects it."""
    return "role_info/" in str(exception.get("message")) and str(exception.get("frames")).endswith(
        " in _assign_worker_ranks"
    )


def _rank(row: Event) -> int:
    reason = str(row.get("reason"))
    return list(FAILURES).index(reason) if reason in FAILURES else len(FAILURES)


def _is_startup_error(row: Event) -> bool:
    """Whether it is a failed rendezvous, or the library aborted."""
    library = row.get("about") == "collective" and LIBRARY_ABORT.search(str(row.get("message") or "")) is not None
    return row.role is EventRole.ROOT and (row.get("about") == "rendezvous" or library)
