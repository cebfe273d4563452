"""One of two runs that are compared, and one thing in which they do or don't differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Grid, Missing, Value
from trackside.facts.cost.allocation import Allocation
from trackside.facts.fact import Facts, Maybe
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import Trajectory
from trackside.finding import Finding, Verdict
from trackside.model import Event, Position, Run
from trackside.query import events, metric
from trackside.session import Session

MEASURED: Mapping[str, tuple[str, str, float]] = {
    "gpu_sm_active_ratio": ("SM activity", "", 0.1),
    "gpu_engine_active_ratio": ("engine activity", "", 0.1),
    "gpu_utilization_ratio": ("GPU utilisation", "", 0.1),
    "gpu_sm_clock_hertz": ("SM clock", "lowest", 0.03),
    "gpu_power_watts": ("power of a GPU", "lowest", 0.1),
    "gpu_temperature_celsius": ("temperature of a GPU", "highest", 0.15),
    "gpu_memory_used_bytes": ("memory of a GPU", "highest", 0.05),
    "training_tokens_per_second": ("tokens a second", "", 0.1),
    "training_samples_per_second": ("samples a second", "", 0.1),
    "training_step_seconds": ("time of a step, as measured", "highest", 0.1),
}
"""Metric -> (what it is called, which GPU stands for the odd one, share by which levels differ)."""


@dataclass(frozen=True)
class Side:
    """A session on a run. ``settings``: what its log says before the first training point, by
    name (:mod:`trackside.compare.settings`); None where its files were not at hand."""

    session: Session
    settings: Mapping[str, Setting] | None = None

    @property
    def verdict(self) -> Verdict:
        """What went wrong with it."""
        return self.session.verdict()

    @property
    def run(self) -> Run:
        """Its facts."""
        return self.session.run

    @property
    def primary(self) -> Finding:
        """What it was found to have."""
        return self.verdict.primary

    @cached_property
    def facts(self) -> Facts:
        """What follows from its evidence."""
        return self.session.facts

    @cached_property
    def trajectory(self) -> Maybe[Trajectory]:
        """Its training, by its log."""
        return self.facts.get(Trajectory)

    @property
    def points(self) -> tuple[Event, ...]:
        """The training points of its last life that holds at least two."""
        return () if isinstance(self.trajectory, Missing) else self.trajectory.curve.points

    @cached_property
    def progress(self) -> Frame:
        """All training points."""
        return Frame(events("progress"), "none") if isinstance(self.trajectory, Missing) else self.trajectory.progress

    @cached_property
    def plans(self) -> Frame:
        """What its log says of what was planned."""
        return Frame(events("training_plan"), "none") if isinstance(self.trajectory, Missing) else self.trajectory.plans

    def printed(self, kind: str) -> Frame:
        """Rows of its log."""
        answer = self.facts.answer(events(kind))
        return answer if isinstance(answer, Frame) else Frame(answer.query, "none")

    @cached_property
    def environment(self) -> dict[str, Value] | None:
        """Environment settings that its log shows to be in force; None if no log could show any."""
        flags = self.facts.answer(events("env_flag"))
        if not isinstance(flags, Frame):
            return None
        return {str(row.get("name")): flags.value(row, "value") for row in flags.events}

    @cached_property
    def allocation(self) -> Allocation | None:
        """The GPUs that it held; None if that isn't known."""
        allocation = self.facts.get(Allocation)
        return None if isinstance(allocation, Missing) else allocation

    def since_start(self, point: Event) -> float | None:
        """Seconds from its start to a line of its log; None where either tells no time."""
        start = self.run.start
        return None if start is None or point.time is None or point.time < start else point.time - start

    def recorded(self, name: str, unit: str = "") -> Value | None:
        """A field of the scheduler's record of its last attempt."""
        ending = self.facts.get(Ending)
        if isinstance(ending, Missing) or ending.job is None or ending.job.get(name) is None:
            return None
        return ending.jobs.value(ending.job, name, unit)

    @cached_property
    def _measured(self) -> Evidence:
        return self.facts.evidence({name: metric(name).over("run", "avg") for name in MEASURED})

    def grid(self, name: str) -> Grid | None:
        """One of :data:`MEASURED` over the run."""
        return self._measured.grid(name)


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of the log that says how the run was set up."""

    value: str
    at: Position
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One thing of both. ``differs``: None where they can't be compared, and ``why`` says why; ``rule`` is how they
    were. ``step`` or ``seconds`` (since the start): where the difference begins, for what has a beginning. ``name``:
    of what has a course, the label without where it begins, or up to where they go together."""

    topic: str
    label: str
    a: Value | None = None
    b: Value | None = None
    differs: bool | None = None
    rule: str = ""
    why: str = ""
    step: float | None = None
    seconds: float | None = None
    place: str = ""
    """The same in words, where neither of the two tells it: an epoch."""
    name: str = ""
    of: str = ""
    """The metric, or the field of a training point, that it is about."""
    follows: tuple[Row, ...] = ()
    """What was set up differently and may bring it along."""

    @property
    def parts(self) -> bool:
        """Whether it says from where on they differ."""
        return self.differs is True and (self.step is not None or self.seconds is not None or bool(self.place))


def either(topic: str, label: str, a: Value | None, b: Value | None, share: float = 0.0, why: str = "") -> Row:
    """A row of two values: figures differ by more than ``share`` of the larger one, names where they are not equal."""
    if a is None or b is None or a.value is None or b.value is None:
        silent = [letter for letter, told in (("A", a), ("B", b)) if told is None or told.value is None]
        missing = "neither run tells it" if len(silent) == 2 else f"run {silent[0]} does not tell it"
        return Row(topic, label, a, b, None, why=why or missing)
    if isinstance(a.value, (int, float)) and isinstance(b.value, (int, float)):
        apart = abs(a.number - b.number) > share * max(abs(a.number), abs(b.number))
        rule = f"figures more than {share:.0%} apart differ" if share else ""
        return Row(topic, label, a, b, apart, rule)
    return Row(topic, label, a, b, a.value != b.value)
