"""Whether the GPUs that others wait for belong to a leader rank, which saves, evaluates or logs for all.

Such a rank is late like a straggler, but not because it is slow: between its saves it keeps up, and while it evaluates
no step is completed at all. A straggler is late in every step, and steps continue. Leaders are the first rank of the
run and of each node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trackside.evidence import Missing, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import GpuActivity, nan_median, window_ranges
from trackside.facts.gpus import grid_of_gpu
from trackside.facts.pace.saving import Saving
from trackside.facts.pace.slow_gpus import SlowGpus, SlowGroup
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run

SAVER_IDLES = Sentence(
    "GPU {gpu}, whose rank saves, was busy {own:share} of the time (mean), the others {others:share} (median), "
    "while {saves} checkpoints were saved: it was idle for {idle} per save"
)
SAVER_LATE = Sentence("GPU {gpu}, whose rank saves, is the one that lags: {saves:saved checkpoints} in {steps}")
NO_STEP = Sentence(
    "no step completed while GPU {gpu} differed from the others, from {since} to {until}: all ranks paused"
)


@dataclass(frozen=True)
class Limits:
    """What distinguishes a leader's work from slowness."""

    min_windows_between_saves: int = 3
    """Minimum number of windows between two saves to see whether a rank that only saves keeps up in between."""
    keeps_up_share: float = 0.9
    """A rank keeps up if its activity is at least this share of the others'."""
    min_saves: int = 3
    """Minimum number of saves for a pattern."""
    idle_share: float = 0.2
    """Share of the others' activity that an idling rank lacks; a rank that computes longer lacks none."""
    min_idle_s: float = 1.0
    """Minimum idle time per save; a straggler whose run saves more often idles for another reason."""
    min_intervals: int = 3
    """Minimum number of intervals between logged steps in a time span for their absence to mean that no step was
    completed."""


@dataclass(frozen=True, slots=True)
class Saver:
    """A rank that the others wait for while it saves."""

    share: float
    """Share of time that the others wait for it."""
    claims: tuple[Claim, ...]
    first: Event | None
    """The first save."""


@dataclass(frozen=True, eq=False)
class LeaderWork:
    """Whether the slow GPUs belong to a rank that saves, evaluates or logs for all."""

    leads: bool
    """Whether those GPUs belong to leader ranks."""
    saver: Saver | None
    """Set if it idles while it saves; None if it works while the others wait, or idles although nothing is saved."""
    pause: Claim | None
    """The claim that no step was completed meanwhile: all ranks paused, and one of them evaluated or saved. None if
    steps continued, or the log has no times."""


@fact(limits=Limits())
def leader_work(slow: SlowGpus, saving: Saving, trajectory: Maybe[Trajectory], run: Run, limits: Limits) -> LeaderWork:
    """Needs outlier GPUs; empty if there are none."""
    group = slow.group
    if group is None:
        return LeaderWork(False, None, None)
    leads = set(group.gpus) <= set(_leaders(run))
    saver = None
    if leads and group.signal != "sm" and not group.slow_clock:
        saver = _saver(slow.activity, group, saving, limits)
    pause = None if isinstance(trajectory, Missing) else _pause(slow.activity, group, trajectory, limits)
    return LeaderWork(leads, saver, pause)


def _leaders(run: Run) -> list[str]:
    """The first GPU of each node."""
    return list({gpu.rpartition(":")[0]: gpu for gpu in reversed(run.gpus)}.values())


def _saver(activity: GpuActivity, group: SlowGroup, saving: Saving, limits: Limits) -> Saver | None:
    grid, saves = activity.grid(activity.busy_by), saving.checkpoints
    if grid is None:
        return None
    part = grid.during(group.start, group.end)
    own_busy, peers_busy = grid_of_gpu(part, group.gpus[0]).value("avg"), part.value("median")
    if own_busy.value is None or not peers_busy.value:
        return None
    share, gpu = 1 - own_busy.number / peers_busy.number, derived(group.gpus[0], own_busy)
    if share < limits.idle_share:
        return None  # the leader works while the others wait
    if (storm := saving.storm) is not None:
        late = [] if storm.steps is None else [SAVER_LATE(gpu=gpu, saves=storm.count, steps=storm.steps)]
        return Saver(share, (*late, *storm.claims), storm.first)
    if len(saves) < limits.min_saves:
        return None
    interval = (group.end - group.start) / len(saves)
    if share * interval < limits.min_idle_s or not _keeps_up_between(activity, group, interval, len(saves), limits):
        return None
    idle = derived(round(share * interval, 1), own_busy, peers_busy, saving.total, unit="s")
    return Saver(
        share, (SAVER_IDLES(gpu=gpu, own=own_busy, others=peers_busy, saves=saving.count, idle=idle),), saves[0]
    )


def _keeps_up_between(activity: GpuActivity, group: SlowGroup, interval: float, saves: int, limits: Limits) -> bool:
    """Whether it keeps up between the saves, if the sampling is fine enough to show that."""
    if interval < limits.min_windows_between_saves * activity.step:
        return interval <= (limits.min_windows_between_saves - 1) * activity.step
    assert activity.busy is not None
    values = activity.busy[:, (activity.times > group.start) & (activity.times <= group.end)]
    own_busy, usual = values[activity.gpus.index(group.gpus[0])], float(nan_median(values))
    return len(window_ranges(own_busy >= limits.keeps_up_share * usual)) >= 0.5 * saves


def _pause(activity: GpuActivity, group: SlowGroup, trajectory: Trajectory, limits: Limits) -> Claim | None:
    # scrapes lag, and the last step may end in it
    start, end = group.start + activity.step, group.end - 2 * activity.step
    times = sorted((row.time, index) for index, row in enumerate(trajectory.points) if row.time is not None)
    before = [(time, index) for time, index in times if time <= start]
    if len(before) < limits.min_intervals or any(start < time < end for time, _ in times):
        return None
    usual = median(after[0] - time for (time, _), after in pairwise(before))
    last, index = before[-1]
    if end - start < limits.min_intervals * usual or start - last > limits.min_intervals * usual + 2 * activity.step:
        return None  # too short, or the log had ended before
    since = trajectory.progress.value(trajectory.points[index], "time", "time")
    return NO_STEP(gpu=derived(group.gpus[0], since), since=since, until=derived(end, since, unit="time"))
