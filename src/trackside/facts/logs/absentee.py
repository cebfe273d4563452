"""Which rank stayed away from a collective, by what the others say of it; and what its host says that would keep it.

The rank that complains is rarely the one at fault: those that wait time out, the one they wait for is silent. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.catalog.natural import whole_number
from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.logs.flight import missing_ranks, stalls, unfinished_ranks
from trackside.facts.ranks import named, rank_of, ranks_of, world_size
from trackside.finding import Claim, claim
from trackside.model import Event, Role, Run

FROZEN = ("frozen", "unreachable", "stale", "io_error")
"""Reasons of storage faults that let a process wait for ever."""


SAYS: Mapping[str, str] = {
    "missing": "{ranks} did not arrive, by the others' reports",
    "dump": "{ranks} never entered {op} number {seq} that the others wait in, by the Flight Recorder",
    "unfinished": "{ranks} entered the collective like all others and never saw its end: the GPU or the "
    "link stopped answering",
    "behind": "{ranks} had enqueued fewer collectives than the others",
    "quiet": "{ranks} said nothing while the others complained",
    "uninterruptible": "a process sleeps uninterruptibly, as one does whose read or write never returns: {line}",
    "storage": "a host shows processes that wait for storage: {line}",
    "link": "a network link went down: {line}",
    "worker_died": "a data-loader worker of {ranks} died, which is the trigger: {line}",
    "some_worker_died": "a data-loader worker died, which is the likely trigger: {line}",
    "had_raised": "{ranks} had raised an error of its own, which is the trigger: {type}",
}
"""Sentences of the claims that are made here."""


@dataclass(frozen=True, slots=True)
class Absentee:
    """The ranks that did not take part, and the claim that says how that is known."""

    ranks: tuple[int, ...]
    claim: Claim
    own: bool = True
    """They wait for no GPU work themselves: what holds them up is on the host."""


def absentee(evidence: Evidence, run: Run, signs: Sequence[tuple[str, Event]]) -> Absentee | None:
    """Who did not take part, by the best witness there is."""
    dumped = from_dumps(evidence["dumps"])
    if dumped is not None:
        return dumped
    timeouts = evidence["timeouts"]
    for row in timeouts.events:
        named_ = str(row.get("missing_ranks") or "")
        ranks = tuple(
            sorted({rank for part in named_.replace(",", " ").split() if (rank := whole_number(part)) is not None})
        )
        if ranks:
            told = derived(ranks, timeouts.value(row, "missing_ranks"))
            return Absentee(ranks, claim("missing", ranks=told))
    return _never_entered(timeouts, evidence["states"]) or _uncomplaining(evidence, run, signs)


def from_dumps(dumps: Frame) -> Absentee | None:
    """Those that the Flight Recorder shows not to have entered, or not to have left."""
    ranks = missing_ranks(dumps.records)
    if ranks:
        stall = stalls(dumps.records)[0]
        rows = [dumps.value(row, "last_enqueued") for row in stall.rows]
        values = {"ranks": derived(ranks, *rows), "op": derived(stall.op, *rows), "seq": derived(stall.seq, *rows)}
        busy = any(row.get("rank") in ranks and row.get("pending_seq") is not None for row in dumps.records)
        return Absentee(ranks, claim("dump", **values), own=not busy)
    late = unfinished_ranks(dumps.records)
    if late:
        rows = [dumps.value(row, "last_completed") for row in dumps.records if row.get("rank") in late]
        return Absentee(late, claim("unfinished", ranks=derived(late, *rows)), own=False)
    return None


def _never_entered(*frames: Frame) -> Absentee | None:
    """Ranks whose last enqueued work is behind that of the others."""
    last: dict[int, tuple[int, Value]] = {}
    for frame in frames:
        for row in frame.events:
            rank, enqueued = rank_of(row), row.get("last_enqueued")
            if rank is not None and isinstance(enqueued, int):
                last[rank] = enqueued, frame.value(row, "last_enqueued")
    if len(last) < 2:
        return None
    ahead = max(enqueued for enqueued, _ in last.values())
    behind = {rank: value for rank, (enqueued, value) in last.items() if enqueued < ahead}
    if not behind or len(behind) * 2 > len(last):
        return None
    told = derived(tuple(sorted(behind)), *behind.values())
    return Absentee(tuple(sorted(behind)), claim("behind", ranks=told))


def _uncomplaining(evidence: Evidence, run: Run, signs: Sequence[tuple[str, Event]]) -> Absentee | None:
    """The few ranks that said nothing where at least half of the world complained."""
    world = world_size(run, evidence["ready"], evidence["communicators"], evidence["hosts"], evidence["inits"])
    loud = ranks_of((row for _, row in signs), evidence["launchers"])
    if world is None and loud and loud[-1] + 1 == run.n_gpus:  # one rank a GPU: the last of them spoke
        world = run.n_gpus
    if world is None or len(loud) * 2 < world or len(loud) >= world:
        return None
    quiet = tuple(sorted(set(range(world)) - set(loud)))
    voices = [named(evidence[name], [row for each, row in signs if each == name]) for name in dict(signs)]
    told = derived(quiet, *(voice for voice in voices if voice is not None))
    return Absentee(quiet, claim("quiet", ranks=told))


def trigger(evidence: Evidence, ranks: Sequence[int]) -> Claim | None:
    """What the absent ranks' own output says that would keep them away: a loader worker that died, or an error of
    theirs that was never printed by the ranks which wait."""
    workers, raised = evidence["workers"], evidence["exceptions"]
    for row in workers.events:
        if row.role is Role.ROOT and (row.rank is None or not ranks or row.rank in ranks):
            line = workers.value(row, "text")
            if row.rank is None:
                return claim("some_worker_died", line=line)
            return claim("worker_died", line=line, ranks=derived((row.rank,), line))
    for row in raised.events:
        if row.role is Role.ROOT and row.rank in ranks and row.get("about") != "collective":
            kind = raised.value(row, "type")
            return claim("had_raised", type=kind, ranks=derived((row.rank,), kind))
    return None


def host_trouble(evidence: Evidence) -> Claim | None:
    """What the machines say that would keep a rank away."""
    for row in evidence["storage"].events:
        if row.get("reason") in FROZEN:
            return claim("storage", line=evidence["storage"].value(row, "text"))
    processes = evidence["processes"]
    stuck = [row for row in processes.events if row.get("state") == "D"]
    if stuck and len(stuck) * 2 <= len(processes):  # the few that hold up the many
        return claim("uninterruptible", line=processes.value(stuck[0], "text"))
    for name, key in (("tasks", "storage"), ("links", "link")):
        frame = evidence[name]
        for row in frame.events:
            if name == "tasks" or row.get("state") == "down":
                return claim(key, line=frame.value(row, "text"))
    return None
