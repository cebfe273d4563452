"""Is it a rank at work of its own that the others wait for: the one that saves, evaluates or logs for all? Pure.

Such a rank is late like a straggler, but not because it is slow: between its saves it keeps up, and while it evaluates
no step is done at all. A straggler is late in every step, and the steps go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.activity import GpuActivity, Matrix, middle, spells
from trackside.facts.gpus import of_gpu
from trackside.facts.pace.saving import checkpoints, save_storm
from trackside.facts.training.learning import training_points
from trackside.finding import Claim, claim
from trackside.model import Event, Run

if TYPE_CHECKING:
    from trackside.facts.pace.slow_gpus import Slow

RESOLVED = 3
"""Windows between two saves from which a rank that only saves is seen to keep up in between."""
KEEPS_UP = 0.9
"""Of the others' activity: a rank that keeps up."""
LEAST_SAVES = 3
IDLES = 0.2
"""Share of the others' activity that a rank which idles is short of; a rank that computes longer is short of none."""
LEAST_IDLE_S = 1.0
"""Of each save; a straggler whose run saves far more often than that idles for another reason."""
POINTS = 3
"""Gaps between training points that a stretch must span for their absence to say that no step was done."""


@dataclass(frozen=True, slots=True)
class Saver:
    """A rank that the others wait for while it saves."""

    share: float
    """Of the time that it keeps them waiting."""
    count: Value
    shows: tuple[Claim, ...]
    first: Event | None


def saver(evidence: Evidence, run: Run, seen: GpuActivity, slow: Slow) -> Saver | None:
    """Whether the GPUs that the others wait for are those of the ranks that write checkpoints, and idle for that.

    Ranks that write for others are the first of the run and of its nodes. None where they work while the others wait,
    or idle although nothing is saved.
    """
    grid = evidence.grid(seen.busy_by) if seen.busy_by is not None else None
    if grid is None or slow.sign == "sm" or slow.slow_clock or not set(slow.gpus) <= set(first_gpus(run)):
        return None
    part = grid.during(slow.start, slow.end)
    mine, theirs = of_gpu(part, slow.gpus[0]).value("avg"), part.value("median")
    if mine.value is None or not theirs.value:
        return None
    share = 1 - mine.number / theirs.number
    if share < IDLES:
        return None  # it works while the others wait
    gpu = derived(slow.gpus[0], mine)
    storm = save_storm(evidence, run)
    if storm is not None:
        steps = next((each.values["steps"] for each in storm.shows if "steps" in each.values), None)
        told = [claim("saver_late", gpu=gpu, saves=storm.count, steps=steps)] if steps is not None else []
        return Saver(share, storm.count, (*told, *storm.shows), storm.first)
    saves = checkpoints(evidence, run)
    if len(saves) < LEAST_SAVES:
        return None
    interval = (slow.end - slow.start) / len(saves)
    if share * interval < LEAST_IDLE_S or not _in_bursts(seen, slow, interval, len(saves)):
        return None
    total = evidence["saves"].reduce("count")
    count = derived(len(saves), total)
    idle = derived(round(share * interval, 1), mine, theirs, total, unit="s")
    shows = claim("saver_idles", gpu=gpu, mine=mine, theirs=theirs, saves=count, idle=idle)
    return Saver(share, count, (shows,), saves[0])


def first_gpus(run: Run) -> list[str]:
    """The first GPU of each node: those of the ranks that write for others."""
    found: dict[str, str] = {}
    for gpu in run.gpus:
        found.setdefault(gpu.rpartition(":")[0], gpu)
    return list(found.values())


def _in_bursts(seen: GpuActivity, slow: Slow, interval: float, count: int) -> bool:
    """Whether it keeps up between the saves, as far as they are sampled finely enough to see that."""
    if interval < RESOLVED * seen.step:
        return interval <= (RESOLVED - 1) * seen.step
    assert seen.busy is not None
    inside = (seen.times > slow.start) & (seen.times <= slow.end)
    values: Matrix = seen.busy[:, inside]
    own = values[seen.gpus.index(slow.gpus[0])]
    level = float(middle(values))
    return len(spells(own >= KEEPS_UP * level)) >= 0.5 * count


def no_step(evidence: Evidence, seen: GpuActivity, slow: Slow) -> Claim | None:
    """That the log prints no step in a stretch in which a GPU stood apart, where it prints many before: then all ranks
    paused, and one of them evaluated or saved. None where steps went on, or the log tells no times."""
    frame = evidence["progress"]
    start, end = slow.start + seen.step, slow.end - 2 * seen.step  # scrapes lag, and the last step may end in it
    stamped = sorted((row for row in training_points(frame) if row.time is not None), key=_time)
    before = [row for row in stamped if _time(row) <= start]
    if len(before) < POINTS or any(start < _time(row) < end for row in stamped):
        return None
    usual = median(_time(after) - _time(row) for row, after in pairwise(before))
    if end - start < POINTS * usual or start - _time(before[-1]) > POINTS * usual + 2 * seen.step:
        return None  # too short to tell, or the log had ended before
    since = frame.value(before[-1], "time", "time")
    return claim("no_step", gpu=derived(slow.gpus[0], since), since=since, until=derived(end, since, unit="time"))


def _time(row: Event) -> float:
    return row.time or 0.0
