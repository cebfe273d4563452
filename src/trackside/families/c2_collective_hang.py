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
In metrics: no launches and no collectives to the end while memory stays held; engine activity at its height with SM
activity near zero, or at most what the spinning keeps; and the GPU that the others wait for cold, gone, or behind.
Or, where the ranks had met and no step was ever done: GPUs that are busy all the while and move no data.
In stacks taken while it hangs (by the agent, or with py-spy): all ranks wait in one collective, at one line, but the
one that stands elsewhere.

Not this when
-------------
The GPUs worked up to the end, or the pause is no longer than ones that the run came back from. SM activity or power
fell alike on all GPUs with no word of the log: that may be lighter work.
A rank raised, was killed or ran out of memory: that is the cause, and this its consequence. The ranks never met:
that is start-up. No rank's stack waits for others, or the run went on after its stacks were taken. Evaluation, saves
and compilation pause and go on.

Impact
------
All GPUs are held, busy by the looks of it, until a time-out or the time limit.

Do next
-------
Look at the rank that is named: its log, its node, its data and storage. Keep the watchdog and the Flight Recorder
on, so that a lost peer fails fast and tells which one.

What it cannot tell
-------------------
Why that rank stayed away, where nothing on its host says so and no stack of it was taken.

References
----------
PyTorch, ProcessGroupNCCL and Flight Recorder; gloo transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Value
from trackside.facts.gpu.signals import NEED, STANDSTILL, STILL_GOING, STILL_SAYS, Limits, nodes_of, watched
from trackside.facts.gpus import of_ranks, ranks_at
from trackside.facts.logs import absentee, stacks
from trackside.facts.logs.absentee import Absentee, host_trouble, trigger
from trackside.facts.logs.complaints import STRONG, are_startup, complaints, stopped_at
from trackside.facts.logs.ending import abnormal_end, completed, disposition, ended_at
from trackside.facts.logs.exceptions import earliest_first, last_words
from trackside.facts.logs.silence import REAPED, ended, several_ranks, stood_still, unaccounted
from trackside.facts.logs.stacks import Stood, stood
from trackside.facts.ranks import named, world_size
from trackside.facts.training.learning import training_points
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Culprit, Finding, Outcome, absent, action, claim, found, unknown
from trackside.model import Event, Role, Run
from trackside.query import events, record

if TYPE_CHECKING:
    from trackside.facts.gpu.standstill import Standstill as Still

COLLECT = (
    "every rank's output from all nodes, with time stamps",
    "Flight Recorder dumps (TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT set)",
    "dmesg -T of the nodes (hung tasks, links)",
)


@dataclass(frozen=True, slots=True)
class Standing:
    """What metrics say: a standstill at the end, or work up to it."""

    still: Still | None = None
    working: Claim | None = None


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Complaints of ranks that nothing after them takes back; else dumps; else a silence or GPUs that stand still."""
    well = completed(evidence)
    if well is not None:
        return absent(claim("completed", state=well))
    points = training_points(evidence["progress"])
    signs = complaints(evidence, points)
    if are_startup(evidence, signs, points):
        return absent(claim("startup", count=evidence["progress"].reduce("count")))
    if signs:
        return _complained(evidence, run, signs, _standing(evidence, run, limits, True, stopped_at(signs, points)))
    dumps = evidence["dumps"]
    if dumps and (absentee.from_dumps(dumps)) is not None:
        return _dumped(evidence, run, _standing(evidence, run, limits, True, None))
    caught = stood(evidence, points)
    if caught is not None and caught.waiting:
        return _caught(evidence, run, caught, _standing(evidence, run, limits, True, None), limits)
    known, world = len(caught.ranks) if caught is not None else 0, world_size(run) or 2
    if caught is not None and 1 < world <= known:
        return absent(*caught.shows())
    silent = _silent(evidence, run, limits, points)
    return unknown([SOME], COLLECT) if 0 < known < world and silent.outcome is Outcome.ABSENT else silent


def _standing(evidence: Evidence, run: Run, limits: Limits, beside: bool, stopped: float | None) -> Standing:
    """``stopped``: when the log says that it had stopped, for metrics that can't tell waiting from work."""
    seen = watched(evidence, run)
    if seen is None:
        return Standing()
    from trackside.facts.gpu.signals import stall_of

    stall = stall_of(evidence, run, seen)
    still = stall.at_end(beside=beside)
    if still is None and stopped is not None:
        still = stall.within(stopped)
    return Standing(still, stall.worked_on if still is None else None)


def _complained(evidence: Evidence, run: Run, signs: Sequence[tuple[str, Event]], standing: Standing) -> Finding:
    strong = [(name, row) for name, row in signs if name in STRONG]
    first = earliest_first(row for _, row in (strong or signs))[0]
    name = next(name for name, row in signs if row is first)
    frame = evidence[name]
    mismatch = name == "mismatches"
    shows: list[Claim] = [claim(_KEYS.get(name, "peer"), line=frame.value(first, "text"))]
    ranks = named(frame, [row for each, row in signs if each == name])
    if ranks is not None and not mismatch:
        shows.append(claim("waited", ranks=ranks))
    away = absentee.absentee(evidence, run, signs)
    certainty = Certainty.ESTABLISHED if strong and abnormal_end(evidence) is not None else Certainty.SUPPORTED
    if name in ("heartbeats", "states") and len(strong) == 1:
        certainty = Certainty.SUPPORTED
    return _found(evidence, run, shows, first, certainty, away, "job" if mismatch else None, standing.still)


_KEYS = {"timeouts": "timed_out", "heartbeats": "heartbeat", "states": "state", "mismatches": "mismatch"}


def _dumped(evidence: Evidence, run: Run, standing: Standing) -> Finding:
    away = absentee.from_dumps(evidence["dumps"])
    # Dumps alone tell who stayed away, not whether its code or its machine kept it.
    return _found(evidence, run, [], None, Certainty.SUPPORTED, away, "unknown", standing.still)


def _caught(evidence: Evidence, run: Run, caught: Stood, standing: Standing, limits: Limits) -> Finding:
    """Stacks taken on the spot stand in a collective: somebody was looking because it did not move. Those of the ranks
    themselves, which say who is not there, are a witness of their own."""
    away, state = caught.absentee(), disposition(evidence)
    second = standing.still is not None or host_trouble(evidence) is not None
    second = second or stood_still(evidence, run, limits) is not None
    certainty = Certainty.SUPPORTED if second or (away is not None and caught.suspected) else Certainty.POSSIBLE
    if second and away is not None and state is not None and state.value in REAPED:
        certainty = Certainty.ESTABLISHED
    return _found(evidence, run, [], None, certainty, away, None if away is not None else "unknown", standing.still)


def _silent(evidence: Evidence, run: Run, limits: Limits, points: Sequence[Event]) -> Finding:
    """The watchdog-less form: several ranks trained, then nothing more until somebody ended the run."""
    state, notices = disposition(evidence), evidence["notices"]
    reaped = state is not None and state.value in REAPED
    reaped = (reaped or any(row.get("reason") == "time_limit" for row in notices.events)) and not evidence["ends"]
    own = [row for row in evidence["exceptions"].events if row.role is Role.ROOT and not row.get("logged")]
    raised = bool(last_words(own, points))
    told = stood_still(evidence, run, limits) if reaped and points and several_ranks(evidence, run) else None
    standing = _standing(evidence, run, limits, told is not None, points[-1].time if points and told else None)
    if standing.still is not None and _frozen(evidence, run, standing.still, raised):
        return _stood(evidence, run, standing.still, told, points)
    if standing.working is not None:
        return absent(standing.working)
    if not evidence.has("timeouts"):
        return unknown(["no job log was given, and the GPUs' activity does not tell"], COLLECT)
    first = _at_the_first(evidence, run, limits) if reaped and not raised else None
    if first is not None:
        return first
    if told is None or raised:
        lost = unaccounted(evidence, limits) if reaped and not raised and several_ranks(evidence, run) else None
        if lost is not None:
            return unknown([OPEN], COLLECT)
        return absent(claim("none", count=evidence["timeouts"].reduce("count")))
    quiet, stamped = told
    last = points[-1]
    shows = [claim("silent" if stamped else "unaccounted", seconds=quiet)]
    shows.append(claim("until", point=evidence["progress"].value(last, "text")))
    if state is not None:
        shows.append(ended(state))
    certainty = Certainty.SUPPORTED if stamped else Certainty.POSSIBLE
    away = absentee.from_dumps(evidence["dumps"])
    return _found(evidence, run, shows, last, certainty, away, None, standing.still)


def _at_the_first(evidence: Evidence, run: Run, limits: Limits) -> Finding | None:
    """Ranks that met, spun and never did a step: they wait in one of their first collectives."""
    seen = watched(evidence, run)
    if seen is None:
        return None
    from trackside.facts.gpu.signals import unstarted

    stuck = unstarted(evidence, run, seen)
    if stuck is None:
        return None
    shows, state = list(stuck.claims), disposition(evidence)
    if state is not None:
        shows.append(ended(state))
    certainty = Certainty.SUPPORTED if stuck.sure else Certainty.POSSIBLE
    finding = _found(evidence, run, shows, None, certainty, absentee.from_dumps(evidence["dumps"]), None, None)
    return replace(finding, since=stuck.since)


def _frozen(evidence: Evidence, run: Run, still: Still, raised: bool) -> bool:
    """Whether GPUs at rest are an affair between ranks that nobody's own words end."""
    if int(still.activity.users.sum()) < 2 and not several_ranks(evidence, run):
        return False
    told = disposition(evidence) is not None or bool(evidence["notices"]) or bool(still.outliers)
    if not told and still.activity.basis in ("power", "utilisation") and evidence.has("logs"):
        return False  # an excerpt of a log, and signals that tell work from waiting only beside a silence
    return not evidence["ends"] and (not raised or (still.sure and still.frozen))


def _stood(
    evidence: Evidence, run: Run, still: Still, told: tuple[Value, bool] | None, points: Sequence[Event]
) -> Finding:
    """GPUs that stand still; more than supported where a second plane agrees."""
    state, end = disposition(evidence), ended_at(evidence)
    shows: list[Claim] = []
    if told is not None:
        shows.append(claim("silent" if told[1] else "unaccounted", seconds=told[0]))
    if state is not None:
        shows.append(ended(state))
    elif end is not None:
        shows.append(claim("ended_at", time=end))
    second = (told is not None and told[1]) or state is not None
    certainty = Certainty.POSSIBLE
    if still.sure:
        traced = still.traced
        strong = still.frozen or traced
        certainty = Certainty.ESTABLISHED if strong and second else Certainty.SUPPORTED
    elif told is not None:
        certainty = Certainty.SUPPORTED
    last = points[-1] if points else None
    away = absentee.from_dumps(evidence["dumps"])
    return _found(evidence, run, shows, last, certainty, away, None, still)


def _found(
    evidence: Evidence,
    run: Run,
    shows: list[Claim],
    row: Event | None,
    certainty: Certainty,
    away: Absentee | None,
    culprit: Culprit | None,
    still: Still | None,
) -> Finding:
    """The culprit: the machine's word first; else the job's, where a rank told why, its stack shows its line of code or
    its GPU works on something else, or its peers on the same node name it, so that no network lies between them; else
    it is open: code, data, storage or the network may have kept the rank away."""
    trouble, caught = host_trouble(evidence), stood(evidence, training_points(evidence["progress"]))
    told_of = away is not None or trouble is not None or (bool(shows) and shows[0].key in _TELLING) or still is not None
    if still is not None:
        shows = [*still.claims, *shows]
    line: Value | None = None
    if caught is not None and caught.waiting:
        told_of = True
        shows += caught.shows()
        own = caught.absentee()
        away = own if away is None else away
        if away is not None and own is not None and set(own.ranks) & set(away.ranks):
            line = caught.place()
            shows += caught.lines(away.ranks) if away.claim != own.claim else []
    if away is not None:
        shows.append(away.claim)
    ranks, gpus = _where(evidence, run, away, still)
    cause = trouble if trouble is not None else trigger(evidence, ranks)
    own_work = False
    if cause is not None:
        shows = [cause, *shows]  # what came first is said first
    point = training_points(evidence["progress"])[-1:]
    if point and (row is not point[0] or still is not None):
        shows.append(claim("until", point=evidence["progress"].value(point[0], "text")))
    if trouble is not None:
        culprit = "infrastructure"
    elif cause is not None:
        culprit = "job"
    elif still is not None and still.why == "computing" and set(gpus) == set(still.outliers):
        culprit, own_work = "job", True
    elif line is not None or (culprit is None and away is not None and away.own and len(run.nodes) == 1):
        culprit = "job"
    told = [each for each in evidence["exceptions"].events if each.get("about") == "collective"]
    look = (
        "look_line" if line is not None else "look_rank" if ranks or gpus else "look_ranks" if told_of else "look_all"
    )
    since = row.time if row is not None else None
    if still is not None:
        since = still.since if since is None or row in point else min(since, still.since)
    return found(
        certainty,
        culprit or "unknown",
        shows,
        implies=[claim("frozen" if told_of else "seems_frozen")],
        cannot_decide=[]
        if cause is not None or own_work or line is not None
        else [claim("why" if ranks or gpus else "which")],
        actions=[
            _next(cause, look, line),
            action("watchdog", "settings"),
        ],
        since=since,
        at=None if row is None else row.at,
        ranks=ranks,
        gpus=gpus,
        nodes=nodes_of(gpus),
        exception=(str(told[0].get("type")), str(told[0].get("message") or "")) if told else None,
    )


def _next(cause: Claim | None, look: str, line: Value | None) -> Action:
    mend = _MENDED.get(cause.key) if cause is not None else None
    if mend is None and line is not None:
        return action(look, place=line)
    return action(mend or look)


SOME = "where the other ranks stand: the stacks of some alone were taken"
OPEN = "what the run did in its last part: its steps, at their pace, leave much of its time open"
_TELLING = ("timed_out", "heartbeat", "state", "mismatch", "peer")
"""First claims that speak of a collective, not only of a silence."""
_MENDED = {"worker_died": "mend_worker", "some_worker_died": "mend_worker", "had_raised": "mend_error"}
"""What to do about the trigger that is known."""


def _where(
    evidence: Evidence, run: Run, away: Absentee | None, still: Still | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ranks and GPUs that the others wait for: as the ranks' own reports have it, else as the GPUs show."""
    if away is not None:
        return away.ranks, of_ranks(run, away.ranks)
    if still is None:
        return (), ()
    return ranks_at(run, still.outliers), still.outliers


FAMILY = Family(
    code="C2",
    id="collective-hang",
    title="Collective hang: the ranks wait for one of them",
    pictured=("dead-loader-hang", "busy-wait"),
    asks={
        **STANDSTILL,
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
        "workers": events("dataloader_death"),
    },
    needs=(("timeouts", "dumps", "stacks", *NEED),),
    limits=Limits(),
    explains=("F3", "H1", "H3"),
    rivals=("A2", "B2", "C1", "C3", "F1"),
    collect=COLLECT,
    says={
        **absentee.SAYS,
        **stacks.SAYS,
        **STILL_SAYS,
        "timed_out": "a collective timed out: {line}",
        "heartbeat": "a rank's watchdog no longer answered: {line}",
        "state": "a rank told where it stood in its collectives: {line}",
        "mismatch": "the ranks did not enter the same collective: {line}",
        "peer": "a rank lost another one: {line}",
        "waited": "{ranks} waited and complained",
        "silent": "nothing was heard of the run for {seconds} before its end",
        "unaccounted": "the steps done, at their printed pace, leave {seconds} of the run unaccounted for",
        "ended_at": "the run ended at {time}",
        "until": "until then it trained: {point}",
        "ended": "the run ended: {state}",
        "frozen": "the run froze in a collective; GPUs that look busy then only wait",
        "seems_frozen": "several ranks that stop without a word are most often frozen in a collective; "
        "GPUs that look busy then only wait",
        "which": "which rank stayed away, and why",
        "look_all": "compare the last lines of each rank's log, and next time take a stack of each rank before it ends",
        "why": "why the rank stayed away: nothing on its host was given that says so",
        "mend_worker": "find what killed the loader's worker, host memory and shared memory first; then give the job "
        "more of it, or fewer workers",
        "mend_error": "mend the error that the rank had raised: the others only waited for it",
        "look_rank": "look at the log, the node, the data and the storage of the rank that is named",
        "look_line": "look at the line that the others wait for, {place}: what it waits for itself, and why no other "
        "rank is there",
        "look_ranks": "find the rank that did not complain, and look at its log and its node",
        "watchdog": "keep the watchdog on and record collectives, so that a lost peer fails fast and is named",
        "settings": "export TORCH_NCCL_DUMP_ON_TIMEOUT=true TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
        "completed": "the run ended well: {state}",
        "startup": "no collective had completed yet ({count:training points}): that is the rendezvous",
        "none": "the log tells of {count:time-outs} of collectives, and no rank lost another",
    },
    going={
        **STILL_GOING,
        **stacks.STILL_SAYS,
        "silent": "nothing has been heard of the run for {seconds}",
        "frozen": "the run is frozen in a collective; GPUs that look busy only wait",
        "seems_frozen": "several ranks that stop without a word are most often frozen in a collective; "
        "GPUs that look busy only wait",
        "look_all": "take a stack of each rank while it hangs, and compare the last lines of each rank's log; "
        "then cancel the job",
    },
    judge=judge,
    loses="standstill",
)
