"""Collective hang: a run of several ranks froze in a collective that one of them never entered.

Meaning
-------
The ranks had formed their group and worked, then stood still in a collective because a rank did not take part: it
died, went elsewhere in the code, waits for storage, or the network lost it. A rank that waits spins, so its GPU
looks busy while no work is done.

What it looks like
------------------
NCCL's watchdog or gloo times out on some ranks; a peer's connection closes; or, with the watchdog off, the log goes
silent until the time limit. The culprit is the rank that did not complain: it printed no time-out, its last enqueued
collective is its last completed one, or it is missing from the others' reports.

Not this when
-------------
A rank raised, was killed or ran out of memory: that is the cause, and this its consequence. No collective ever
completed: that is start-up. Evaluation, saves and compilation pause and go on.

Impact
------
All GPUs are held, busy by the looks of it, until a time-out or the time limit.

Do next
-------
Look at the rank that is named: its log, its node, its data and storage. Keep the watchdog and the Flight Recorder
on, so that a lost peer fails fast and tells which one.

What it cannot tell
-------------------
Why that rank stayed away, where nothing on its host says so.

References
----------
PyTorch, ProcessGroupNCCL and Flight Recorder; gloo transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trackside.diagnose.ending import abnormal_end, completed, disposition
from trackside.diagnose.exceptions import earliest_first, last_words
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.flight import missing_ranks, stalls, unfinished_ranks
from trackside.diagnose.learning import training_points
from trackside.diagnose.order import followed_by
from trackside.diagnose.ranks import named, rank_of, ranks_of, world_size
from trackside.diagnose.silence import REAPED, SILENCE, Quiet, several_ranks, stood_still
from trackside.model import Certainty, Claim, Culprit, Event, Finding, Role, Run, Value
from trackside.query import Frame, derived, events, record

STRONG = ("mismatches", "timeouts", "heartbeats", "states")
"""Asks whose rows alone say that a collective did not go through."""
WEAK = ("peers", "nccl", "exceptions")
"""A peer that is gone, as seen from the others."""
FROZEN = ("frozen", "unreachable", "stale", "io_error")
"""Reasons of storage faults that let a process wait for ever."""
COLLECT = (
    "every rank's output from all nodes, with time stamps",
    "Flight Recorder dumps (TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT set)",
    "dmesg -T of the nodes (hung tasks, links)",
)


@dataclass(frozen=True, slots=True)
class Absentee:
    """The ranks that did not take part, and the claim that says how that is known."""

    ranks: tuple[int, ...]
    claim: Claim
    own: bool = True
    """They wait for no GPU work themselves: what holds them up is on the host."""


def judge(evidence: Evidence, run: Run, limits: Quiet) -> Finding:
    """Complaints of ranks that nothing after them takes back; else dumps; else a silence among several ranks."""
    well = completed(evidence)
    if well is not None:
        return absent(claim("completed", state=well))
    points = training_points(evidence["progress"])
    signs = _signs(evidence, points)
    if _startup(evidence, signs, points):
        return absent(claim("startup", count=evidence["progress"].reduce("count")))
    if signs:
        return _complained(evidence, run, signs)
    dumps = evidence["dumps"]
    if dumps and (missing_ranks(dumps.records) or unfinished_ranks(dumps.records)):
        return _dumped(evidence, run)
    waiting = [row for row in evidence["stacks"].events if row.get("collective") is not None]
    if waiting:
        return _caught(evidence, waiting)
    return _silent(evidence, run, limits, points)


def _signs(evidence: Evidence, points: Sequence[Event]) -> list[tuple[str, Event]]:
    """(ask, row) of what ranks say of others, after which training did not go on and was not over either."""
    over = [row for row in evidence["ends"].events if row.get("status") != "aborted"]
    crashed = abnormal_end(evidence) is not None
    kept: list[tuple[str, Event]] = []
    for name in (*STRONG, *WEAK):
        rows = [row for row in evidence[name].events if row.role in (Role.CASCADE, Role.ROOT)]
        if name == "exceptions":
            rows = [row for row in rows if row.get("about") == "collective"]
        rows = last_words(rows, points, crashed=crashed)
        kept += [(name, row) for row in rows if not over or followed_by(over[-1], [row]) is None]
    return kept


def _startup(evidence: Evidence, signs: Sequence[tuple[str, Event]], points: Sequence[Event]) -> bool:
    """Whether no collective can have completed yet: that is a matter of the rendezvous."""
    if points or not signs:
        return False
    timed = [row for name, row in signs if name == "timeouts"]
    if timed and all(row.get("seq") in (0, 1) for row in timed):
        return True
    done = [row for row in evidence["communicators"].events if row.get("complete")]
    return not timed and not evidence["ready"] and not done and not any(name == "mismatches" for name, _ in signs)


def _complained(evidence: Evidence, run: Run, signs: Sequence[tuple[str, Event]]) -> Finding:
    strong = [(name, row) for name, row in signs if name in STRONG]
    first = earliest_first(row for _, row in (strong or signs))[0]
    name = next(name for name, row in signs if row is first)
    frame = evidence[name]
    mismatch = name == "mismatches"
    shows: list[Claim] = [claim(_KEYS.get(name, "peer"), line=frame.value(first, "text"))]
    ranks = named(frame, [row for each, row in signs if each == name])
    if ranks is not None and not mismatch:
        shows.append(claim("waited", ranks=ranks))
    away = _absentee(evidence, run, signs)
    certainty = Certainty.ESTABLISHED if strong and abnormal_end(evidence) is not None else Certainty.SUPPORTED
    if name in ("heartbeats", "states") and len(strong) == 1:
        certainty = Certainty.SUPPORTED
    return _found(evidence, shows, first, certainty, away, "job" if mismatch else None)


_KEYS = {"timeouts": "timed_out", "heartbeats": "heartbeat", "states": "state", "mismatches": "mismatch"}


def _dumped(evidence: Evidence, run: Run) -> Finding:
    away = _from_dumps(evidence["dumps"])
    assert away is not None
    # Dumps alone tell who stayed away, not whether its code or its machine kept it.
    return _found(evidence, [], None, Certainty.SUPPORTED, away, "unknown")


def _caught(evidence: Evidence, waiting: Sequence[Event]) -> Finding:
    """Stacks taken on the spot stand in a collective: somebody was looking because it did not move."""
    stacks = evidence["stacks"]
    shows = [claim("stacks", call=stacks.value(waiting[0], "collective"), line=stacks.value(waiting[0], "text"))]
    stuck = _host_trouble(evidence) is not None
    return _found(evidence, shows, None, Certainty.SUPPORTED if stuck else Certainty.POSSIBLE, None, "unknown")


def _silent(evidence: Evidence, run: Run, limits: Quiet, points: Sequence[Event]) -> Finding:
    """The watchdog-less form: several ranks trained, then nothing more until somebody ended the run."""
    state, notices = disposition(evidence), evidence["notices"]
    reaped = state is not None and state.value in REAPED
    reaped = reaped or any(row.get("reason") == "time_limit" for row in notices.events)
    if not evidence.has("timeouts"):
        return unknown(["no job log was given"], COLLECT)
    reaped = reaped and not evidence["ends"]
    still = stood_still(evidence, run, limits) if reaped and points and several_ranks(evidence, run) else None
    own = [row for row in evidence["exceptions"].events if row.role is Role.ROOT and not row.get("logged")]
    if still is None or last_words(own, points):
        return absent(claim("none", count=evidence["timeouts"].reduce("count")))
    quiet, stamped = still
    last = points[-1]
    shows = [claim("silent" if stamped else "unaccounted", seconds=quiet)]
    shows.append(claim("until", point=evidence["progress"].value(last, "text")))
    if state is not None:
        shows.append(claim("ended", state=state))
    certainty = Certainty.SUPPORTED if stamped else Certainty.POSSIBLE
    return _found(evidence, shows, last, certainty, _from_dumps(evidence["dumps"]), None)


def _absentee(evidence: Evidence, run: Run, signs: Sequence[tuple[str, Event]]) -> Absentee | None:
    """Who did not take part, by the best witness there is."""
    dumped = _from_dumps(evidence["dumps"])
    if dumped is not None:
        return dumped
    timeouts = evidence["timeouts"]
    for row in timeouts.events:
        named_ = str(row.get("missing_ranks") or "")
        ranks = tuple(sorted({int(part) for part in named_.replace(",", " ").split() if part.isdigit()}))
        if ranks:
            told = derived(ranks, timeouts.value(row, "missing_ranks"))
            return Absentee(ranks, claim("missing", ranks=told))
    return _never_entered(timeouts, evidence["states"]) or _uncomplaining(evidence, run, signs)


def _from_dumps(dumps: Frame) -> Absentee | None:
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
    if world is None or len(loud) * 2 < world or len(loud) >= world:
        return None
    quiet = tuple(sorted(set(range(world)) - set(loud)))
    voices = [named(evidence[name], [row for each, row in signs if each == name]) for name in dict(signs)]
    told = derived(quiet, *(voice for voice in voices if voice is not None))
    return Absentee(quiet, claim("quiet", ranks=told))


def _host_trouble(evidence: Evidence) -> Claim | None:
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


def _found(
    evidence: Evidence,
    shows: list[Claim],
    row: Event | None,
    certainty: Certainty,
    away: Absentee | None,
    culprit: Culprit | None,
) -> Finding:
    """The culprit: the machine's word first; else a rank that never entered, which is held up in its own code."""
    trouble = _host_trouble(evidence)
    if away is not None:
        shows.append(away.claim)
    if trouble is not None:
        shows.append(trouble)
    point = training_points(evidence["progress"])[-1:]
    if point and row is not point[0]:
        shows.append(claim("until", point=evidence["progress"].value(point[0], "text")))
    if trouble is not None:
        culprit = "infrastructure"
    elif culprit is None:
        culprit = "job" if away is not None and away.own else "unknown"
    told = [each for each in evidence["exceptions"].events if each.get("about") == "collective"]
    told_of = away is not None or trouble is not None or shows[0].key not in ("silent", "unaccounted")
    return found(
        certainty,
        culprit,
        shows,
        implies=[claim("frozen" if told_of else "seems_frozen")],
        cannot_decide=[] if trouble is not None else [claim("why" if away is not None else "which")],
        actions=[
            action("look_rank" if away is not None else "look_ranks" if told_of else "look_all"),
            action("watchdog", "settings"),
        ],
        since=None if row is None else row.time,
        at=None if row is None else row.at,
        ranks=away.ranks if away is not None else (),
        exception=(str(told[0].get("type")), str(told[0].get("message") or "")) if told else None,
    )


FAMILY = Family(
    code="C2",
    id="collective-hang",
    title="Collective hang: the ranks wait for one of them",
    asks={
        **SILENCE,
        "timeouts": events("collective_timeout"),
        "heartbeats": events("heartbeat_lost"),
        "states": events("collective_state"),
        "mismatches": events("collective_mismatch"),
        "peers": events("peer_lost"),
        "nccl": events("nccl_error"),
        "exceptions": events("exception"),
        "storage": events("storage_fault"),
        "tasks": events("hung_task"),
        "links": events("link_down"),
        "dumps": record("flight_recorder_group"),
        "stacks": events("stack"),
        "processes": events("process_state"),
    },
    needs=(("timeouts", "dumps", "stacks"),),
    limits=Quiet(),
    explains=("F3", "H1", "H3"),
    rivals=("A2", "B2", "C1", "C3", "F1"),
    collect=COLLECT,
    says={
        "timed_out": "a collective timed out: {line}",
        "heartbeat": "a rank's watchdog no longer answered: {line}",
        "state": "a rank told where it stood in its collectives: {line}",
        "mismatch": "the ranks did not enter the same collective: {line}",
        "peer": "a rank lost another one: {line}",
        "waited": "{ranks} waited and complained",
        "missing": "{ranks} did not arrive, by the others' reports",
        "dump": "{ranks} never entered {op} number {seq} that the others wait in, by the Flight Recorder",
        "unfinished": "{ranks} entered the collective like all others and never saw its end: the GPU or the "
        "link stopped answering",
        "behind": "{ranks} had enqueued fewer collectives than the others",
        "quiet": "{ranks} said nothing while the others complained",
        "stacks": "a stack taken on the spot waits in {call}: {line}",
        "uninterruptible": "a process sleeps uninterruptibly, as one does whose read or write never returns: {line}",
        "storage": "a host shows processes that wait for storage: {line}",
        "link": "a network link went down: {line}",
        "silent": "nothing was heard of the run for {seconds} before its end",
        "unaccounted": "the steps done, at their printed pace, leave {seconds} of the run unaccounted for",
        "until": "until then it trained: {point}",
        "ended": "the run ended: {state}",
        "frozen": "the run froze in a collective; GPUs that look busy then only wait",
        "seems_frozen": "several ranks that stop without a word are most often frozen in a collective; "
        "GPUs that look busy then only wait",
        "which": "which rank stayed away, and why",
        "look_all": "compare the last lines of each rank's log, and next time take a stack of each rank before it ends",
        "why": "why the rank stayed away: nothing on its host was given that says so",
        "look_rank": "look at the log, the node, the data and the storage of the rank that is named",
        "look_ranks": "find the rank that did not complain, and look at its log and its node",
        "watchdog": "keep the watchdog on and record collectives, so that a lost peer fails fast and is named",
        "settings": "export TORCH_NCCL_DUMP_ON_TIMEOUT=true TORCH_NCCL_TRACE_BUFFER_SIZE=ENTRIES",
        "completed": "the run ended well: {state}",
        "startup": "no collective had completed yet ({count} training points): that is the rendezvous",
        "none": "{count} time-outs of collectives are in the log, and no rank lost another",
    },
    judge=judge,
)
