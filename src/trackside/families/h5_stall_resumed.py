"""Stall that resumed.

Meaning
-------
All ranks waited for a file server, for one delayed rank, or for something else outside of the training loop,
and it recovered before a timeout. It costs time, but no work is lost. It is always a warning in addition to the
verdict: the next such stall may not recover, and is then a hang.

What it looks like
------------------
Two logged steps many times further apart than their steps take, with no planned activity in between: no
evaluation, no save, no restart. The GPUs do no work meanwhile: most spin in a collective, the one that they
wait for is idle. A node's kernel reports that a file server did not respond, or that a task was blocked.
Without times in the log, only the pause of the GPUs shows it.

Not this family when
--------------------
- Equally long pauses recur: evaluations, saves or epochs.
- An evaluation or a save was printed in the pause, and no file server was silent.
- The GPUs kept working: only the log was silent.
- The run was requeued, or its launcher restarted it.
- The run never recovered: that is a hang.

Impact
------
The time of the stall, times the allocated GPUs.

Do next
-------
Check the file server, the kernel log and the named rank for that time.

What it cannot decide
---------------------
What the run waited for, if neither a kernel log nor an outlier GPU shows it.

References
----------
- [Linux: nfs(5), hard mounts](https://man7.org/linux/man-pages/man5/nfs.5.html)
- [Linux: hung task detector](https://docs.kernel.org/admin-guide/sysctl/kernel.html#hung-task-timeout-secs)
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing
from trackside.facts.gpu.activity import NEVER_WORKED, GpuActivity, missing_activity, never_worked
from trackside.facts.gpu.pauses import GpuPauses, LongestPause
from trackside.facts.pace.training_pauses import StepGap, TrainingPauses
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, present


@dataclass(frozen=True)
class Limits:
    """When a pause is a stall."""

    min_stall_s: float = 600.0
    """PyTorch's default timeout of an NCCL process group; evaluations and saves of healthy runs stay below it."""
    caused_by_storage_s: float = 120.0
    """As ``min_stall_s``, if a file server was silent meanwhile: the kernel calls a task hung after this time."""
    min_intervals: float = 10.0
    """Minimum pause, as a multiple of the usual time between two logged steps."""
    min_repeat_ratio: float = 2.0
    """Multiple of the next longest pause: recurring pauses are normal (evaluations, saves, epochs)."""


STALLED = Sentence("stalled for {seconds} during training, then continued")
STALLED_BY_STORAGE = Sentence("stalled for {seconds} during training while a file server did not answer")
STALLED_FROM_TO = Sentence("training stalled for {seconds}, from {since} to {until}, and then continued")
GPUS_IDLE_FROM_TO = Sentence("the GPUs did no work for {seconds}, from {since} to {until}, and then continued")
SERVER_SILENT = Sentence("a file server did not answer at about that time: {line}")
HUNG_TASK = Sentence("the kernel reported a hung task at about that time: {line}")
LOST_ONLY_TIME = Sentence("the run lost only this time; the next stall may become a hang")
WAIT_UNEXPLAINED = Sentence("what the run waited for")
CHECK_STORAGE = Sentence("check the file server and the network to it at that time")
CHECK_RANK = Sentence("check the rank's log, the kernel log of its node and the storage at that time")
GPUS_KEPT_COMPUTING = Sentence("the GPUs kept computing during a pause of {seconds} between logged steps")
NO_LONG_GAP = Sentence("no gap between logged steps was longer than normal (at most {seconds})")
NO_LONG_GAP_OVER = Sentence("no two logged steps were further apart than usual (at most {seconds}, for {count:steps})")
SHORT_PAUSES = Sentence("between their first and their last work the GPUs paused for at most {seconds}")
NO_PAUSE = Sentence("between their first and their last work the GPUs did not pause")
NOT_RESUMED = Sentence("the GPUs did no work in the last {seconds}: that stall did not end")


def judge(
    pauses: TrainingPauses, activity: Maybe[GpuActivity], gpus: Maybe[GpuPauses], limits: Limits
) -> Finding | Missing:
    """A pause between logged steps without a planned activity and without GPU work; else, for points without times,
    a pause of the GPUs."""
    if (missing := all_missing(pauses.missing_steps, missing_activity(activity))) is not None:
        return missing
    gap, gpu_pause = pauses.longest, None if isinstance(gpus, Missing) or pauses.has_times else gpus.longest
    if gap is not None and _is_stall(pauses, gap, limits):
        work = None if isinstance(gpus, Missing) else gpus.during(gap.since, gap.until)
        if work is not None and work.kept_working:
            return absent(GPUS_KEPT_COMPUTING(seconds=pauses.seconds(gap)))
        claims, gpus_waited_for = ((), ()) if work is None else (work.claims, work.gpus)
        return _finding(pauses, gap, STALLED_FROM_TO, pauses.seconds(gap), claims, gpus_waited_for)
    if gpu_pause is not None and _is_gpu_stall(pauses, gpu_pause, limits):
        return _finding(pauses, gpu_pause, GPUS_IDLE_FROM_TO, gpu_pause.length, gpu_pause.claims, gpu_pause.gpus)
    if gap is not None:
        steps = pauses.steps(gap)
        return absent(
            NO_LONG_GAP(seconds=pauses.seconds(gap))
            if steps is None
            else NO_LONG_GAP_OVER(seconds=pauses.seconds(gap), count=steps)
        )
    if not isinstance(gpus, Missing) and gpus.longest_s is not None:
        pauses_claim = (SHORT_PAUSES if gpus.longest_s.number else NO_PAUSE)(seconds=gpus.longest_s)
        stall = gpus.stall.hung
        return absent(*([] if stall is None else [NOT_RESUMED(seconds=stall.seconds)]), pauses_claim)
    if never_worked(activity):
        return NEVER_WORKED
    return Missing("neither logged steps with times nor GPU activity over the run were given")


def _is_stall(pauses: TrainingPauses, gap: StepGap, limits: Limits) -> bool:
    """Whether a pause is far longer than the run's usual interval, and not planned."""
    excess, usual = gap.excess_s, pauses.usual_s
    if (
        usual is None
        or excess < limits.min_intervals * usual
        or excess < limits.min_repeat_ratio * pauses.next_excess_s
    ):
        return False
    if pauses.events_during(pauses.storage, gap.since, gap.until):
        return excess >= limits.caused_by_storage_s
    return excess >= limits.min_stall_s and not pauses.is_planned(gap)


def _is_gpu_stall(pauses: TrainingPauses, pause: LongestPause, limits: Limits) -> bool:
    """Whether a pause of the GPUs is long, far longer than any other, and after as much work."""
    length = pause.length.number
    caused = pauses.events_during(pauses.storage, pause.since, pause.until)
    enough = (
        length >= (limits.caused_by_storage_s if caused else limits.min_stall_s)
        and length >= limits.min_repeat_ratio * pause.next_s
    )
    return enough and pause.worked_s >= min(length, limits.min_stall_s)


def _finding(
    pauses: TrainingPauses, pause: StepGap | LongestPause, sentence: Sentence, seconds: Value, work: tuple[Claim, ...],
    gpus: tuple[str, ...],
) -> Finding:  # fmt: skip
    """The finding. ``work``: what the GPUs did meanwhile; ``gpus``: those that the others waited for."""
    storage, tasks = (pauses.events_during(frame, pause.since, pause.until) for frame in (pauses.storage, pauses.tasks))
    since, until = (derived(time, seconds, unit="time") for time in (pause.since, pause.until))
    shows = [sentence(seconds=seconds, since=since, until=until)]
    shows += [SERVER_SILENT(line=pauses.storage.value(row, "text")) for row in storage[:1]]
    shows += [HUNG_TASK(line=pauses.tasks.value(row, "text")) for row in tasks[:1]]
    storage_failed, logged = bool(storage), isinstance(pause, StepGap)
    certainty = Certainty.SUPPORTED if logged and (storage_failed or work) else Certainty.POSSIBLE
    nodes = dict.fromkeys(row.node for row in (*storage, *tasks) if row.node)
    return present(
        Certainty.ESTABLISHED if storage_failed and work else certainty,
        "infrastructure" if storage_failed else "unknown",
        [*shows, *work],
        headline=(STALLED_BY_STORAGE if storage_failed else STALLED)(seconds=seconds),
        implies=[LOST_ONLY_TIME()],
        cannot_decide=[] if storage_failed else [WAIT_UNEXPLAINED()],
        actions=[action(CHECK_STORAGE if storage_failed else CHECK_RANK)],
        since=pause.since,
        until=pause.until,
        variant="storage" if storage_failed else None,
        nodes=tuple(nodes),
        gpus=gpus,
        latent=True,
    )


FAMILY = Family(
    code="H5",
    id="stall-resumed",
    title="Stall that resumed",
    example=("healthy-after-a-storage-stall", "busy-wait"),
    judge=judge,
    cost_kind="paused",
    limits=Limits(),
    collect=(
        "the job's output with a timestamp on each logged step",
        "GPU activity over the run (DCGM fields PROF_GR_ENGINE_ACTIVE and PROF_SM_ACTIVE)",
        "dmesg -T of the job's nodes: file servers that do not respond, tasks that are blocked",
    ),
)
