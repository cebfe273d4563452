"""Signal kill: a process died of a fatal signal without a traceback of its own.

Meaning
-------
A training process is ended by the kernel or by a fault in native code before it can print a Python stack. Most
often it is SIGKILL because host memory ran out (the machine's, or the job's cgroup); SIGSEGV, SIGABRT, SIGBUS,
SIGFPE and SIGILL come from native libraries, drivers or a shared memory that is too small.

What it looks like
------------------
A launcher's summary with a negative exit code (exitcode -9), srun's "Killed" or "Segmentation fault", a shell's
exit code above its signal base, faulthandler's "Fatal Python error", Slurm's OUT_OF_MEMORY, slurmstepd's
"oom_kill event", the kernel's "oom-kill", Ray's memory monitor. The only exceptions are launchers' wrappers, and
peers that saw a connection close. In metrics a node's kernel counts one more kill for want of memory, or its available
memory runs down to nothing, or what the job had asked for is used up; at start-up the GPUs are still untouched.

Not this when
-------------
SIGTERM, or SIGKILL that the launcher sent to the ranks that were left; the scheduler ended the run (cancel, time
limit, preemption, node failure); the rank has a traceback of its own; SIGABRT is NCCL's watchdog giving up, or
the way a CUDA error ends a process. Training points after it show that a restart recovered from it. GPU memory that
ran out is another family.

Impact
------
The run ends, and the log does not say why.

Do next
-------
For SIGKILL look at host memory: fewer DataLoader workers, smaller prefetch, no copy of the data set a worker, a
larger --mem. For native crashes get a core file or faulthandler's stack, and check the native extension.

What it cannot tell
-------------------
Who sent a SIGKILL, where neither the kernel log nor the scheduler nor a count of the node's kernel names the OOM
killer. Kills that are counted name no process: on a shared node they may be another job's.

References
----------
PyTorch elastic multiprocessing; Slurm, exit codes; Linux, memory cgroup documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackside.catalog.natural import whole_number
from trackside.catalog.signals import signal_name
from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.signals import ACTIVITY
from trackside.facts.gpu.startup import LAUNCHED, UNTOUCHED, untouched, worked_s
from trackside.facts.gpus import of_ranks
from trackside.facts.hardware.host_memory import HOST_SAYS, Host, host, unharmed
from trackside.facts.hardware.memory import GPU_MEMORY, HOST_MEMORY
from trackside.facts.logs.deaths import (
    DEATHS,
    KILL,
    Death,
    deaths,
    host_oom,
    lost_workers,
    recorded_signal,
    survived,
)
from trackside.facts.logs.ending import CUT_SHORT, LIVE_STATES, abnormal_end, completed, disposition
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.logs.order import follows, points_before
from trackside.facts.logs.restarts import RESTART_SAYS
from trackside.facts.ranks import ranks_of
from trackside.facts.training.learning import training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Record, Run

COLLECT = (
    "the launcher's whole output with its failure summary",
    "sacct -j <id> -P --format=JobID,State,ExitCode,DerivedExitCode,MaxRSS,ReqMem",
    "dmesg -T of the job's nodes (oom-kill lines)",
    "node_vmstat_oom_kill and node_memory_MemAvailable_bytes of node_exporter over the run",
)
FAULTS = (4, 7, 8, 11)
"""Signals of a faulting instruction: native code."""
TRAINING_S = 120.0
"""Of GPU work without a readable training point: loading and a first compilation take less."""
STOPPED_S = 600.0
"""Between the last training point and a kill that stopped training: points are printed every few minutes at least."""


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """A fatal signal that nothing else accounts for; else the OOM killer's word; else the scheduler's record."""
    points = training_points(evidence["progress"])
    told = deaths(evidence, points)
    memory = host_oom(evidence, run, points)
    if memory is not None and (well := completed(evidence)) is not None:
        return _recovered(memory, well)
    if told:
        return _killed(evidence, run, told, memory, points)
    if memory is not None:
        return _out_of_memory(evidence, run, memory, points)
    if (counted := _counted(evidence, run, points)) is not None:
        return counted
    lost = lost_workers(evidence, points)
    if lost:
        return _lost(evidence, run, *lost[0], points)
    recorded = recorded_signal(evidence)
    if recorded is not None and not unhandled(evidence["exceptions"].events, points):
        return _from_record(recorded, points, evidence, run)
    if (lived := survived(evidence, points)) is not None:
        return _survived(run, *lived)
    if not evidence.has("exceptions") and completed(evidence) is None:
        state = disposition(evidence)
        if state is None or state.value in ("FAILED", "RUNNING"):
            return unknown(["no job log was given"], COLLECT)
    return _ruled_out(evidence, run)


def _killed(
    evidence: Evidence,
    run: Run,
    told: Sequence[Death],
    memory: tuple[Value, Event | Record] | None,
    points: Sequence[Event],
) -> Finding:
    main = told[0]
    same = [death for death in told if death.number == main.number]
    ranks = ranks_of([death.row for death in same], evidence["launchers"])
    name = signal_name(main.number)
    signal = derived(name, main.line)
    who = "worker_died" if main.source == "workers" else "died"  # its parent lives, and tells of it
    shows: list[Claim] = [claim(who, signal=signal, line=main.line)]
    if ranks:
        lines = [death.line for death in same if death.rank is not None]
        shows = [claim(f"{who}_on", signal=signal, line=main.line, ranks=derived(ranks, *lines))]
    shows += [claim("also", line=death.line) for death in _others(told, main)]
    if memory is not None and main.number == KILL:
        shows.append(claim("oom", line=memory[0]))
    room = _room(evidence, run, main.row, ranks) if main.number == KILL else Host()
    shows += [*room.claims, *_around(evidence, run, main.row, points)]
    strong = len({death.source for death in told}) > 1 or main.source in ("launchers", "workers", "fatals")
    bad = abnormal_end(evidence)
    sure = strong or memory is not None or (bad is not None and bad.cites[0].plane != main.line.cites[0].plane)
    certainty = Certainty.ESTABLISHED if sure else Certainty.SUPPORTED
    finding = _found(main.number, shows, points, main.row, memory is not None, certainty, ranks, room)
    finding = replace(finding, exception=_worker_exception(evidence, told), nodes=finding.nodes or _homes(run, ranks))
    over = [row for row in evidence["ends"].events if row.get("status") != "aborted" and follows(main.row, row)]
    if not over:
        return finding
    line = evidence["ends"].value(over[-1], "text")
    return replace(finding, shows=(*finding.shows, claim("was_over", line=line)))


def _worker_exception(evidence: Evidence, told: Sequence[Death]) -> tuple[str, str] | None:
    """What the main process raised when its DataLoader worker was killed."""
    for row in evidence["exceptions"].events:
        if row.get("about") == "dataloader" and any(death.source == "workers" for death in told):
            return str(row.get("type")), str(row.get("message") or "")
    return None


def _others(told: Sequence[Death], main: Death) -> list[Death]:
    """One more witness from each other source."""
    seen, more = {main.source}, []
    for death in told:
        if death.source not in seen and death.number == main.number:
            seen.add(death.source)
            more.append(death)
    return more


def _room(evidence: Evidence, run: Run, row: Event | None, ranks: Sequence[int] = ()) -> Host:
    """The host memory of the node of a death, or of all nodes, at that time."""
    nodes = [row.node] if row is not None and row.node is not None and row.node in run.nodes else _homes(run, ranks)
    return host(evidence, run, nodes, row.time if row is not None and row.time else run.end)


def _homes(run: Run, ranks: Sequence[int]) -> tuple[str, ...]:
    """The nodes that these ranks ran on, where their GPUs tell."""
    return tuple(dict.fromkeys(gpu.rpartition(":")[0] for gpu in of_ranks(run, ranks)))


def _out_of_memory(
    evidence: Evidence, run: Run, memory: tuple[Value, Event | Record], points: Sequence[Event]
) -> Finding:
    line, row = memory
    event = row if isinstance(row, Event) else None
    room = _room(evidence, run, event)
    shows = [claim("oom", line=line), *room.claims, *_around(evidence, run, event, points)]
    ranks = ranks_of([event], evidence["launchers"]) if event is not None else ()
    return _found(KILL, shows, points, event, True, Certainty.ESTABLISHED, ranks, room)


def _counted(evidence: Evidence, run: Run, points: Sequence[Event]) -> Finding | None:
    """Without a word of a death: the kernel's count of kills, or memory that was gone, as the run failed."""
    if unhandled(evidence["exceptions"].events, points) or evidence["memory"].events:
        return None
    well, bad = completed(evidence), abnormal_end(evidence)
    ended = well is not None or _cut_short(evidence)
    room = host(evidence, run, [], None if ended else run.end)
    if not room.kills and (ended or bad is None or not room.short):
        return None
    stopped = bool(room.kills) and _stopped(points, room.kills[0].until, run)
    if ended and not (bad is not None and stopped):
        other = [claim("ended_well", state=well)] if well is not None else [claim("state", state=bad)] if bad else []
        aside = _found(KILL, [*room.claims, *other], points, None, True, Certainty.POSSIBLE, (), room)
        return replace(aside, latent=True, implies=(claim("implies_helper"),))
    shows = [*room.claims, *_around(evidence, run, None, points)]
    both = room.kills and (room.short or room.ample)
    certainty = Certainty.POSSIBLE if not room.kills else Certainty.ESTABLISHED if both and bad else Certainty.SUPPORTED
    return _found(KILL, shows, points, None, True, certainty, (), room)


def _stopped(points: Sequence[Event], moment: float, run: Run) -> bool:
    """Whether training went on until about a moment, and not after it."""
    times = [point.time for point in points if point.time is not None]
    return bool(times) and run.end is not None and abs(max(times) - moment) <= STOPPED_S < run.end - max(times)


def _cut_short(evidence: Evidence) -> bool:
    """Whether somebody else ended the run."""
    state = disposition(evidence)
    return state is not None and (state.value in CUT_SHORT or state.value in LIVE_STATES)


def _from_record(recorded: tuple[int, Value, bool], points: Sequence[Event], evidence: Evidence, run: Run) -> Finding:
    number, place, ambiguous = recorded
    shows = [claim("recorded_as", code=place, signal=derived(signal_name(number), place))]
    if not ambiguous:
        shows = [claim("recorded", code=place, signal=derived(signal_name(number), place))]
    room = _room(evidence, run, None) if number == KILL else Host()
    shows += [*room.claims, *_around(evidence, run, None, points)]
    certainty = Certainty.POSSIBLE if ambiguous else Certainty.SUPPORTED
    return _found(number, shows, points, None, False, certainty, (), room)


def _lost(evidence: Evidence, run: Run, row: Event, line: Value, points: Sequence[Event]) -> Finding:
    """A worker that went without a word: its signal is not told."""
    return found(
        Certainty.SUPPORTED,
        "job",
        [claim("lost", line=line), *_around(evidence, run, row, points)],
        implies=[claim("implies_kill")],
        cannot_decide=[claim("which_signal")],
        actions=[action("less_memory")],
        since=row.time,
        at=row.at,
        variant="training" if points_before(points, row) else "startup",
        nodes=() if row.node is None else (row.node,),
    )


def _found(
    number: int,
    shows: list[Claim],
    points: Sequence[Event],
    row: Event | None,
    out_of_memory: bool,
    certainty: Certainty,
    ranks: tuple[int, ...],
    room: Host,
) -> Finding:
    by_kernel = number == KILL and (out_of_memory or bool(room.kills) or room.short or room.scope is not None)
    before = points_before(points, row)
    kind = "kill" if number == KILL else "fault" if number in FAULTS else "abort"
    if by_kernel:
        kind = "cgroup_oom" if room.own_limit else "host_oom"
    elif number == KILL and room.limit is not None:
        kind = "near_limit"
    elif number == KILL and room.ample:
        kind = "other_kill"
    unsure = [] if by_kernel else [claim("who_else" if room.ample else "who" if number == KILL else "which_library")]
    return found(
        certainty,
        "job",
        shows,
        implies=[claim(f"implies_{kind}")],
        cannot_decide=unsure,
        actions=[action("less_memory" if number == KILL else "native")],
        since=row.time if row is not None else min((change.since for change in room.kills), default=None),
        at=None if row is None else row.at,
        variant="training" if before or any(each.key == "worked" for each in shows) else "startup",
        ranks=ranks,
        nodes=room.nodes if row is None or row.node is None else (row.node,),
        signal=(signal_name(number), number),
    )


def _around(evidence: Evidence, run: Run, row: Event | None, points: Sequence[Event]) -> list[Claim]:
    """The phase, the absence of a traceback, and how the run ended."""
    shows: list[Claim] = []
    before = points_before(points, row)
    if before:
        shows.append(claim("in_training", point=evidence["progress"].value(before[-1], "text")))
    elif (worked := _worked(evidence, run)) is not None:
        shows.append(claim("worked", seconds=worked))
    elif evidence.has("progress"):
        shows.append(claim("at_startup", count=evidence["progress"].reduce("count")))
    shows += [] if before else untouched(evidence, run)
    state = disposition(evidence)
    if state is not None:
        shows.append(claim("state", state=state))
    return shows


def _worked(evidence: Evidence, run: Run) -> Value | None:
    """For how long the GPUs had worked, where it was long enough to be training."""
    worked = worked_s(evidence, run)
    return worked if worked is not None and worked.number >= TRAINING_S else None


def _recovered(memory: tuple[Value, Event | Record], well: Value) -> Finding:
    line, row = memory
    return found(
        Certainty.SUPPORTED,
        "job",
        [claim("oom", line=line), claim("ended_well", state=well)],
        implies=[claim("implies_helper")],
        actions=[action("less_memory")],
        since=row.time if isinstance(row, Event) else None,
        at=row.at,
        latent=True,
    )


def _survived(run: Run, death: Death, told: list[Claim]) -> Finding:
    """A crash after which the launcher started the workers again: no cause, but it may come again."""
    signal = derived(signal_name(death.number), death.line)
    rank = death.rank
    if rank is None and len(run.nodes) == 1 and death.row.get("source") == "torchrun":
        rank = whole_number(str(death.row.get("task")))  # torchrun counts on its own node
    died = claim("died", signal=signal, line=death.line)
    if rank is not None:
        died = claim("died_on", signal=signal, line=death.line, ranks=derived((rank,), death.line))
    kill = death.number == KILL
    return found(
        Certainty.SUPPORTED,
        "job",
        [died, *told],
        implies=[claim("again")],
        cannot_decide=[claim("who" if kill else "which_library")],
        actions=[action("less_memory" if kill else "native")],
        since=death.row.time,
        at=death.row.at,
        ranks=() if rank is None else (rank,),
        signal=(signal_name(death.number), death.number),
        latent=True,
    )


def _ruled_out(evidence: Evidence, run: Run) -> Finding:
    clear = unharmed(evidence, run)
    for name in ("launchers", "exits", "signals", "fatals"):
        frame = evidence[name]
        for row in frame.events:
            if row.get("signal") is not None or name == "fatals":
                return absent(claim("not_its_own", line=frame.value(row, "text")), *clear)
    well = completed(evidence)
    if well is not None:
        return absent(claim("ended_well", state=well), *clear)
    if evidence.has("launchers"):
        return absent(claim("no_signal", count=evidence["launchers"].reduce("count", "signal")), *clear)
    state = disposition(evidence)
    if state is not None:
        return absent(claim("state", state=state), *clear)
    return unknown(["no job log was given"], COLLECT)


FAMILY = Family(
    code="A2",
    id="signal-kill",
    title="Signal kill: a process died without a traceback",
    pictured=("host-oom", "timeline"),
    asks={**DEATHS, **HOST_MEMORY, **GPU_MEMORY, **ACTIVITY, **LAUNCHED},
    needs=(("exceptions", "jobs", "kills", "oom_count"),),
    explains=("C1", "C2", "F3", "H2"),
    rivals=("A1", "B1", "C2", "F1", "H3"),
    collect=COLLECT,
    says={
        **HOST_SAYS,
        **UNTOUCHED,
        **RESTART_SAYS,
        "died": "a process died of {signal}: {line}",
        "died_on": "{ranks} died of {signal}: {line}",
        "worker_died": "a data-loader worker died of {signal}: {line}",
        "worker_died_on": "a data-loader worker of {ranks} died of {signal}: {line}",
        "also": "agreeing with it: {line}",
        "lost": "a worker process died without a traceback: {line}",
        "which_signal": "which signal ended it: its parent saw only that the process was gone",
        "oom": "host memory ran out: {line}",
        "in_training": "training had reached: {point}",
        "worked": "the GPUs had worked for {seconds} by then",
        "at_startup": "the log holds {count:training points} before it: it fell in the start-up",
        "state": "the scheduler recorded {state}",
        "recorded": "the scheduler recorded {code}, which is {signal}",
        "recorded_as": "the scheduler recorded exit code {code}; older releases write {signal} in that way",
        "implies_host_oom": "the job used more host memory than it may; its GPUs and its code path are not at fault",
        "implies_cgroup_oom": "the job passed its own memory limit (its cgroup's) while the node had memory left: its "
        "GPUs and its code path are not at fault",
        "implies_near_limit": "the job was about to pass the memory that it had asked for: most likely that limit "
        "ended it",
        "implies_other_kill": "the node had memory left: the process passed a limit of its own, or somebody killed it",
        "implies_kill": "a SIGKILL without a traceback is most consistent with a kill for host memory: workers that "
        "copy the data set, pinned buffers, or a large model held in host memory",
        "implies_fault": "native code faulted: an extension, a library or a driver, or shared memory that is too small",
        "implies_abort": "native code gave up: a failed check, a corrupted heap or an exception that nobody caught",
        "implies_helper": "a helper process, or another job's, was killed for memory, and the run lived on without it",
        "who": "whether the kernel's OOM killer, a cgroup limit or somebody else sent it: "
        "nothing that was given names the sender",
        "who_else": "who sent it: the node had memory left, so that only a cgroup limit or another process can have "
        "been the sender",
        "which_library": "which library faulted: no core file or native stack was given",
        "less_memory": "lower the host memory in use (fewer DataLoader workers, smaller prefetch, lazy loading) "
        "or ask for more, and rerun",
        "native": "run once with faulthandler and core files on, and check or rebuild the native extension that the "
        "stack names",
        "not_its_own": "the signals that were seen belong to a teardown or to another failure: {line}",
        "no_signal": "workers reported as ended by a signal: {count}",
        "was_over": "training was over before it: {line}",
        "ended_well": "the run ended well: {state}",
    },
    judge=judge,
)
