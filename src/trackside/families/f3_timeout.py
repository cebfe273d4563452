"""Time limit reached.

Meaning
-------
The time limit was reached. That is how the run ended, not why: it was healthy but slow, or it hung, or it had
finished and did not exit.

What it looks like
------------------
Slurm's TIMEOUT or DEADLINE, "DUE TO TIME LIMIT" in the output, SIGTERM and SIGKILL to all tasks after it. GPU
activity shows whether it was working then, else the times of the logged steps, else the progress bar.

Not this family when
--------------------
- A hang or another cause is found: then that cause is named, and the time limit is its consequence.
- The job was canceled.

Impact
------
The work after the last checkpoint. If the progress rate is known, so is the missing time.

Do next
-------
Healthy but slow: raise `--time`, or resume in a second job. Finished without exiting: check what runs after the
last step (uploads, process-group teardown, loader threads). Silent: if it happens again, dump the stacks while it
is silent (`srun --jobid=JOB_ID --overlap py-spy dump --pid PID`).

What it cannot decide
---------------------
Without progress lines or metrics of its last minutes: whether the run was still working. GPUs that only spin look
busy, but draw little power and move no data: that does not show work.

References
----------
- [Slurm: sbatch --time](https://slurm.schedmd.com/sbatch.html#OPT_time)
- [Slurm: resource limits](https://slurm.schedmd.com/resource_limits.html)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.cost.allocation import seconds_between, times_by_logs
from trackside.facts.fact import Maybe, or_none
from trackside.facts.gpu.first_step import FirstStepHang
from trackside.facts.gpu.idle import IdleGpus
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.logs.drained_nodes import never_placed
from trackside.facts.logs.ending import RECORDED, Ending
from trackside.facts.logs.order import follows
from trackside.facts.logs.silence import Silence
from trackside.facts.training.evaluations import Evaluations
from trackside.facts.training.last_position import last_position, steps_of_plan
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, absent, action, present
from trackside.model import Run
from trackside.remedies import DUMP_STACKS
from trackside.witness import Witness, witness

HEADLINES = {
    "after_end": Sentence("hit the time limit after training was done"),
    "no_progress": Sentence("hit the time limit; whether the job was working is unknown"),
    "evaluating": Sentence("hit the time limit during an evaluation, at batch {batch:plain} of {batches:plain}"),
    "undecided": Sentence("hit the time limit; whether the job was still training is unknown"),
    "silent": Sentence("hit the time limit after a long silence, probably hung"),
    "slow": Sentence("hit the time limit while still training"),
}
HEADLINES_OF = {
    variant: Sentence(sentence.text.replace("the time limit", "the time limit of {limit}"))
    for variant, sentence in HEADLINES.items()
}
"""Headlines if the limit is known."""
HEADLINES_AFTER = {
    "no_progress": Sentence("hit the time limit after at least {seconds}; whether the job was working is unknown"),
    "evaluating": Sentence(
        "hit the time limit after at least {seconds}, during an evaluation, at batch {batch:plain} of {batches:plain}"
    ),
    "undecided": Sentence("hit the time limit after at least {seconds}; whether the job was still training is unknown"),
    "slow": Sentence("hit the time limit after at least {seconds}, while still training"),
}
"""Headlines if only the log shows how long it ran."""
HIT_LIMIT = Sentence("hit the time limit")
HIT_LIMIT_OF = Sentence("hit the time limit of {limit}")
"""Headline if something else is the cause."""
LOG_SPAN = Sentence("the log's timestamps cover {seconds}: from {first} to {last}")
TIME_LIMIT = Sentence("the limit was {limit}")
SCHEDULER_NOTICE = Sentence("the scheduler's notice: {line}")
REPORTED_DONE = Sentence("the job had reported that it was done: {line}")
NO_STEP_LOGGED = Sentence("no training step was recognized in the log")
EVALUATION_REACHED = Sentence(
    "the evaluation had come to batch {batch:plain} of {batches:plain}; its own estimate of the time left was {left}"
)
REACHED = Sentence("progress at the limit: {place}")
REACHED_OF = Sentence("progress at the limit: {place} of {planned:plain}")
NOTHING_PRINTED = Sentence("the job itself printed no line with a time in the last {seconds} before the limit")
UNACCOUNTED = Sentence("the completed steps, at their pace, do not account for {seconds} of the run")
TIME_MISSING = Sentence("{left} remained: about {seconds} at the run's pace")
MEANINGS = {
    "after_end": Sentence("training was over; what ran after it did not finish in time"),
    "no_progress": Sentence("the time limit ended the run; no line that shows what it was doing was recognized"),
    "evaluating": Sentence("the time limit ended the run; whether its evaluation was still working is unknown"),
    "undecided": Sentence("the time limit ended the run; whether the job was still training or hung is unknown"),
    "silent": Sentence("the run stopped printing long before the limit: it probably hung"),
    "slow": Sentence("the run was still training and needs more time"),
}
UNCLEAR_STATES = ("no_progress", "evaluating", "undecided")
NEVER_STARTED = Sentence("never started: its --deadline could not be met")
DEADLINE_LINE = Sentence("slurmctld's log: {line}")
NOT_STARTED = Sentence("no node was allocated and nothing has run")
LATER_DEADLINE = Sentence("submit it again with a later --deadline or a shorter --time, if the run is still wanted")
WORKING_OR_STUCK = Sentence("whether the run was working or stuck")
NEXT_STEPS = {
    "after_end": Sentence(
        "see in the last lines of the log what still ran after training; if it worked, raise --time; if it had printed "
        "all its results, look at uploads, process-group teardown and loader threads"
    ),
    "no_progress": Sentence("rerun with progress printed, and dump the stacks of its ranks if it stays silent"),
    "evaluating": Sentence(
        "compare the time of a batch with the limit: raise --time, or split the evaluation, if it needs longer; if "
        "not, dump the stacks of its ranks when it falls silent"
    ),
    "undecided": Sentence("rerun with timestamps in the log or GPU metrics, which distinguish slow from hung"),
    "silent": Sentence("if it falls silent again, dump the stacks of its ranks before the limit ends it"),
    "slow": Sentence("raise --time, or resume in a second job from the last checkpoint if there is one"),
}
ADD_STANDARD_OUTPUT = Sentence(
    "give the job's standard output, too: only its error output was given, which does not show how far it came"
)
RAISE_LIMIT_BY = Sentence(
    "raise --time by more than {seconds}, or resume in a second job from the last checkpoint if there is one"
)


@dataclass(frozen=True)
class Limits:
    """When a run counts as silent."""

    quiet_steps: float = 10.0
    """Silence at the end is unusual if it is at least this many printed intervals long."""
    min_quiet_s: float = 300.0
    """Evaluations and saves of healthy runs take minutes."""


def judge(
    run: Run, ending: Ending, silence: Silence, evaluations: Evaluations, trajectory: Maybe[Trajectory],
    stall: Maybe[GpuStall], idle: Maybe[IdleGpus], first_step: Maybe[FirstStepHang], limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """Whether the limit ended it, and what it was doing then: working, silent, or already done.

    That the limit ended it is certain; what it was doing is only as certain as the evidence.
    """
    if ending.missing_end is not None:
        return ending.missing_end
    state, notices = ending.state, ending.limit_notices
    name = None if state is None else state.value
    if name not in ("TIMEOUT", "DEADLINE") and (not notices or name not in (None, "FAILED", "CANCELLED")):
        if state is not None:
            return absent(RECORDED(state=state))
        own_end = ending.own_end
        return absent(own_end) if own_end is not None else Missing("no scheduler record of the job was given")
    if name == "DEADLINE" and never_placed(ending.job, run):
        return _never_started(ending)
    training = or_none(trajectory)
    gpus = next(_by_gpus(or_none(stall), or_none(idle), or_none(first_step)), None)
    state_at_end = next(_states_at_end(ending, silence, evaluations, training, gpus, limits))
    trained = training is not None and training.points and state_at_end.variant != "after_end"
    shows = [*state_at_end.claims]
    if trained and training is not None:
        shows.insert(0 if state_at_end.variant == "slow" else len(shows), _progress(training))
        shows[1:1] = _time_missing(training) if state_at_end.variant == "slow" else []
    batch = _last_batch(evaluations) if state_at_end.variant == "evaluating" else {}
    at = {name: value for name, value in batch.items() if name != "left"}
    secondary, headline = HIT_LIMIT(), HEADLINES[state_at_end.variant](**at)
    if ending.job is not None and ending.job.get("time_limit_s") is not None:
        limit = ending.jobs.value(ending.job, "time_limit_s", "s")
        secondary, headline = HIT_LIMIT_OF(limit=limit), HEADLINES_OF[state_at_end.variant](limit=limit, **at)
        shows.append(TIME_LIMIT(limit=limit))
    elif (span := _log_span(silence, run)) is not None and state_at_end.variant in HEADLINES_AFTER:
        seconds, times = span
        headline = HEADLINES_AFTER[state_at_end.variant](seconds=seconds, **at)
        shows.append(LOG_SPAN(seconds=seconds, first=times[0], last=times[1]))
    shows += [SCHEDULER_NOTICE(line=ending.notices.value(row, "text")) for row in notices[:1]]
    shows += [RECORDED(state=state)] if state is not None else []
    return present(
        state_at_end.certainty,
        "job",
        shows,
        headline=headline,
        secondary_headline=secondary,
        implies=[MEANINGS[state_at_end.variant]()],
        cannot_decide=[WORKING_OR_STUCK()] if state_at_end.variant in UNCLEAR_STATES else [],
        actions=[_next_step(state_at_end.variant, training, silence)],
        since=notices[0].time if notices else run.end,
        at=notices[0].at if notices else None,
        variant=state_at_end.variant.replace("_", "-"),
    )


def _never_started(ending: Ending) -> Finding:
    """The finding about a job that Slurm removed from the queue because its deadline could not be met."""
    rows = [row for row in ending.notices.events if row.get("reason") == "deadline"]
    return present(
        Certainty.ESTABLISHED,
        "scheduler",
        [
            *([] if ending.state is None else [RECORDED(state=ending.state)]),
            *(DEADLINE_LINE(line=ending.notices.value(row, "text")) for row in rows[:1]),
        ],
        headline=NEVER_STARTED(),
        implies=[NOT_STARTED()],
        actions=[action(LATER_DEADLINE)],
        since=rows[0].time if rows else None,
        variant="never-started",
    )


def _log_span(silence: Silence, run: Run) -> tuple[Value, tuple[Value, Value]] | None:
    """How long the run lasted at least, by the timestamps of its log: the seconds, and the first and last stamp."""
    times = times_by_logs(silence.signs["logs"], run)
    return (seconds_between(*times), times) if times is not None and times[0].number < times[1].number else None


def _by_gpus(stall: GpuStall | None, idle: IdleGpus | None, stuck: FirstStepHang | None) -> Iterator[Witness]:
    """Whether the GPUs worked up to the limit or stalled before it; empty if inconclusive."""
    stall_at_end = stall.at_end if stall is not None else None
    if stall_at_end is not None and stall_at_end.sure:
        yield witness("silent", Certainty.SUPPORTED, *stall_at_end.claims)
    for hang in (idle, stuck):
        if hang is not None:
            yield witness("silent", Certainty.SUPPORTED, *hang.claims)
    if stall is not None and stall_at_end is None and stall.worked_on is not None:
        yield witness("slow", Certainty.ESTABLISHED, stall.worked_on)


def _states_at_end(
    ending: Ending,
    silence: Silence,
    evaluations: Evaluations,
    training: Trajectory | None,
    gpus: Witness | None,
    limits: Limits,
) -> Iterator[Witness]:
    """What it was doing at its end, the best evidence first: its closing line, its GPUs, its silence, its steps."""
    points = () if training is None else training.points
    for row in ending.ends.events[-1:]:
        if sum(follows(point, row) is True for point in points) <= 1:  # a closing summary may come after it
            yield witness("after_end", Certainty.ESTABLISHED, REPORTED_DONE(line=ending.ends.value(row, "text")))
    if gpus is not None:
        yield gpus
    if not points and (batch := _last_batch(evaluations)):
        yield witness("evaluating", Certainty.POSSIBLE, EVALUATION_REACHED(**batch))
    if training is None or not points:
        count = [] if training is None else [NO_STEP_LOGGED(count=training.count)]
        yield witness("no_progress", Certainty.POSSIBLE, *count)
        return
    quiet = silence.seconds() if training.has_times else None
    if quiet is not None and quiet.number > max(limits.min_quiet_s, limits.quiet_steps * training.interval_s):
        yield witness("silent", Certainty.SUPPORTED, NOTHING_PRINTED(seconds=quiet))
    if not training.has_times and silence.stall is not None:
        yield witness("silent", Certainty.SUPPORTED, UNACCOUNTED(seconds=silence.stall[0]))
    if silence.unaccounted is not None:
        yield witness("undecided", Certainty.POSSIBLE, UNACCOUNTED(seconds=silence.unaccounted))
    stamped = silence.seconds(("progress",)) is not None
    yield witness("slow", Certainty.ESTABLISHED if stamped else Certainty.SUPPORTED)


def _last_batch(evaluations: Evaluations) -> dict[str, Value]:
    """Batch, batches and seconds left, of the evaluation's last line; empty if there is none."""
    if not evaluations.batches:
        return {}
    frame, row = evaluations.batches, evaluations.batches.events[-1]
    units = {"batch": "", "batches": "", "left_s": "s"}
    return {name.removesuffix("_s"): frame.value(row, name, unit) for name, unit in units.items()}


def _progress(training: Trajectory) -> Claim:
    """How far the run had progressed."""
    place = last_position(training)
    if place is None:
        return REACHED(place=training.progress.value(training.points[-1], "text"))
    planned = steps_of_plan(training, place)
    return REACHED(place=place) if planned is None else REACHED_OF(place=place, planned=planned)


def _next_step(variant: str, training: Trajectory | None, silence: Silence) -> Action:
    """What to do next; for a slow run with the time that it lacked, if the log shows it."""
    if variant == "no_progress" and silence.only_error_output:
        return action(ADD_STANDARD_OUTPUT)
    remaining = [] if variant != "slow" or training is None else _time_missing(training)
    if remaining:
        return action(RAISE_LIMIT_BY, seconds=remaining[0].values["seconds"])
    return action(NEXT_STEPS[variant], *(DUMP_STACKS if variant in ("silent", "no_progress", "evaluating") else ()))


def _time_missing(training: Trajectory) -> list[Claim]:
    """How much longer it would have taken."""
    left, step_s = training.remaining_steps, training.step_seconds
    if left is None or step_s is None:
        return []
    return [TIME_MISSING(left=left, seconds=derived(round(left.number * step_s.number, 1), left, step_s, unit="s"))]


FAMILY = Family(
    code="F3",
    role="disposition",
    id="timeout",
    title="Time limit reached",
    example=("timeout-healthy", "timeline"),
    judge=judge,
    limits=Limits(),
    explains=("H3", "A2", "H1"),
    rivals=("C1", "C2", "C3"),
    collect=(
        "sacct with State, Timelimit and Elapsed",
        "GPU activity over the run (DCGM fields PROF_GR_ENGINE_ACTIVE and PROF_SM_ACTIVE)",
        "output that prints its progress with timestamps",
    ),
)
