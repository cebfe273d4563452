"""Rendezvous hang: the ranks never formed their process group.

Meaning
-------
A job of several ranks stops before training because its ranks cannot find each other: the coordinator's name does
not resolve, nobody listens at its address, an interface or port is wrong, or some rank never came. No collective
ever ran.

What it looks like
------------------
Time-outs of the store, the rendezvous or NCCL's bootstrap at start-up, "connection refused", names that cannot be
resolved, a port in use, two ranks of the same number or on the same GPU; or a distributed-init line and then
silence up to the time limit. A watchdog's time-out at the very first collective is still start-up.
In metrics: the GPUs of all nodes cold from the start on, no more memory than a context, no launch and no collective.

Not this when
-------------
A rank crashed while it was being set up (the others wait for it): that is the startup crash. A node died first.
Training points exist: a later freeze is a collective hang. Warnings of retries that succeeded are normal.

Impact
------
The whole allocation of all nodes stands idle until the time-out.

Do next
-------
Check from every node that the coordinator's name resolves and its port answers, that one task a node (or a GPU) is
started with its own rank, and that the socket interface named is the one between the nodes.

What it cannot tell
-------------------
With a bare time-out: whether an unreachable coordinator, a firewall, DNS or a rank that was never started is behind it.

References
----------
PyTorch, torch.distributed.elastic.rendezvous and TCPStore; NCCL, environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Value
from trackside.facts.gpu.signals import NEED, STANDSTILL, STILL_GOING, STILL_SAYS, Limits, nodes_of, watched
from trackside.facts.gpus import ranks_at
from trackside.facts.logs.ending import abnormal_end, completed, disposition
from trackside.facts.logs.exceptions import earliest_first
from trackside.facts.logs.order import followed_by
from trackside.facts.logs.silence import REAPED, ended, several_ranks, stood_still
from trackside.facts.ranks import named, ranks_of, world_size
from trackside.facts.training.learning import training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Culprit, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Role, Run
from trackside.query import events

if TYPE_CHECKING:
    from trackside.facts.gpu.idle import IdleGpus as Idle

REASONS: Mapping[str, tuple[Culprit, str]] = {
    "duplicate_rank": ("job", "fix_ranks"),
    "duplicate_gpu": ("job", "fix_ranks"),
    "interface": ("job", "fix_interface"),
    "port_in_use": ("job", "fix_port"),
    "dns": ("infrastructure", "fix_name"),
    "refused": ("job", "fix_address"),
    "unreachable": ("infrastructure", "fix_network"),
    "bootstrap": ("unknown", "fix_network"),
    "timeout": ("unknown", "fix_network"),
    "closed": ("unknown", "fix_network"),
}
"""Reason -> whose it is and what to do, the most telling first. A refused connection means that the address
was reached and nobody listened there: a wrong port, or a coordinator that was not started."""
HOST_LIST = re.compile(r"[\w-]\[\d[\d,-]*\]")
"""Slurm's short form of several hosts, given as if it were one host's name: no resolver knows it."""
_LIBRARY = re.compile(r"NCCL error|HCCL error|function error: Hccl")
VAGUE = ("timeout", "closed", "bootstrap", "unreachable")
COLLECT = (
    "every rank's and the launcher's output from all nodes",
    "NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=INFO output of one more try",
    "sacct -P -j <id> --format=JobID,State,ExitCode,Start,End,NodeList",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Failures of start-up that no group, collective or training point followed; else GPUs that stay cold on all
    nodes, or silence after init."""
    points = training_points(evidence["progress"])
    if points:
        return absent(claim("trained", point=evidence["progress"].value(points[0], "text")))
    well = completed(evidence)
    if well is not None:
        return absent(claim("completed", state=well))
    up = _up(evidence)
    rows = [row for row in evidence["failures"].events if row.role is Role.ROOT and followed_by(row, up) is None]
    final = [row for row in rows if row.get("retry") is not True]
    bad = abnormal_end(evidence)
    if final or (rows and bad is not None):
        return _failed(evidence, run, rows, final, bad, _cold(evidence, run, limits))
    told = [row for row in evidence["exceptions"].events if _of_startup(row) and followed_by(row, up) is None]
    if told:
        return _raised(evidence, run, told[0], bad, _cold(evidence, run, limits))
    first = [row for row in evidence["timeouts"].events if row.get("seq") in (0, 1)]
    if first and len(first) == len(evidence["timeouts"]):
        return _first_collective(evidence, first, bad)
    return _silent(evidence, run, limits, up)


def _cold(evidence: Evidence, run: Run, limits: Limits) -> Idle | None:
    """GPUs of several ranks that never worked."""
    seen = watched(evidence, run)
    if seen is None or len(seen.gpus) < 2:
        return None
    from trackside.facts.gpu.signals import all_along

    return all_along(evidence, run, seen)


def _of_startup(row: Event) -> bool:
    """A rendezvous that failed, or the library giving up: before any group was formed that is its start-up, too."""
    about, message = row.get("about"), str(row.get("message") or "")
    return row.role is Role.ROOT and (
        about == "rendezvous" or (about == "collective" and _LIBRARY.search(message) is not None)
    )


def _up(evidence: Evidence) -> list[Event]:
    """What shows that a group was formed."""
    done = [row for row in evidence["communicators"].events if row.get("complete")]
    return [*evidence["ready"].events, *done]


def _failed(
    evidence: Evidence, run: Run, rows: Sequence[Event], final: Sequence[Event], bad: Value | None, idle: Idle | None
) -> Finding:
    frame = evidence["failures"]
    first = earliest_first(rows)[0]
    telling = _telling(rows, final)
    reason = str(telling.get("reason"))
    culprit, remedy = REASONS.get(reason, ("unknown", "fix_network"))
    if reason == "dns" and HOST_LIST.search(str(telling.get("address") or "")):
        culprit = "job"
    absent_rank = reason == "timeout" and all(row.get("address") is None for row in rows)
    if absent_rank:
        culprit, remedy = "job", "fix_start"
    shows: list[Claim] = [
        claim(f"failed_{reason}" if reason in REASONS else "failed", line=frame.value(telling, "text"))
    ]
    if telling.get("address") is not None:
        key = {"port_in_use": "port", "interface": "interface", "timeout": "arrived"}.get(reason, "address")
        shows.append(claim(key, address=frame.value(telling, "address")))
    if absent_rank:
        shows.append(claim("never_came", count=frame.reduce("count", "address")))
    ranks = named(frame, rows)
    if ranks is not None:
        shows.append(claim("complained", ranks=ranks))
    shows += idle.claims if idle is not None else ()
    certainty = Certainty.ESTABLISHED if final else Certainty.SUPPORTED
    return _found(evidence, shows, bad, first, certainty, culprit, remedy, _everywhere(evidence, run, idle))


def _telling(rows: Sequence[Event], final: Sequence[Event]) -> Event:
    """The row whose reason says most: a final one, or a retried one where the final ones only say 'time-out'."""
    order = list(REASONS)

    def rank(row: Event) -> int:
        reason = str(row.get("reason"))
        return order.index(reason) if reason in order else len(order)

    best = min(final or rows, key=rank)
    if not final or str(best.get("reason")) in VAGUE:
        host = str(best.get("address") or "").rsplit(":", 1)[0]
        same = [row for row in rows if not host or host in str(row.get("address") or host)]
        best = min([*same, best], key=rank)
    return best


def _raised(evidence: Evidence, run: Run, row: Event, bad: Value | None, idle: Idle | None) -> Finding:
    frame = evidence["exceptions"]
    values = {"type": frame.value(row, "type"), "message": frame.value(row, "message")}
    shows = [claim("raised", **values), *(idle.claims if idle is not None else ())]
    where = _everywhere(evidence, run, idle)
    return _found(evidence, shows, bad, row, Certainty.ESTABLISHED, "unknown", "fix_network", where)


def _first_collective(evidence: Evidence, rows: Sequence[Event], bad: Value | None) -> Finding:
    line = evidence["timeouts"].value(rows[0], "text")
    return _found(evidence, [claim("first", line=line)], bad, rows[0], Certainty.SUPPORTED, "unknown", "fix_network")


def _silent(evidence: Evidence, run: Run, limits: Limits, up: Sequence[Event]) -> Finding:
    """Init begun by several ranks, and nothing more until somebody ended it; or several nodes that stay cold."""
    inits, state = evidence["inits"], disposition(evidence)
    if up:
        frame = evidence["ready"] if evidence["ready"] else evidence["communicators"]
        return absent(claim("came_up", line=frame.value(frame.events[0], "text")))
    worked = _worked(evidence, run)
    if worked is not None:
        return absent(worked)
    idle = _cold(evidence, run, limits)
    if not evidence.has("failures") and idle is None:
        return unknown(["no job log was given"], COLLECT)
    reaped = (state is not None and state.value in REAPED) or any(
        row.get("reason") == "time_limit" for row in evidence["notices"].events
    )
    own = [row for row in evidence["exceptions"].events if row.role is Role.ROOT]
    started = inits.events or [row for row in evidence["hosts"].events if row.get("command") == "torchrun"]
    if (
        not own
        and not evidence["ends"]
        and idle is not None
        and (reaped or state is None or not evidence.has("failures"))
    ):
        stayed = _stayed_cold(evidence, run, limits, idle, started)
        if stayed is not None:
            return stayed
    if not reaped or own or not started or not several_ranks(evidence, run) or evidence["timeouts"]:
        if not evidence.has("failures"):
            return unknown(["what the ranks waited for: no job log was given"], COLLECT)
        return absent(claim("none", count=evidence["failures"].reduce("count")))
    frame = inits if inits else evidence["hosts"]
    shows: list[Claim] = [claim("began", line=frame.value(started[-1], "text"))]
    still = stood_still(evidence, run, limits)
    if still is not None:
        shows.append(claim("silent", seconds=still[0]))
    certainty = Certainty.SUPPORTED if still is not None and inits else Certainty.POSSIBLE
    return _waiting(evidence, run, shows, started[-1], certainty)


def _stayed_cold(evidence: Evidence, run: Run, limits: Limits, idle: Idle, started: Sequence[Event]) -> Finding | None:
    """GPUs cold on all nodes for long enough: established where the log shows that the ranks had begun to meet."""
    if idle.seconds.number < limits.least_s or not idle.forming:
        return None
    shows = list(idle.claims)
    if not started:
        known = idle.context_only is False or idle.attached
        return _waiting(evidence, run, shows, None, Certainty.SUPPORTED if known else Certainty.POSSIBLE, idle)
    frame = evidence["inits"] if evidence["inits"] else evidence["hosts"]
    shows.insert(0, claim("began", line=frame.value(started[-1], "text")))
    still = stood_still(evidence, run, limits)
    if still is not None:
        shows.append(claim("silent", seconds=still[0]))
    return _waiting(evidence, run, shows, started[-1], Certainty.ESTABLISHED, idle)


def _waiting(
    evidence: Evidence, run: Run, shows: list[Claim], row: Event | None, certainty: Certainty, idle: Idle | None = None
) -> Finding:
    """Ranks that waited for others: for those of them that never told of a start, where that can be seen."""
    inits, state = evidence["inits"], disposition(evidence)
    if state is not None and idle is None:
        shows.append(ended(state))
    bad = state if idle is not None else None  # cold GPUs say enough of a run that still goes on
    there = named(inits, inits.events)
    world = max(world_size(run, inits, evidence["hosts"]) or 0, len(run.nodes))
    if there is None or not isinstance(there.value, tuple) or len(there.value) >= world:
        where = _everywhere(evidence, run, idle)
        return _found(evidence, shows, bad, row, certainty, "unknown", "fix_network", where)
    shows.append(claim("only", ranks=there))
    return _found(evidence, shows, bad, row, certainty, "job", "fix_start")


Place = tuple[tuple[int, ...], tuple[str, ...]]


def _everywhere(evidence: Evidence, run: Run, idle: Idle | None) -> Place:
    """Ranks and nodes of the GPUs that stay cold: all of them wait."""
    if idle is None:
        return (), ()
    return ranks_at(run, idle.activity.gpus), nodes_of(idle.activity.gpus)


def _worked(evidence: Evidence, run: Run) -> Claim | None:
    """GPUs that did work, or collectives that were completed: the ranks had met, or did not have to."""
    seen = watched(evidence, run)
    if seen is None or not seen.users.any():
        return None
    for name in ("collectives", "launches", "sm", "power"):
        grid = evidence.grid(name)
        if grid is not None:
            counted = name in ("collectives", "launches")
            value = grid.value("sum" if counted else "max", unit="" if name != "power" else None)
            if value.value:
                return claim(f"worked_{name}", level=value)
    return None


def _found(
    evidence: Evidence,
    shows: list[Claim],
    bad: Value | None,
    row: Event | None,
    certainty: Certainty,
    culprit: Culprit,
    remedy: str,
    where: Place = ((), ()),
) -> Finding:
    if bad is not None:
        shows.append(ended(bad))
    elif certainty is Certainty.ESTABLISHED:
        certainty = Certainty.SUPPORTED
    if evidence.has("progress"):
        shows.append(claim("no_point", count=evidence["progress"].reduce("count")))
    told = [each for each in evidence["exceptions"].events if each.get("about") == "rendezvous"]
    return found(
        certainty,
        culprit,
        shows,
        implies=[claim("before_training")],
        cannot_decide=[claim("which")] if culprit == "unknown" else [],
        actions=[action(remedy, "probe" if remedy in ("fix_name", "fix_network", "fix_address") else None)],
        since=None if row is None else row.time,
        at=None if row is None else row.at,
        ranks=ranks_of([row]) if row is not None and row.get("reason") == "duplicate_rank" else where[0],
        nodes=where[1],
        exception=(str(told[0].get("type")), str(told[0].get("message") or "")) if told else None,
    )


FAMILY = Family(
    code="C1",
    id="rendezvous-hang",
    title="Rendezvous hang: the ranks never formed a group",
    pictured=("rendezvous-timeout", "timeline"),
    asks={
        **STANDSTILL,
        "failures": events("rendezvous_failure"),
        "timeouts": events("collective_timeout"),
        "exceptions": events("exception"),
    },
    needs=(("failures", *NEED),),
    limits=Limits(),
    explains=("C2", "C3", "F3", "H1", "H3"),
    rivals=("A1", "C2", "C3", "F1"),
    collect=COLLECT,
    by_silence=True,
    says={
        **STILL_SAYS,
        "worked_collectives": "{level} collectives were completed, so a group had formed",
        "worked_launches": "{level} kernels were launched, so the ranks had got past their start",
        "worked_sm": "SM activity rose to {level}, so the ranks had got past their start",
        "worked_power": "a GPU drew {level}, so the ranks had got past their start",
        "failed": "start-up between the ranks failed: {line}",
        "failed_duplicate_rank": "two processes claimed the same rank: {line}",
        "failed_duplicate_gpu": "two ranks were put on the same GPU: {line}",
        "failed_interface": "the network interface that was named is not there, or not the way to the peers: {line}",
        "failed_port_in_use": "the port is already in use: {line}",
        "failed_dns": "the coordinator's name could not be resolved: {line}",
        "failed_refused": "nobody listened at the coordinator's address: {line}",
        "failed_unreachable": "the coordinator could not be reached: {line}",
        "failed_bootstrap": "NCCL's bootstrap failed: {line}",
        "failed_timeout": "the ranks did not all arrive in time: {line}",
        "failed_closed": "the rendezvous was closed: {line}",
        "address": "the address is {address}",
        "port": "the port is {address}",
        "interface": "the interface is {address}",
        "arrived": "the message names {address}",
        "complained": "it was reported by {ranks}",
        "raised": "setting up the process group raised {type}: {message}",
        "first": "the very first collective timed out: {line}",
        "began": "the ranks began to look for each other: {line}",
        "silent": "then nothing more was heard for {seconds}",
        "ended": "the run ended: {state}",
        "no_point": "the log holds {count:training points}",
        "before_training": "the ranks never got past forming their group; it is a matter of coordination before "
        "any collective, and it holds the whole allocation",
        "which": "which of an unreachable coordinator, a firewall, name resolution and a rank that never started is "
        "behind it",
        "fix_ranks": "start each process with its own rank and GPU (node rank from SLURM_NODEID, local rank from "
        "SLURM_LOCALID), and resubmit",
        "fix_interface": "name the interface between the nodes in NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, or leave "
        "both unset",
        "fix_port": "choose a free port for the coordinator, for example one derived from the job id",
        "fix_name": "use a name that every node resolves, such as the first of scontrol show hostnames",
        "fix_address": "check that the coordinator's address and port are those of the first node, and that its "
        "process was started",
        "never_came": "those that complain had reached the store ({count:failures} to reach an address): "
        "some rank never registered there",
        "only": "only {ranks} of the run told of a start",
        "fix_start": "check that the launch line starts every rank on every node, each with its own number",
        "fix_network": "check from every node that the coordinator's address and port answer, and that every rank "
        "was started",
        "probe": "srun -l bash -c 'getent hosts $MASTER_ADDR; nc -vz $MASTER_ADDR $MASTER_PORT'",
        "trained": "training was under way, so a group that was needed had formed: {point}",
        "completed": "the run ended well: {state}",
        "came_up": "the process group came up: {line}",
        "none": "the log tells of {count:failures} of the rendezvous",
    },
    going={
        **STILL_GOING,
        "silent": "then nothing more has been heard for {seconds}",
        "before_training": "the ranks have not got past forming their group; it is a matter of coordination before "
        "any collective, and it holds the whole allocation",
        "never_came": "those that complain reached the store ({count:failures} to reach an address): "
        "some rank has not registered there",
    },
    judge=judge,
    loses="standstill",
)
