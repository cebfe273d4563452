"""Stall that resumed: training stood still for a while in mid-run, and then went on.

Meaning
-------
All ranks waited, for a file server, for one rank that was held up, or for something else outside of the training
loop, and it came back before anybody gave up. It costs time and no result. It is always a warning beside the verdict:
what comes back once may stay away the next time, and is then a hang.

What it looks like
------------------
Two training points many times further apart than their steps take, with nothing in between that the loop plans: no
evaluation, no save, no restart. The GPUs do no work meanwhile: most spin in a collective, the one that they wait for is
cold. The kernel of a node says that a file server did not respond, or that a task was blocked. Without times in the log
only the rest of the GPUs tells.

Not this when
-------------
Pauses as long come again and again: evaluations, saves or epochs. An evaluation or a save was printed in the pause and
no file server was silent. The GPUs worked on: the log alone was silent. The run was requeued or its launcher restarted
it. The run never came back: that is a hang.

Impact
------
The time of the stall, times the GPUs held.

Do next
-------
Look at the file server, the kernel log and the rank that is named for that time.

What it cannot tell
-------------------
What the run waited for, where neither a kernel log nor a GPU that stands apart says so.

References
----------
Linux, nfs(5): hard mounts retry for ever; the kernel's hung task detector; the catalogue of failure families, C2.
"""

from __future__ import annotations

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu import rests
from trackside.facts.gpu.signals import NEED, STANDSTILL, watched
from trackside.facts.pace import stalls
from trackside.facts.pace.stalls import STALLS, Limits, Stall
from trackside.facts.training.learning import training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Culprit, Finding, absent, action, claim, found, unknown
from trackside.model import Run

COLLECT = (
    "the job's output with a time stamp on each training point",
    "GPU activity over the run (DCGM fields PROF_GR_ENGINE_ACTIVE and PROF_SM_ACTIVE)",
    "dmesg -T of the job's nodes: file servers that do not respond, tasks that are blocked",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """A pause between training points that nothing planned accounts for and in which the GPUs did not work; else, for
    points without times, a rest of the GPUs."""
    stall = stalls.logged(evidence, run, limits)
    seen = watched(evidence, run)
    if seen is None:
        return _found(evidence, stall, (), (), "stood") if stall is not None else _ruled_out(evidence, run, None)
    if stall is not None:
        rest = rests.during(evidence, run, seen, stall.since, stall.until)
        if rest is not None and rest.worked:
            return absent(claim("worked", seconds=stall.seconds))
        return _found(evidence, stall, *((rest.claims, rest.gpus) if rest is not None else ((), ())), "stood")
    if stalls.unstamped(training_points(evidence["progress"])):
        pause = rests.longest(evidence, run, seen, limits)
        if pause is not None:
            return _found(evidence, pause.stall, pause.shows, pause.gpus, "rested")
    return _ruled_out(evidence, run, rests.most(evidence, run, seen))


def _ruled_out(evidence: Evidence, run: Run, rested: Value | None) -> Finding:
    most = stalls.longest(evidence, run)
    if most is not None:
        return absent(claim("steady", seconds=most))
    if rested is not None:
        return absent(claim("busy", seconds=rested))
    return unknown(["neither training points with times nor GPU activity over the run"], COLLECT)


def _found(evidence: Evidence, stall: Stall, rest: tuple[Claim, ...], gpus: tuple[str, ...], key: str) -> Finding:
    seconds = stall.seconds
    times = {
        name: derived(time, seconds, unit="time") for name, time in (("since", stall.since), ("until", stall.until))
    }
    shows = [claim(key, seconds=seconds, **times)]
    storage = evidence["storage"]
    shows += [claim("storage", line=storage.value(row, "text")) for row in stall.storage[:1]]
    shows += [claim("blocked", line=evidence["tasks"].value(row, "text")) for row in stall.blocked[:1]]
    known = bool(stall.storage)
    culprit: Culprit = "infrastructure" if known else "unknown"
    sure = key == "stood" and (known or bool(rest))
    nodes = dict.fromkeys(row.node for row in (*stall.storage, *stall.blocked) if row.node)
    return found(
        Certainty.ESTABLISHED if sure and known and rest else Certainty.SUPPORTED if sure else Certainty.POSSIBLE,
        culprit,
        [*shows, *rest],
        implies=[claim("survived")],
        cannot_decide=[] if known else [claim("why")],
        actions=[action("ask_storage" if known else "look")],
        since=stall.since,
        until=stall.until,
        variant="storage" if known else None,
        nodes=tuple(nodes),
        gpus=gpus,
        latent=True,
    )


FAMILY = Family(
    code="H5",
    id="stall-resumed",
    title="Stall that resumed: training stood still for a while and went on",
    pictured=("healthy-after-a-storage-stall", "busy-wait"),
    asks={**STANDSTILL, **STALLS},
    needs=(("progress", *NEED),),
    limits=Limits(),
    collect=COLLECT,
    says={
        "stood": "training stood still for {seconds}, from {since} to {until}, and then went on",
        "rested": "the GPUs did no work for {seconds}, from {since} to {until}, and then worked on",
        "storage": "a file server was away meanwhile: {line}",
        "blocked": "the kernel saw a task hang meanwhile: {line}",
        "survived": "the run lost this time and nothing else; the same stall may hang it the next time",
        "why": "what the run waited for",
        "ask_storage": "have the file server and the network to it looked at for that time",
        "look": "look at the log of the rank, the kernel log of its node and the storage for that time",
        "worked": "a pause of {seconds} between training points was work: the GPUs went on",
        "steady": "two training points were {seconds} apart at most, as the run's rhythm, its saves and evaluations "
        "have it",
        "busy": "between two times of work the GPUs rested for {seconds} at most",
    },
    judge=judge,
    loses="pause",
)
