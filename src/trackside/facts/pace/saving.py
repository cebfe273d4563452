"""Does a run save checkpoints so often, or so slowly, that saving sets its pace? Pure."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trackside.evidence import Evidence, Value, derived
from trackside.facts.logs.ending import ENDING
from trackside.facts.training.learning import LEARNING, number, step_seconds, steps_done, training_points
from trackside.finding import Claim, claim
from trackside.model import Event, Run
from trackside.query import Query, events

SAVING: Mapping[str, Query] = {**LEARNING, **ENDING, "saves": events("checkpoint_saved")}
"""What tells; a family spreads it into its asks."""
SAYS: Mapping[str, str] = {
    "saves_counted": "the log tells of {saves:saved checkpoints} in {steps}",
    "saves_planned": "a checkpoint is saved every {every} steps, over {steps}",
    "saving_time": "saving took {share} of the wall time",
    "saver_idles": "GPU {gpu}, of the rank that saves, was busy {mine} of its time (mean) and the others {theirs} "
    "(median), while {saves} checkpoints were saved: {idle} for each",
    "saver_late": "GPU {gpu}, of the rank that saves, is the one that lags: {saves:saved checkpoints} in {steps}",
    "no_step": "no step was done while GPU {gpu} stood apart, from {since} to {until}: all ranks paused",
}
"""Sentences of the claims that are made here and in :mod:`trackside.facts.pace.alone`."""


@dataclass(frozen=True)
class Limits:
    """What counts as too often."""

    least_steps: int = 10
    """Below this a ratio of saves to steps is degenerate (the catalogue's E3)."""
    saves_a_step: float = 0.45
    """A save at every step or every second one: 'nearly every step' of the catalogue's D2."""
    saving_share: float = 0.5
    """Share of wall time spent in saves from which saving sets the pace."""


@dataclass(frozen=True)
class Storm:
    """Saves that set the pace."""

    count: Value
    shows: tuple[Claim, ...]
    first: Event | None


def save_storm(evidence: Evidence, run: Run, limits: Limits | None = None) -> Storm | None:
    """Saves at nearly every step, or that take most of the wall time; None where neither shows."""
    limits = limits or Limits()
    saves = checkpoints(evidence, run)
    done = _steps_seen(evidence)
    if done is None or not isinstance(done.value, (int, float)) or done.value < limits.least_steps:
        return None
    often = _often(evidence, saves, done, limits)
    seconds = sum(number(row, "seconds") or 0.0 for row in saves)
    wall = _wall(evidence)
    total = evidence["saves"].reduce("count")
    share = None
    if seconds and wall is not None and isinstance(wall.value, (int, float)) and len(saves) > 2:
        share = derived(round(seconds / wall.value, 2), total, wall, unit="share")
    slow = share is not None and isinstance(share.value, float) and share.value >= limits.saving_share
    if often is None and not slow:
        return None
    shows = [] if often is None else [often]
    if share is not None:
        shows.append(claim("saving_time", share=share))
    return Storm(derived(len(saves), total), tuple(shows), saves[0] if saves else None)


def checkpoints(evidence: Evidence, run: Run) -> list[Event]:
    """One event a checkpoint that was saved."""
    return _distinct(evidence["saves"].events, training_points(evidence["progress"]), run.n_ranks or 1)


def _distinct(saves: Sequence[Event], points: Sequence[Event], ranks: int) -> list[Event]:
    """One event a checkpoint: shards, ranks and messages of the same step or path count once.

    Without a step each further message of the same writer about the same path is another checkpoint, unless as many
    ranks as there are may have written each of them.
    """
    told: Counter[object] = Counter()
    kept: dict[object, Event] = {}
    for row in saves:
        step, path = row.get("step"), row.get("path")
        key: object = step
        if step is None:
            writer = row.at.path, row.rank, path
            told[writer] += 1
            key = path or "", told[writer]
        kept.setdefault(key, row)
    unnamed = [row for row in kept.values() if row.get("step") is None]
    copies = _copies(unnamed, points, ranks)
    named = [row for row in kept.values() if row.get("step") is not None]
    return sorted([*named, *unnamed[::copies]], key=lambda row: (row.at.path, row.at.line))


def _copies(saves: Sequence[Event], points: Sequence[Event], ranks: int) -> int:
    """How many messages a checkpoint has at most: one a rank, where nothing tells the ranks apart and each stretch of
    the log between two points holds as many as there are ranks, or a multiple."""
    if ranks < 2 or any(row.rank is not None for row in saves):
        return 1
    lines = sorted((point.at.path, point.at.line) for point in points)
    between = Counter(bisect(lines, (row.at.path, row.at.line)) for row in saves)
    return ranks if all(count % ranks == 0 for count in between.values()) else 1


def _steps_seen(evidence: Evidence) -> Value | None:
    """Steps done in this run: from the first point's step to the last's, for a run that continued another."""
    progress = evidence["progress"]
    done = steps_done(progress, evidence["ends"])
    saved = [row for row in evidence["saves"].events if number(row, "step") is not None]
    if done is None and saved:  # points without a step: the checkpoints' own count
        done = evidence["saves"].value(saved[-1], "step", "steps")
    points = training_points(progress)
    first = number(points[0], "step") if points else None
    if done is None or first is None or first <= 20 or not isinstance(done.value, (int, float)):
        return done
    return derived(done.value - first, done, progress.value(points[0], "step"), unit="steps")


def _often(evidence: Evidence, saves: Sequence[Event], done: Value, limits: Limits) -> Claim | None:
    """Counted saves near the number of steps; or a plan that says so."""
    if not isinstance(done.value, (int, float)):
        return None
    total = evidence["saves"].reduce("count")
    if len(saves) >= limits.saves_a_step * done.value:
        return claim("saves_counted", saves=derived(len(saves), total), steps=done)
    steps = sorted({step for row in saves if (step := number(row, "step")) is not None})
    gaps = sorted(after - before for before, after in pairwise(steps))
    if len(gaps) >= limits.least_steps and gaps[len(gaps) // 2] <= 2:
        return claim("saves_counted", saves=derived(len(saves), total), steps=done)
    plans = evidence["plans"]
    for row in plans.events:
        every = number(row, "save_steps")
        if every is not None and 0 < every <= 2 and not saves:
            return claim("saves_planned", every=plans.value(row, "save_steps"), steps=done)
    return None


def _wall(evidence: Evidence) -> Value | None:
    """Wall seconds from the first to the last stamped point, or steps times the printed step time."""
    progress = evidence["progress"]
    stamped = [row for row in training_points(progress) if row.time is not None]
    if len(stamped) > 1 and (stamped[-1].time or 0.0) > (stamped[0].time or 0.0):
        ends = [progress.value(row, "time") for row in (stamped[0], stamped[-1])]
        return derived((stamped[-1].time or 0.0) - (stamped[0].time or 0.0), *ends, unit="s")
    each, done = step_seconds(training_points(progress), progress), steps_done(progress, evidence["ends"])
    if each is None or done is None:
        return None
    return derived(each.number * done.number, each, done, unit="s")
