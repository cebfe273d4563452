"""Timeout: the run was ended at its time limit.

Meaning
-------
The wall clock ran out. That is how the run ended, not why: it was healthy but slow, or it hung, or it had
finished and did not exit.

What it looks like
------------------
Slurm's TIMEOUT or DEADLINE, "DUE TO TIME LIMIT" in the output, SIGTERM and SIGKILL to all tasks after it. Whether it
was at work then is told by the GPUs' work, else by the times of the training points, else by the bar around them.

Not this when
-------------
A hang or another cause is found: that is named, and this is listed under it. Somebody cancelled the job.

Impact
------
What came after the last checkpoint. With the progress rate known, the time that was missing can be told.

Do next
-------
Healthy but slow: raise the limit, or resume in a second job. Finished without exiting: look at what runs after
the last step (uploads, process-group teardown, loader threads).

What it cannot tell
-------------------
Without progress lines or metrics of its last part, whether the run was working when it was ended. GPUs that are busy
at the power of waiting, and move no data, do not show work.

References
----------
Slurm documentation, time limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.signals import STANDSTILL, STILL_SAYS, stall_of, watched
from trackside.facts.gpu.signals import Limits as Rest
from trackside.facts.logs.ending import ENDING, OWN_END_SAYS, last_job, own_end
from trackside.facts.logs.order import follows
from trackside.facts.logs.silence import LIFE, silence_s, stood_still, unaccounted
from trackside.facts.training.learning import (
    LEARNING,
    step_seconds,
    steps_done,
    steps_left,
    steps_planned,
    training_points,
)
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Run


@dataclass(frozen=True)
class Limits:
    """What counts as silent."""

    quiet_steps: float = 10.0
    """Silence at the end of that many printed intervals is no longer the normal rhythm."""
    least_quiet_s: float = 300.0
    """Evaluations and saves of healthy runs take minutes."""


_SURE = {
    "slow": Certainty.ESTABLISHED,
    "after-end": Certainty.ESTABLISHED,
    "silent": Certainty.SUPPORTED,
    "no-progress": Certainty.POSSIBLE,
    "undecided": Certainty.POSSIBLE,
}
"""That the limit ended it is certain; what the limit ended is only as certain as what was seen of it."""
COLLECT = ("sacct with State, Timelimit and Elapsed", "the last minutes of the output, with time stamps")


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Was it ended by the limit, and what was it doing then: working, silent, or already done."""
    jobs, notices = evidence["jobs"], evidence["notices"]
    last = last_job(jobs)
    state = None if last is None else last.get("state")
    told = [row for row in notices.events if row.get("reason") == "time_limit"]
    if state not in ("TIMEOUT", "DEADLINE") and (not told or state not in (None, "FAILED", "CANCELLED")):
        if last is not None:
            return absent(claim("other_state", state=jobs.value(last, "state")))
        closing = own_end(evidence)
        if closing is not None:
            return absent(closing)
        return unknown(["no scheduler record of the job was given"], COLLECT)
    shows: list[Claim] = []
    if last is not None:
        shows.append(claim("state", state=jobs.value(last, "state")))
        if last.get("time_limit_s") is not None:
            shows.append(claim("limit", limit=jobs.value(last, "time_limit_s", "s")))
    shows += [claim("notice", line=notices.value(row, "text")) for row in told[:1]]
    doing, more, variant = _doing(evidence, run, limits)
    seen = watched(evidence, run)
    worked = seen is not None and stall_of(evidence, run, seen).worked_on in more
    unstamped = variant == "slow" and not worked and silence_s(evidence, run, ("progress",)) is None
    return found(
        Certainty.SUPPORTED if unstamped else _SURE[variant],
        "job",
        shows + more,
        implies=[claim(f"was_{variant.replace('-', '_')}")],
        cannot_decide=[claim("doing")] if doing is None else [],
        actions=[action(f"do_{variant.replace('-', '_')}")],
        since=told[0].time if told else run.end,
        at=told[0].at if told else None,
        variant=variant,
    )


def _doing(evidence: Evidence, run: Run, limits: Limits) -> tuple[Value | None, list[Claim], str]:
    """What the run was doing at its end: a witness, the claims, and the variant."""
    progress, ends = evidence["progress"], evidence["ends"]
    points = training_points(progress)
    for row in ends.events[-1:]:
        if sum(follows(point, row) is True for point in points) <= 1:  # a closing summary may come after it
            line = ends.value(row, "text")
            return line, [claim("finished", line=line)], "after-end"
    gpus = _gpus(evidence, run)
    if gpus is not None and not points:
        return next(iter(gpus[1][0].values.values())), gpus[1], gpus[0]
    if not points:
        none = [claim("no_progress", count=progress.reduce("count"))] if evidence.has("progress") else []
        return None, none, "no-progress"
    done, planned = steps_done(progress, ends), steps_planned(progress, evidence["plans"])
    place = done if done is not None else progress.value(points[-1], "text")
    more = [claim("reached", place=place)]
    stamped = points[-1].time is not None
    quiet, each = silence_s(evidence, run) if stamped else None, step_seconds(points, progress)
    if gpus is not None:
        more += gpus[1]
    if gpus is not None and gpus[0] == "silent":
        return place, more, "silent"
    if gpus is None and quiet is not None and _too_quiet(quiet, points, limits):
        return place, [*more, claim("silent", seconds=quiet)], "silent"
    idle = stood_still(evidence, run, Rest()) if gpus is None and not stamped else None
    if idle is not None:
        return place, [*more, claim("unaccounted", seconds=idle[0])], "silent"
    lost = unaccounted(evidence, Rest()) if gpus is None else None
    if lost is not None:
        return None, [*more, claim("unaccounted", seconds=lost)], "undecided"
    left = steps_left(done, planned)
    if left is not None and each is not None:
        seconds = left.number * each.number
        more.append(claim("projected", left=left, seconds=derived(round(seconds, 1), left, each, unit="s")))
    return place, more, "slow"


def _gpus(evidence: Evidence, run: Run) -> tuple[str, list[Claim]] | None:
    """Whether the GPUs worked up to the limit or stood still before it; None where they don't tell."""
    seen = watched(evidence, run)
    if seen is None:
        return None
    from trackside.facts.gpu.signals import all_along, stall_of, unstarted

    still = stall_of(evidence, run, seen).at_end()
    if still is not None and still.sure:
        return "silent", list(still.claims)
    idle = all_along(evidence, run, seen)
    if idle is not None:
        return "silent", list(idle.claims)
    stuck = unstarted(evidence, run, seen)
    if stuck is not None:
        return "silent", list(stuck.claims)
    working = stall_of(evidence, run, seen).worked_on
    return ("slow", [working]) if working is not None and still is None else None


def _too_quiet(quiet: Value, points: Sequence[Event], limits: Limits) -> bool:
    """Whether the silence at the end is far longer than the rhythm of the printed points."""
    times = [row.time for row in points if row.time is not None]
    gaps = sorted(after - before for before, after in pairwise(times) if after > before)
    rhythm = gaps[len(gaps) // 2] if gaps else 0.0
    return quiet.number > max(limits.least_quiet_s, limits.quiet_steps * rhythm)


FAMILY = Family(
    code="F3",
    id="timeout",
    title="Timeout: ended at its time limit",
    pictured=("timeout-healthy", "timeline"),
    asks={**LIFE, **LEARNING, **ENDING, **STANDSTILL},
    needs=(("jobs", "notices"),),
    says={
        **STILL_SAYS,
        "state": "the scheduler recorded {state}",
        "limit": "the limit was {limit}",
        "notice": "the notice reads: {line}",
        "finished": "the job had said that it was done: {line}",
        "no_progress": "training points printed: {count}",
        "reached": "it had done {place}",
        "silent": "nothing was printed for {seconds} before the end",
        "unaccounted": "the steps done, at their pace, leave {seconds} of the run unaccounted for",
        "projected": "{left} were left, about {seconds} more at the rate it had",
        "was_after_end": "training was over; what runs after it did not come to an end in time",
        "was_no_progress": "the time limit ended it, and nothing printed tells what it was doing",
        "was_undecided": "the time limit ended it; whether it still trained by then or stood still isn't told",
        "was_silent": "it had stopped printing long before the limit: a hang is likely behind the timeout",
        "was_slow": "it was still training: healthy but slow, and needed more time",
        "doing": "whether the run was working or stuck",
        "do_after_end": "look at what runs after the last step: uploads, process-group teardown, loader threads",
        "do_no_progress": "rerun with progress printed and, if it stays silent, take stacks of the ranks",
        "do_undecided": "rerun with times in the log or GPU metrics, which tell a slow run from one that hangs",
        "do_silent": "rerun with the collective watchdog on, and take stacks while it is silent",
        "do_slow": "raise the limit or resume in a second job from the last checkpoint",
        "other_state": "the scheduler recorded {state}",
        **OWN_END_SAYS,
    },
    judge=judge,
    limits=Limits(),
    explains=("H3", "A2", "H1"),
    rivals=("C1", "C2", "C3"),
    collect=COLLECT,
)
