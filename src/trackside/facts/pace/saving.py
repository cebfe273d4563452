"""Checkpoints that a run saved, and whether saves are so frequent, or so slow, that they set its pace.

Shards, ranks and messages about one step or path are one checkpoint. Saves are compared with the steps completed in
this run, or with its wall time if their durations are printed. If the log times steps with and without a save, and
those with one take no longer, the saves do not set the pace, however many they are. A plan to save at nearly every step
counts if no save was printed.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.fact import Maybe, fact, or_none
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import events

SAVES_COUNTED = Sentence("the log shows {saves:saved checkpoints} in {steps}")
SAVES_PLANNED = Sentence("a checkpoint is saved every {every} steps, over {steps}")
SAVING_TIME = Sentence("saving took {share} of the wall time")
STEPS_TAKE_LONGER = Sentence("a step took {with_save} with a save before it and {without} without (medians)")
STEPS_TAKE_NO_LONGER = Sentence(
    "{saves:saved checkpoints} do not slow the training down: a step took {with_save} with a save before it and "
    "{without} without (medians)"
)


@dataclass(frozen=True)
class Limits:
    """Thresholds for too frequent saves."""

    min_steps: int = 10
    """Minimum number of steps for a meaningful ratio of saves to steps."""
    saves_per_step: float = 0.45
    """With at least this many saves per step, the run saves at every step or every second one."""
    steps_per_save: float = 2
    """With at most this many steps between two saves, the run saves at every step or every second one."""
    min_reached_share: float = 0.5
    """The steps that saves print are the training's own if the last one is at least this share of its last step; else
    they count something larger, such as epochs."""
    saving_share: float = 0.5
    """Saving sets the pace if it takes at least this share of the wall time."""
    min_compared_steps: int = 5
    """Minimum number of steps with a save before them, and of steps without, for a comparison of their times."""
    save_slowdown: float = 1.1
    """Saves slow the training down if the steps with one take at least this many times as long as those without."""
    min_interval_s: float = 5.0
    """Stamped times are compared if points are at least this far apart (median): most stamps are whole seconds."""
    continued_step: float = 20
    """A first point beyond this step belongs to a run that resumed another."""


@dataclass(frozen=True)
class FrequentSaves:
    """Saves that set the pace."""

    count: Value
    claims: tuple[Claim, ...]
    first: Event | None
    """The first save."""
    steps: Value | None
    """The steps in which so many checkpoints were saved; None if only their duration shows it."""
    share: Value | None
    """Share of the wall time that the saves took; None if no duration was printed."""
    is_timed: bool
    """Whether the log shows how long the saves take."""


@dataclass(frozen=True)
class StepTimes:
    """Median seconds per step of the steps with a save before them and of those without, where one kind follows the
    other: steps far apart may differ for other reasons."""

    with_save: Value
    without: Value

    @property
    def slowdown(self) -> float:
        """How many times as long a step with a save takes."""
        return self.with_save.number / self.without.number


@dataclass(frozen=True, eq=False)
class Saving:
    """The checkpoints of a run."""

    saves: Frame
    """All messages about a saved checkpoint."""
    trajectory: Maybe[Trajectory]
    ranks: int
    limits: Limits

    @cached_property
    def checkpoints(self) -> tuple[Event, ...]:
        """One event per checkpoint."""
        training = or_none(self.trajectory)
        return tuple(_distinct_checkpoints(self.saves.events, () if training is None else training.points, self.ranks))

    @property
    def total(self) -> Value:
        """Number of messages."""
        return self.saves.reduce("count")

    @property
    def count(self) -> Value:
        """Number of saved checkpoints."""
        return derived(len(self.checkpoints), self.total)

    @cached_property
    def storm(self) -> FrequentSaves | None:
        """Saves at nearly every step, or that take most of the wall time; None if neither is shown."""
        training = or_none(self.trajectory)
        steps = None if training is None else self._steps(training)
        if training is None or steps is None or steps.number < self.limits.min_steps or training.curve.counts_epochs:
            return None  # a checkpoint for each epoch is no storm
        if _evaluates_at_each(training):
            return None  # what is printed with an evaluation each time is an epoch, whatever it is called
        frequent, share = self._frequent_saves(training, steps), self._time_share(training)
        times = self.step_times
        if times is not None and times.slowdown < self.limits.save_slowdown:
            frequent = None
        if frequent is None and (share is None or share.number < self.limits.saving_share):
            return None
        claims = [] if frequent is None else [frequent]
        if frequent is not None and times is not None:
            claims.append(STEPS_TAKE_LONGER(with_save=times.with_save, without=times.without))
        claims += [] if share is None else [SAVING_TIME(share=share)]
        first = next(iter(self.checkpoints), None)
        is_timed = share is not None or times is not None
        return FrequentSaves(self.count, tuple(claims), first, None if frequent is None else steps, share, is_timed)

    @property
    def no_slowdown(self) -> Claim | None:
        """The claim that steps with a save take no longer than those without; None if they do or are not timed."""
        times = self.step_times
        if times is None or times.slowdown >= self.limits.save_slowdown:
            return None
        return STEPS_TAKE_NO_LONGER(saves=self.count, with_save=times.with_save, without=times.without)

    @cached_property
    def step_times(self) -> StepTimes | None:
        """The times of steps with and without a save, by the stamps of their points, else as printed; None if too few
        of either kind are timed."""
        training = or_none(self.trajectory)
        if training is None or len(training.points) < 2 * self.limits.min_compared_steps:
            return None
        by_stamps = training.interval_s >= self.limits.min_interval_s
        saves = sorted((row.at.path, row.at.line) for row in self.saves.events)
        lines = [(row.at.path, row.at.line) for row in training.points]
        saved = [bisect(saves, line) > bisect(saves, before) for before, line in pairwise(lines)]
        compared: dict[bool, list[tuple[float, Value]]] = {True: [], False: []}
        for index, (before, row) in enumerate(pairwise(training.points)):
            neighbors = saved[max(0, index - 1) : index + 2]
            value = _seconds_per_step(training.progress, before, row) if by_stamps else _printed_time(training, row)
            if value is not None and value.number > 0 and len(set(neighbors)) == 2:
                compared[saved[index]].append((value.number, value))
        if min(map(len, compared.values())) < self.limits.min_compared_steps:
            return None
        with_save, without = (
            sorted(compared[kind], key=lambda pair: pair[0])[len(compared[kind]) // 2][1] for kind in (True, False)
        )
        return StepTimes(with_save, without)

    def _steps(self, trajectory: Trajectory) -> Value | None:
        """Steps completed in this run: from the first point's step to the last's if it resumed another."""
        done, saved = trajectory.done, [row for row in self.saves.events if numeric_field(row, "step") is not None]
        if done is None and saved:  # points without a step: the checkpoints' own count
            done = self.saves.value(saved[-1], "step", "steps")
        first = numeric_field(trajectory.points[0], "step") if trajectory.points else None
        if done is None or first is None or first <= self.limits.continued_step:
            return done
        return derived(done.number - first, done, trajectory.progress.value(trajectory.points[0], "step"), unit="steps")

    def _frequent_saves(self, trajectory: Trajectory, steps: Value) -> Claim | None:
        """Saves counted at nearly every step, or a plan for that."""
        limits, plans = self.limits, trajectory.plans
        if len(self.checkpoints) >= limits.saves_per_step * steps.number:
            return SAVES_COUNTED(saves=self.count, steps=steps)
        saved = sorted({step for row in self.checkpoints if (step := numeric_field(row, "step")) is not None})
        if saved and saved[-1] < limits.min_reached_share * steps.number:
            saved = []
        gaps = sorted(after - before for before, after in pairwise(saved))
        if len(gaps) >= limits.min_steps and gaps[len(gaps) // 2] <= limits.steps_per_save:
            return SAVES_COUNTED(saves=self.count, steps=steps)
        for row in plans.events:
            every = numeric_field(row, "save_steps")
            if every is not None and 0 < every <= limits.steps_per_save and not self.checkpoints:
                return SAVES_PLANNED(every=plans.value(row, "save_steps"), steps=steps)
        return None

    def _time_share(self, trajectory: Trajectory) -> Value | None:
        """Share of the wall time that the saves took, as printed."""
        seconds, wall = sum(numeric_field(row, "seconds") or 0.0 for row in self.checkpoints), _wall_seconds(trajectory)
        if not seconds or wall is None or len(self.checkpoints) <= 2:
            return None
        return derived(round(seconds / wall.number, 2), self.total, wall, unit="share")


@fact({"saves": events("checkpoint_saved")}, limits=Limits())
def saving(evidence: Evidence, trajectory: Maybe[Trajectory], run: Run, limits: Limits) -> Saving:
    """Needs no particular input; empty if no save was printed."""
    return Saving(evidence["saves"], trajectory, run.n_ranks or 1, limits)


def _evaluates_at_each(training: Trajectory) -> bool:
    """Whether each line of a logged step prints an evaluation, too."""
    evaluated = {(row.at.path, row.at.line) for row in training.evaluations.events}
    return bool(training.points) and all((row.at.path, row.at.line) in evaluated for row in training.points)


def _wall_seconds(trajectory: Trajectory) -> Value | None:
    """Wall seconds from the first to the last stamped point, or steps times the printed step time."""
    stamped = [row for row in trajectory.points if row.time is not None]
    if len(stamped) > 1 and (stamped[-1].time or 0.0) > (stamped[0].time or 0.0):
        ends = [trajectory.progress.value(row, "time") for row in (stamped[0], stamped[-1])]
        return derived((stamped[-1].time or 0.0) - (stamped[0].time or 0.0), *ends, unit="s")
    step_s, done = trajectory.step_seconds, trajectory.done
    if step_s is None or done is None:
        return None
    return derived(step_s.number * done.number, step_s, done, unit="s")


def _seconds_per_step(progress: Frame, before: Event, row: Event) -> Value | None:
    """Wall seconds per step between two stamped points."""
    first, last = numeric_field(before, "step"), numeric_field(row, "step")
    if before.time is None or row.time is None or first is None or last is None or last <= first:
        return None
    sources = (progress.value(point, field) for point in (before, row) for field in ("time", "step"))
    return derived((row.time - before.time) / (last - first), *sources, unit="s")


def _printed_time(training: Trajectory, row: Event) -> Value | None:
    """Seconds per step as the point prints them."""
    if numeric_field(row, "step_time_s") is None:
        return None
    return training.progress.value(row, "step_time_s", "s")


def _distinct_checkpoints(saves: Sequence[Event], points: Sequence[Event], ranks: int) -> list[Event]:
    """One event per checkpoint: shards, ranks and messages of the same step or path count once.

    Without a step, each further message of the same writer about the same path is another checkpoint, unless every rank
    may have written one of them.
    """
    messages: Counter[object] = Counter()
    checkpoints: dict[object, Event] = {}
    for row in saves:
        step, path = row.get("step"), row.get("path")
        key: object = step
        if step is None:
            writer = row.at.path, row.rank, path
            messages[writer] += 1
            key = path or "", messages[writer]
        checkpoints.setdefault(key, row)
    unnamed = [row for row in checkpoints.values() if row.get("step") is None]
    copies = _messages_per_checkpoint(unnamed, points, ranks)
    named = [row for row in checkpoints.values() if row.get("step") is not None]
    return sorted([*named, *unnamed[::copies]], key=lambda row: (row.at.path, row.at.line))


def _messages_per_checkpoint(saves: Sequence[Event], points: Sequence[Event], ranks: int) -> int:
    """Maximum number of messages per checkpoint: one per rank if nothing distinguishes the ranks and each part of the
    log between two points has a multiple of the number of ranks."""
    if ranks < 2 or any(row.rank is not None for row in saves):
        return 1
    lines = sorted((point.at.path, point.at.line) for point in points)
    between = Counter(bisect(lines, (row.at.path, row.at.line)) for row in saves)
    return ranks if all(count % ranks == 0 for count in between.values()) else 1
