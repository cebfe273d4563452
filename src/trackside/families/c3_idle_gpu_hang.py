"""Idle-GPU hang.

Meaning
-------
A job keeps its allocation without computing: the process is alive but stuck before or between GPU work, in a
host-side deadlock, a blocking wait, a stuck DataLoader or a file read that never returns.

What it looks like
------------------
In metrics: memory or GPUs allocated while engine and SM activity and kernel launches are near zero for a long time;
more certain if no process ever attached to the GPU. A single GPU may also be kept busy by one endless kernel. A
stack taken during the hang (by the agent, or with py-spy) names the line of code. Without either, the only sign
is an empty or silent log of a job that ran until its time limit.

Not this family when
--------------------
- The run was canceled within ten minutes.
- The log shows progress up to the end.
- Several ranks wait for each other: that is a rendezvous failure or a collective hang.
- The job does work on the CPU that shows progress.
- The job has finished and only cleans up.

Impact
------
The allocation is wasted until the time limit or a person ends it.

Do next
-------
Find where the process waits (py-spy, /proc/PID/stack), cancel it, and rerun with a wall-clock limit.

What it cannot decide
---------------------
The host-side cause, if no stack was taken. Without GPU metrics, whether the GPU was idle at all; a silent log
alone is only a possible hang.

References
----------
- [NVIDIA DCGM: profiling metrics](https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#profiling-metrics)
- [PyTorch: Flight Recorder for stuck jobs](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html)
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing, or_none
from trackside.facts.gpu.activity import GpuActivity, missing_activity
from trackside.facts.gpu.idle import IdleGpus
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.gpus import nodes_of, ranks_of_gpus
from trackside.facts.logs.ending import ENDED_WELL, OUTSIDE_END_STATES, Ending
from trackside.facts.logs.exceptions import Exceptions, error_in_brief
from trackside.facts.logs.flight_records import FlightRecords
from trackside.facts.logs.hang_stacks import HangStacks
from trackside.facts.logs.order import last_after
from trackside.facts.logs.silence import Silence
from trackside.facts.training.learning import place_of
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, present
from trackside.model import EventRole, Run
from trackside.remedies import DUMP_STACKS

HUNG_AT_GPU_IDLE = Sentence("hung at {place}, with an idle GPU")
HUNG_AT = Sentence("hung at {place}")
HUNG = Sentence("hung: the job holds its GPU and does nothing")
HUNG_ALL = Sentence("hung: the job holds its GPUs and does nothing")
HUNG_ON_HOST = Sentence("hung: its processes wait on the host")
HUNG_SILENT = Sentence("hung: no output for {seconds} until the job was ended", running="hung: no output for {seconds}")
HUNG_EMPTY = Sentence("hung: the job printed nothing until it was ended", running="hung: the job has printed nothing")
NOT_ENDED_FROM_OUTSIDE = Sentence(
    "neither the time limit nor a user ended the run: the scheduler recorded {state}",
    running="neither the time limit nor a user ended the run: the scheduler lists it as {state}",
)
ENDED_BY_EXCEPTION = Sentence("an error in the log explains the end: {error}", running="the job reported {error}")
ERROR_BEFORE_END = Sentence(
    "before the run was ended from outside, one of its processes reported {error}", running="the job reported {error}"
)
WORKED_AFTER_ERROR = Sentence("training continued after {error}, until {place}")
RAN_BRIEFLY = Sentence(
    "the run lasted only {seconds} before it was ended: {state}",
    running="the run has lasted only {seconds}: {state}",
)
RENDEZVOUS_FAILED = Sentence(
    "the GPUs of {nodes} nodes never computed while their ranks tried to connect: this is a rendezvous failure"
)
WORKED_ON_HOST = Sentence("the job kept working without its GPU, last seen at {time}")
STOPPED_TOGETHER = Sentence("{count} stopped together: this is a hang between ranks")
GPU_WORK = {
    "launches": Sentence("{level} kernels were launched"),
    "collectives": Sentence("{level} collectives completed"),
    "sm": Sentence("SM activity was {level} (median)"),
    "power": Sentence("the GPUs drew {level} (median), more than idle GPUs"),
}
RANKS_CONNECTED = Sentence("several ranks had connected: {line}")
WORKED_TO_END = Sentence(
    "the log shows activity until the end; the last step is {point}",
    running="the log shows activity until now; the last step is {point}",
)
LOG_EMPTY = Sentence("the given log has no line of the job's own output")
NOTHING_PRINTED = Sentence(
    "the job itself printed no line with a time in the last {seconds} of the run",
    running="the job has printed no line with a time for {seconds}",
)
ENDED_FROM_OUTSIDE = Sentence("the run was ended from outside: {state}", running="the run is still running: {state}")
USE_NOT_SHOWN = Sentence("nothing in the inputs shows that the allocation was used; an empty log does not mean healthy")
GPU_UNUSED = Sentence(
    "the job held its GPU without using it until it ended",
    running="the job holds its GPU without using it",
)
WAIT_UNEXPLAINED = Sentence("what the job waited for on the host: a lock, a pipe, storage or a stuck worker")
HANG_UNCERTAIN = Sentence("whether the job hung, and what it waited for: a lock, a pipe, storage or a stuck worker")
GPU_USE_UNKNOWN = Sentence("whether the job used a GPU at that time: no GPU metric was given")
DUMP_NEXT_TIME = Sentence(
    "if the job hangs again, dump the stacks of its processes before the job ends",
    running="dump the stacks of its processes, then cancel the job",
)
INSPECT_LINE = Sentence(
    "inspect {place} for what the process waits for",
    running="inspect {place} for what the process waits for, then cancel the job",
)


@dataclass(frozen=True)
class Limits:
    """Minimum durations."""

    min_idle_s: float = 600.0
    """PyTorch's default timeout of an NCCL process group; evaluations and saves of healthy runs stay below it."""
    imports_s: float = 30.0
    """Time within which a job may not have printed anything yet: importing a framework takes that long on a cold
    node."""


def judge(
    run: Run, ending: Ending, silence: Silence, exceptions: Exceptions, flight: Maybe[FlightRecords],
    stacks: Maybe[HangStacks], activity: Maybe[GpuActivity], idle: Maybe[IdleGpus], stall: Maybe[GpuStall],
    limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """Allocated but idle GPUs in a run that did not end by itself; without metrics, a silent log."""
    if (missing := all_missing(ending.missing_end, stacks, missing_activity(activity))) is not None:
        return missing
    hang_stacks = or_none(stacks)
    own_stacks = hang_stacks if hang_stacks is not None and hang_stacks.has_stacks else None
    excluded = _ended_itself(ending, exceptions, silence) or _between_ranks(silence, or_none(flight), own_stacks)
    if excluded is not None:
        return excluded
    end_state = ending.state
    if end_state is None and ending.limit_notices:
        end_state = ending.notices.value(ending.limit_notices[0], "text")
    measured = _idle_evidence(run, silence, or_none(idle), or_none(stall), limits)
    if isinstance(measured, Finding):
        return measured
    if measured is not None:
        return _finding(run, silence, measured, end_state, own_stacks)
    silent_for = silence.stall
    if own_stacks is not None and (own_stacks.suspected or silent_for is not None):
        shows = [NOTHING_PRINTED(seconds=silent_for[0])] if silent_for is not None and silent_for[1] else []
        shows += [ENDED_FROM_OUTSIDE(state=end_state)] if end_state is not None else []
        all_ranks = len(own_stacks.ranks) >= (run.n_ranks or 1)  # of the others, some may be waited for elsewhere
        return _finding_without_metrics(
            silence, HUNG_ON_HOST(), shows, own_stacks, Certainty.SUPPORTED if all_ranks else Certainty.POSSIBLE
        )
    return _by_log(ending, silence, end_state, limits)


def _ended_itself(ending: Ending, exceptions: Exceptions, silence: Silence) -> Finding | None:
    """Evidence that the run ended by itself."""
    if ending.completed is not None:
        return absent(ENDED_WELL(state=ending.completed))
    state = ending.state
    if state is not None and state.value not in OUTSIDE_END_STATES and not ending.limit_notices:
        return absent(NOT_ENDED_FROM_OUTSIDE(state=state))
    if ending.own_end is not None:
        return absent(ending.own_end)
    own_errors = [row for row in exceptions.frame.events if row.role is EventRole.ROOT]
    if not own_errors:
        return None
    row = exceptions.final or own_errors[-1]
    error = error_in_brief(exceptions.frame, row)
    if not exceptions.unhandled and (point := last_after(row, silence.points)) is not None:
        return absent(WORKED_AFTER_ERROR(error=error, place=place_of(silence.signs["progress"], point)))
    return absent((ERROR_BEFORE_END if ending.ended_from_outside else ENDED_BY_EXCEPTION)(error=error))


def _between_ranks(silence: Silence, flight: FlightRecords | None, stacks: HangStacks | None) -> Finding | None:
    """Stacks or dumps in which ranks wait for each other."""
    if stacks is not None and stacks.waiting and (len(stacks.ranks) > 1 or silence.several_ranks):
        return absent(*stacks.claims)
    if flight is not None and flight.absent_ranks is not None:
        return absent(flight.absent_ranks.claim)
    return None


@dataclass(frozen=True)
class IdleEvidence:
    """Evidence of idle GPUs."""

    claims: tuple[Claim, ...]
    gpus: tuple[str, ...]
    since: float | None
    strong: bool
    """Whether more than one signal shows it."""


def _idle_evidence(
    run: Run, silence: Silence, idle: IdleGpus | None, stall: GpuStall | None, limits: Limits
) -> IdleEvidence | Finding | None:
    """The evidence of the GPUs: idle from the start, or one that stopped; None if they are inconclusive."""
    if idle is not None:
        activity = idle.activity
        if idle.forming:
            return absent(RENDEZVOUS_FAILED(nodes=derived(len(nodes_of(activity.gpus)), idle.seconds)))
        if idle.seconds.number < limits.min_idle_s:
            return None
        later_sign = silence.sign_after(float(activity.times[0]) - activity.step + limits.min_idle_s)
        strong = idle.attached is False or len(idle.claims) > 2  # two signals and more
        return (
            absent(WORKED_ON_HOST(time=later_sign))
            if later_sign is not None
            else IdleEvidence(idle.claims, activity.gpus, run.start, strong)
        )
    if stall is None:
        return None
    activity, stall_at_end = stall.activity, stall.at_end
    users, name = activity.named(activity.working_gpus), activity.basis
    if stall_at_end is not None and len(users) == 1 and (not silence.several_ranks or not stall_at_end.busy_waiting):
        later_sign = silence.sign_after(
            stall_at_end.since + limits.min_idle_s
        )  # no collective keeps it busy: a kernel without end
        return (
            absent(WORKED_ON_HOST(time=later_sign))
            if later_sign is not None
            else IdleEvidence(stall_at_end.claims, users, stall_at_end.since, stall_at_end.sure)
        )
    if stall_at_end is not None:
        return absent(
            STOPPED_TOGETHER(count=derived(len(users), stall_at_end.seconds, unit="GPUs" if len(users) > 1 else "GPU"))
        )
    level = activity.level(name)
    if name is not None and name != "utilization" and level is not None and len(users) and stall.observed_to_end:
        return absent(GPU_WORK[name](level=level))
    return None


def _finding(run: Run, silence: Silence, idle: IdleEvidence, end: Value | None, stacks: HangStacks | None) -> Finding:
    """Idle GPUs; more than supported if the log is empty, too, if the scheduler shows the allocation, or if a stack
    shows the location."""
    shows, own_lines = [*idle.claims], silence.own_lines
    is_empty = own_lines is not None and own_lines.value == 0
    if is_empty and own_lines is not None:
        shows.append(LOG_EMPTY(count=own_lines))
    if end is not None:
        shows.append(ENDED_FROM_OUTSIDE(state=end))
    code_line = stacks.code_line if stacks is not None else None
    shows += stacks.claims if code_line is not None and stacks is not None else ()
    ranks = ranks_of_gpus(run, idle.gpus)
    is_sure = (idle.strong and (end is not None or is_empty)) or code_line is not None
    return present(
        Certainty.ESTABLISHED if is_sure else Certainty.SUPPORTED,
        "job",
        shows,
        headline=(HUNG if len(idle.gpus) < 2 else HUNG_ALL)()
        if code_line is None
        else HUNG_AT_GPU_IDLE(place=code_line),
        implies=[GPU_UNUSED()],
        cannot_decide=[] if code_line is not None else [WAIT_UNEXPLAINED()],
        actions=[
            action(INSPECT_LINE, place=code_line) if code_line is not None else action(DUMP_NEXT_TIME, *DUMP_STACKS)
        ],
        since=idle.since,
        ranks=ranks or (tuple(sorted(stacks.ranks)) if code_line is not None and stacks is not None else ()),
        gpus=idle.gpus,
        nodes=nodes_of(idle.gpus),
    )


def _by_log(ending: Ending, silence: Silence, end: Value | None, limits: Limits) -> Finding | Missing:
    """A run ended from outside that had run for long and printed nothing at all, or nothing for long, and that is not a
    problem between ranks. A time limit is what its user expected to need; a user may cancel a job for any reason."""
    if end is None:
        return Missing("neither GPU activity nor the scheduler's record of the end was given")
    if silence.missing_log is not None:
        return Missing("neither GPU activity nor a job log was given")
    by_limit = end.value == "TIMEOUT" or ending.state is None
    min_s = limits.imports_s if by_limit else limits.min_idle_s
    if ending.elapsed is not None and ending.elapsed.number < min_s:
        return absent(RAN_BRIEFLY(seconds=ending.elapsed, state=end))
    end_claim, lines = ENDED_FROM_OUTSIDE(state=end), silence.own_lines
    if lines is not None and lines.value == 0:
        if ending.state is None:  # how long it ran is unknown, and its output may be in another file
            return Missing("the log holds only the scheduler's notices")
        return _finding_without_metrics(silence, HUNG_EMPTY(), [LOG_EMPTY(count=lines), end_claim])
    first_sign = silence.first_line("progress", "ready", "communicators", "inits")
    if first_sign is not None and silence.several_ranks:
        return absent(RANKS_CONNECTED(line=first_sign))
    if silence.stall is not None:
        seconds = silence.stall[0]
        return _finding_without_metrics(
            silence, HUNG_SILENT(seconds=seconds), [NOTHING_PRINTED(seconds=seconds), end_claim]
        )
    last = silence.points[-1:]
    if last and last[0].time is not None:
        return absent(WORKED_TO_END(point=place_of(silence.signs["progress"], last[0])))
    return Missing("no GPU activity was given, and the log has no times")


def _finding_without_metrics(
    silence: Silence, headline: Claim, shows: list[Claim], stacks: HangStacks | None = None,
    certainty: Certainty = Certainty.POSSIBLE,
) -> Finding:  # fmt: skip
    """Without metrics; ``certainty`` applies if the line of code is known."""
    code_line = stacks.code_line if stacks is not None else None
    last = silence.signs["logs"].events[-1:]
    return present(
        certainty if code_line is not None else Certainty.POSSIBLE,
        "job",
        [*shows, *(stacks.claims if stacks is not None else ())],
        headline=headline if code_line is None else HUNG_AT(place=code_line),
        implies=[USE_NOT_SHOWN()],
        cannot_decide=[GPU_USE_UNKNOWN()] if code_line is not None else [HANG_UNCERTAIN(), GPU_USE_UNKNOWN()],
        actions=[
            action(INSPECT_LINE, place=code_line) if code_line is not None else action(DUMP_NEXT_TIME, *DUMP_STACKS)
        ],
        at=last[0].at if last else None,
        ranks=tuple(sorted(stacks.ranks)) if code_line is not None and stacks is not None else (),
    )


FAMILY = Family(
    code="C3",
    id="idle-gpu-hang",
    title="Idle-GPU hang",
    example=("idle-gpu-with-memory", "busy-wait"),
    judge=judge,
    limits=Limits(),
    explains=("F3", "H1"),
    rivals=("C1", "C2", "D1"),
    collect=(
        "DCGM_FI_PROF_SM_ACTIVE, DCGM_FI_PROF_GR_ENGINE_ACTIVE and DCGM_FI_DEV_FB_USED of the job's GPUs over the run",
        "the job's output with timestamps, and sacct with State, Start, End and Timelimit",
        "a stack of the process while it hangs (py-spy dump, cat /proc/PID/stack)",
    ),
    absence_based=True,
    cost_kind="stopped",
)
