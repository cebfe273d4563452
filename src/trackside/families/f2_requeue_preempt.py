"""Preempted or requeued by the scheduler.

Meaning
-------
A job of higher priority evicted this one, or the scheduler, an operator or the job itself requeued it. It is an
event in the run's history even if the job completed later.

What it looks like
------------------
PREEMPTED or REQUEUED in the accounting, several rows under one id, Restarts above zero, "DUE TO PREEMPTION" or
"DUE TO JOB REQUEUE" in the output, SIGTERM to all tasks and the launcher's teardown traceback after it.

Not this family when
--------------------
- A user or an operator canceled the job.
- The launcher restarted its workers within one attempt.
- A node failed and the job was requeued for that: the node is the cause.

Impact
------
Low if the job ran again and completed: the work since the last checkpoint. Otherwise the run is lost until it
is resubmitted.

Do next
-------
If the job ran again and continued from its last checkpoint: nothing. If the next attempt started over: find out why
it loaded no checkpoint. If much work was repeated: save more often, or on SIGTERM. If it did not run again: use
--requeue, or a partition without preemption.

What it cannot decide
---------------------
Which job took the nodes. Who or what requeued the job, unless its own output or a preemption shows it.

References
----------
- [Slurm: preemption](https://slurm.schedmd.com/preempt.html)
- [Slurm: sbatch --requeue](https://slurm.schedmd.com/sbatch.html#OPT_requeue)
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.cost.earlier_attempts import Continuation, EarlierAttempts
from trackside.facts.fact import Maybe
from trackside.facts.logs.ending import Ending
from trackside.facts.training.resume import Resume
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Run
from trackside.remedies import RESUBMIT_REQUEUABLE


@dataclass(frozen=True)
class Limits:
    """When repeated work is worth a change."""

    max_repeated_s: float = 1800.0
    """Seconds of an interrupted attempt that may be repeated without advice to save more often: saves every half hour
    are common."""


PREEMPTED = Sentence("preempted by the scheduler")
PREEMPTED_RERUN = Sentence("preempted by the scheduler; the job ran again and completed")
PREEMPTED_CONTINUED = Sentence(
    "preempted by the scheduler; attempt {attempt} continued from the checkpoint at step {loaded} and completed"
)
PREEMPTED_STARTED_OVER = Sentence(
    "preempted by the scheduler; attempt {attempt} started over at step {first} and completed"
)
REQUEUED = Sentence("the job was requeued")
REQUEUED_AFTER_PROLOG = Sentence("the prolog failed on the job's node, and the job was requeued")
PROLOG_LINE = Sentence("slurmctld's log: {line}")
PROLOG_CODE = Sentence("an attempt ended with exit code {code}, Slurm's mark for a failed prolog")
PROLOG_AT_FAULT = Sentence("the node's prolog failed before the job began; the job is not at fault")
CHECK_PROLOG = Sentence("check the prolog and slurmd's log on {node}, and repair them before the node gets another job")
CHECK_ITS_PROLOG = Sentence("check the node's prolog and slurmd's log, and repair them before it gets another job")
REQUEUED_CONTINUED = Sentence(
    "the job was requeued; attempt {attempt} continued from the checkpoint at step {loaded} and completed"
)
REQUEUED_STARTED_OVER = Sentence("the job was requeued; attempt {attempt} started over at step {first} and completed")
REQUEUED_ITSELF = Sentence("the job requeued itself")
REQUEUED_ITSELF_CONTINUED = Sentence(
    "the job requeued itself; attempt {attempt} continued from the checkpoint at step {loaded} and completed"
)
REQUEUED_ITSELF_STARTED_OVER = Sentence(
    "the job requeued itself; attempt {attempt} started over at step {first} and completed"
)
ATTEMPT_STATE = Sentence("the scheduler recorded {state} for an attempt")
SCHEDULER_NOTICE = Sentence("the scheduler's notice: {line}")
CONTROLLER_STATE = Sentence("the controller logged the job as {state}")
CONTINUED = Sentence(
    "attempt {attempt} continued from the checkpoint at step {loaded}; the last logged step of attempt {before} is "
    "{last}"
)
CONTINUED_FROM = Sentence("attempt {attempt} continued from the checkpoint at step {loaded}")
CONTINUED_AFTER = Sentence(
    "attempt {attempt} continued from the checkpoint at step {loaded}; the last logged step of attempt {before} is "
    "{last}, and {repeated} of its work were repeated"
)
CONTINUED_UNSEEN = Sentence(
    "the first logged step of attempt {attempt} is {first}; the last one of attempt {before} is {last}"
)
STARTED_OVER = Sentence(
    "attempt {attempt} started over: its first logged step is {first}; the last one of attempt {before} is {last}"
)
NOTHING_LOADED = Sentence("the log of attempt {attempt} says that nothing was loaded: {line}")
RESTARTS = Sentence("restarts of the job: {restarts}")
REQUESTED_BY_APPLICATION = Sentence("the application requested the requeue itself: {line}")
LAST_ATTEMPT = Sentence("the last attempt is recorded as {state}")
NEXT_ATTEMPT_COMPLETED = Sentence("the scheduler ended an attempt; the last one completed")
SCHEDULER_ENDED_RUN = Sentence("the scheduler ended the run; the job is not at fault")
SCHEDULER_ENDED_ATTEMPT = Sentence("the scheduler ended an attempt of the job; the job is not at fault")
OWN_REQUEUE_WORKED = Sentence("the application's own requeue worked as intended")
REQUESTER_UNKNOWN = Sentence("who or what requeued it: its own script, a person or a rule of the cluster")
REQUEUED_BY_UNKNOWN = Sentence("the job was requeued; nothing in the inputs shows a fault of the job")
OTHER_JOB_UNKNOWN = Sentence("which job took the nodes")
NOTHING_TO_DO = Sentence("nothing to do: attempt {attempt} continued from the checkpoint at step {loaded}")
NOTHING_TO_DO_AFTER = Sentence(
    "nothing to do: attempt {attempt} continued from the checkpoint at step {loaded}; {repeated} of attempt {before} "
    "were repeated"
)
NOTHING_TO_DEBUG = Sentence(
    "nothing to debug if the job continued from its last checkpoint; no line that shows it was recognized"
)
SAVE_MORE_OFTEN = Sentence(
    "save checkpoints more often, or when the scheduler's SIGTERM comes: {repeated} of attempt {before} were repeated"
)
FIND_WHY = Sentence("find out why attempt {attempt} loaded no checkpoint")
FIND_WHY_BY_LINE = Sentence("find out why attempt {attempt} loaded no checkpoint; its log says {line}")
RESUBMIT = Sentence(
    "resubmit the job with the same options, from the last checkpoint if there is one, and allow Slurm to requeue it"
)
RESUBMIT_TO_OTHER = Sentence("resubmit the job with the same options, from the last checkpoint if there is one")
SEE_QUEUE = Sentence("see when the job starts again; then see in its log that it continues from the last checkpoint")
SHOW_QUEUE = ShellCommand("squeue --start -j {job}")
SEE_CONTINUES = Sentence("the job runs again: see in its log that it continued from the last checkpoint")
FIND_OTHER_JOB = Sentence("see which job took the nodes, if that matters")
SHOW_OTHER_JOBS = ShellCommand("{sacct} -a -X -N {all_nodes} -S {since} -E {until} --format=JobID,User,Partition,Start")
AFTER_S = 300.0
"""Seconds after the preemption in which the job that took the nodes is looked for."""
MAX_NODE_CHARS = 150
"""A longer list of nodes is not put into a command."""
PROLOG_SIGNAL = 54
"""Slurm's ExitCode 0:54."""
PROLOG = re.compile(r"\bprolog\b.{0,20}fail", re.IGNORECASE)
"""Slurm's words for a failed prolog."""
SLURM_NOTICE = re.compile(r"slurm|\*\*\* (?:JOB|STEP) ", re.IGNORECASE)
WAITING = ("REQUEUED", "PENDING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
ONE_ATTEMPT = Sentence("one attempt was recorded ({state}), with no requeue or preemption")


def judge(
    ending: Ending, earlier: Maybe[EarlierAttempts], resume: Maybe[Resume], run: Run, limits: Limits
) -> Finding | Missing:
    """Judge by the attempts and the notices, else by the controller's log; name where the last attempt continued, and
    how it ended."""
    if ending.missing_end is not None:
        return ending.missing_end
    jobs, state = ending.jobs, ending.state
    attempts = [row for row in jobs.records if row.get("state") in ("PREEMPTED", "REQUEUED", "SPECIAL_EXIT")]
    notices = [row for row in ending.notices.events if row.get("reason") in ("preemption", "requeue")]
    shows = [ATTEMPT_STATE(state=jobs.value(row, "state")) for row in attempts[:1]]
    shows += [SCHEDULER_NOTICE(line=ending.notices.value(row, "text")) for row in notices[:1]]
    if not shows:
        changes = [row for row in ending.changes.events if row.get("state") in ("requeued", "preempted")]
        shows += [CONTROLLER_STATE(state=ending.changes.value(row, "state")) for row in changes[:1]]
    continuation = None if isinstance(earlier, Missing) else earlier.continuation
    missing = None
    if shows and continuation is not None:
        missing = None if isinstance(resume, Missing) else resume.missing_between(*continuation.between)
        shows += _continuation_claims(continuation, missing)
    again = [row for row in jobs.records if isinstance(row.get("restarts"), int) and row.get("restarts")]
    if continuation is None:  # else both attempts are named
        shows += [RESTARTS(restarts=jobs.value(row, "restarts")) for row in again[-1:]]
    # The application's own request counts only if the requeue happened.
    if shows or state is None or state.value in ("REQUEUED", "PENDING"):
        shows += [
            REQUESTED_BY_APPLICATION(line=ending.requests.value(row, "text")) for row in ending.requests.events[-1:]
        ]
    if not shows and state is not None:
        return absent(ONE_ATTEMPT(state=state))
    if not shows:
        return Missing("no scheduler record of the job was given") if ending.own_end is None else absent(ending.own_end)
    over = state is not None and state.value == "COMPLETED"
    if state is not None and (over or ending.job not in attempts):
        shows.append(LAST_ATTEMPT(state=state))
    preempted = any(row.get("state") == "PREEMPTED" for row in attempts)
    preempted |= any(row.get("reason") == "preemption" for row in notices)
    times = [*(row.get("end") for row in attempts), *(row.time for row in notices)]
    since = min((float(time) for time in times if isinstance(time, (int, float))), default=None)
    actions = _actions(ending, over, continuation, missing, limits)
    if not preempted and (prolog := _prolog(ending)) is not None:
        claim, node = prolog
        repair = action(CHECK_ITS_PROLOG) if node is None else action(CHECK_PROLOG, node=node)
        return present(
            Certainty.ESTABLISHED,
            "infrastructure",
            [claim, *shows],
            headline=REQUEUED_AFTER_PROLOG(),
            implies=[PROLOG_AT_FAULT()],
            actions=[repair, *([] if over or ending.running else actions)],
            since=since,
            at=notices[0].at if notices else None,
            nodes=() if node is None else (str(node.value),),
            variant="requeued",
        )
    is_rule = preempted or not _is_slurm(ending)
    return present(
        Certainty.ESTABLISHED if attempts or notices else Certainty.SUPPORTED,
        "scheduler" if is_rule else "job" if ending.requests else "unknown",
        shows,
        headline=_headline(preempted, bool(ending.requests), over, continuation),
        implies=[
            *([] if is_rule or ending.requests else [REQUEUED_BY_UNKNOWN()]),
            *([NEXT_ATTEMPT_COMPLETED()] if over and is_rule else []),
            *([] if over or not is_rule else [SCHEDULER_ENDED_ATTEMPT() if ending.running else SCHEDULER_ENDED_RUN()]),
            *([OWN_REQUEUE_WORKED()] if ending.requests and not preempted else []),
        ],
        cannot_decide=[
            *([OTHER_JOB_UNKNOWN()] if preempted and _is_slurm(ending) else []),
            *([] if is_rule or ending.requests else [REQUESTER_UNKNOWN()]),
        ],
        actions=[*actions, *(_find_other_job(ending, since, run) if preempted else ())],
        since=since,
        at=notices[0].at if notices else None,
        variant="preempted" if preempted else "requeued",
    )


def _prolog(ending: Ending) -> tuple[Claim, Value | None] | None:
    """The claim that an attempt ended because the prolog failed on its node, and the node if it is the only one; None
    if nothing shows it."""
    jobs, notices = ending.jobs, ending.notices
    row = next((row for row in jobs.records if row.get("signal") == PROLOG_SIGNAL), None)
    line = next((line for line in notices.events if PROLOG.search(line.text)), None)
    nodes = () if row is None else row.many("nodes")
    node = None if row is None or len(nodes) != 1 else derived(nodes[0], jobs.value(row, "nodes"))
    if line is not None:
        return PROLOG_LINE(line=notices.value(line, "text")), node
    if row is None:
        return None
    code = derived(f"{row.get('exit_code') or 0}:{PROLOG_SIGNAL}", jobs.value(row, "signal"))
    return PROLOG_CODE(code=code), node


def _continuation_claims(continuation: Continuation, missing: Value | None) -> list[Claim]:
    """Where the last attempt continued, or that it started over."""
    values = {"attempt": continuation.attempt, "before": continuation.before, "last": continuation.last}
    if continuation.started_over:
        claims = [STARTED_OVER(first=continuation.first, **values)]
        attempt = derived(continuation.attempt.value, missing) if missing else continuation.attempt
        return claims if missing is None else [*claims, NOTHING_LOADED(attempt=attempt, line=missing)]
    if continuation.loaded is None:
        return [CONTINUED_UNSEEN(first=continuation.first, **values)]
    if continuation.repeated is None and continuation.last.number <= continuation.loaded.number:
        # steps that were repeated may be missing from the earlier attempt's
        attempt = derived(continuation.attempt.value, continuation.loaded)
        return [CONTINUED_FROM(attempt=attempt, loaded=continuation.loaded)]
    if continuation.repeated is None:
        return [CONTINUED(loaded=continuation.loaded, **values)]
    return [CONTINUED_AFTER(loaded=continuation.loaded, repeated=continuation.repeated, **values)]


def _headline(preempted: bool, requested: bool, over: bool, continuation: Continuation | None) -> Claim:
    """What happened, and where the last attempt continued if it completed."""
    interrupted, continued, started_over = (
        (PREEMPTED, PREEMPTED_CONTINUED, PREEMPTED_STARTED_OVER)
        if preempted
        else (REQUEUED_ITSELF, REQUEUED_ITSELF_CONTINUED, REQUEUED_ITSELF_STARTED_OVER)
        if requested
        else (REQUEUED, REQUEUED_CONTINUED, REQUEUED_STARTED_OVER)
    )
    if over and continuation is not None and continuation.started_over:
        return started_over(attempt=continuation.attempt, first=continuation.first)
    if over and continuation is not None and continuation.loaded is not None:
        return continued(attempt=continuation.attempt, loaded=continuation.loaded)
    return PREEMPTED_RERUN() if preempted and over else interrupted()


def _actions(
    ending: Ending, over: bool, continuation: Continuation | None, missing: Value | None, limits: Limits
) -> list[Action]:
    """What to do about the interruption and its repeated work."""
    state = None if ending.state is None else ending.state.value
    goes_on = over or ending.running
    if goes_on and continuation is not None and continuation.started_over:
        attempt = continuation.attempt
        if missing is None:
            return [action(FIND_WHY, attempt=attempt)]
        return [action(FIND_WHY_BY_LINE, attempt=attempt, line=missing)]
    if goes_on and continuation is not None and continuation.loaded is not None:
        resumed = {"attempt": continuation.attempt, "loaded": continuation.loaded}
        if continuation.repeated is None:
            return [action(NOTHING_TO_DO, **resumed)]
        repeated = {"repeated": continuation.repeated, "before": continuation.before}
        if continuation.repeated.number > limits.max_repeated_s:
            return [action(SAVE_MORE_OFTEN, **repeated)]
        return [action(NOTHING_TO_DO_AFTER, **resumed, **repeated)]
    if goes_on:
        return [action(NOTHING_TO_DEBUG if over else SEE_CONTINUES)]
    if state in WAITING:
        return [action(SEE_QUEUE, SHOW_QUEUE)]
    return [action(RESUBMIT, *RESUBMIT_REQUEUABLE) if _is_slurm(ending) else action(RESUBMIT_TO_OTHER)]


def _is_slurm(ending: Ending) -> bool:
    """Whether Slurm ran the job: other schedulers and clouds print notices, too."""
    return bool(ending.jobs or ending.changes) or any(
        map(SLURM_NOTICE.search, (row.text for row in ending.notices.events))
    )


def _find_other_job(ending: Ending, since: float | None, run: Run) -> list[Action]:
    """How to see which job took the nodes; nothing if Slurm's records, the nodes or the time are not known."""
    nodes = ",".join(run.nodes)
    if not ending.jobs or since is None or not nodes or len(nodes) > MAX_NODE_CHARS:
        return []
    source = ending.jobs.value(ending.jobs.records[0], "state")
    times = (dt.datetime.fromtimestamp(since + shift, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S") for shift in (0.0, AFTER_S))
    names = {
        "sacct": "TZ=UTC sacct" if run.has_time_zone else "sacct",
        "all_nodes": shlex.quote(nodes),
        **dict(zip(("since", "until"), times, strict=True)),
    }
    return [action(FIND_OTHER_JOB, SHOW_OTHER_JOBS, **{name: derived(text, source) for name, text in names.items()})]


FAMILY = Family(
    code="F2",
    id="requeue-preempt",
    title="Preempted or requeued by the scheduler",
    example=("preempted", "timeline"),
    judge=judge,
    cost_kind="repeated",
    limits=Limits(),
    explains=("H3", "A2", "H1", "C2"),
    rivals=("F1", "H1"),
    collect=("sacct -D of the job: every attempt, with Restarts",),
)
