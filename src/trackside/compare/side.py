"""One side of a comparison (:class:`Side`), and one compared quantity (:class:`ComparedRow`)."""

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
    "gpu_utilization_ratio": ("GPU utilization", "", 0.1),
    "gpu_sm_clock_hertz": ("SM clock", "lowest", 0.03),
    "gpu_power_watts": ("GPU power", "lowest", 0.1),
    "gpu_temperature_celsius": ("GPU temperature", "highest", 0.15),
    "gpu_memory_used_bytes": ("GPU memory", "highest", 0.05),
    "training_tokens_per_second": ("tokens per second", "", 0.1),
    "training_samples_per_second": ("samples per second", "", 0.1),
    "training_step_seconds": ("measured step time", "highest", 0.1),
}
"""Metric -> (label, whether the GPU or rank with the lowest or the highest median is compared as well, minimum
difference as a share of the level)."""


@dataclass(frozen=True)
class Side:
    """A session on one run. ``settings``: the settings that its log prints before the first logged step, by name
    (:mod:`trackside.compare.settings`); None if the log files are not available."""

    session: Session
    settings: Mapping[str, RunSetting] | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the run."""
        return self.session.verdict()

    @property
    def run(self) -> Run:
        """The run."""
        return self.session.run

    @property
    def primary(self) -> Finding:
        """The primary finding."""
        return self.verdict.primary

    @cached_property
    def facts(self) -> Facts:
        """The facts derived from its evidence."""
        return self.session.facts

    @cached_property
    def trajectory(self) -> Maybe[Trajectory]:
        """The training trajectory that its log shows."""
        return self.facts.get(Trajectory)

    @property
    def points(self) -> tuple[Event, ...]:
        """The logged steps of the last attempt that has at least two."""
        return () if isinstance(self.trajectory, Missing) else self.trajectory.curve.points

    @cached_property
    def progress(self) -> Frame:
        """All logged steps."""
        return Frame(events("progress"), "none") if isinstance(self.trajectory, Missing) else self.trajectory.progress

    @cached_property
    def plans(self) -> Frame:
        """The training plans that its log prints."""
        return Frame(events("training_plan"), "none") if isinstance(self.trajectory, Missing) else self.trajectory.plans

    def log_events(self, kind: str) -> Frame:
        """The log events of a kind."""
        answer = self.facts.answer(events(kind))
        return answer if isinstance(answer, Frame) else Frame(answer.query, "none")

    @cached_property
    def environment(self) -> dict[str, Value] | None:
        """Environment variables that its log shows to be in effect; None without a log."""
        flags = self.facts.answer(events("env_flag"))
        if not isinstance(flags, Frame):
            return None
        return {str(row.get("name")): flags.value(row, "value") for row in flags.events}

    @cached_property
    def allocation(self) -> Allocation | None:
        """The GPU allocation; None if unknown."""
        allocation = self.facts.get(Allocation)
        return None if isinstance(allocation, Missing) else allocation

    def since_start(self, point: Event) -> float | None:
        """Seconds from the start of the run to a log line; None if either time is unknown."""
        start = self.run.start
        return None if start is None or point.time is None or point.time < start else point.time - start

    def record_value(self, name: str, unit: str = "") -> Value | None:
        """A field of the scheduler's record of its last attempt."""
        ending = self.facts.get(Ending)
        if isinstance(ending, Missing) or ending.job is None or ending.job.get(name) is None:
            return None
        return ending.jobs.value(ending.job, name, unit)

    @cached_property
    def _measured(self) -> Evidence:
        return self.facts.evidence({name: metric(name).over("run", "avg") for name in MEASURED})

    def grid(self, name: str) -> Grid | None:
        """The samples of a metric of :data:`MEASURED` over the run; None if not sampled."""
        return self._measured.grid(name)


@dataclass(frozen=True, slots=True)
class RunSetting:
    """A setting printed in a log. ``text``: the line."""

    value: str
    at: Position
    text: str


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One compared quantity. ``differs``: None if the values cannot be compared, for the reason ``why``; ``rule``: how
    they were compared. ``step`` or ``seconds`` (since the start of the run): where the difference begins, if known.
    ``name``: for a series over steps or time, the label without the point of divergence."""

    topic: str
    label: str
    a: Value | None = None
    b: Value | None = None
    differs: bool | None = None
    rule: str = ""
    why: str = ""
    step: float | None = None
    seconds: float | None = None
    clock: str = ""
    """The run, A or B, from whose start ``seconds`` count, for a step that the other run reaches at another time; else
    empty."""
    epoch: str = ""
    """Where the difference begins, if neither its step nor its time is known: ``epoch 3``."""
    name: str = ""
    quantity: str = ""
    """The metric, or the field of a logged step."""
    follows: tuple[ComparedRow, ...] = ()
    """The differences in setup that may explain this one."""

    @property
    def diverges(self) -> bool:
        """Whether the values differ, and from which point on is known."""
        return self.differs is True and (self.step is not None or self.seconds is not None or bool(self.epoch))


def compare_values(
    topic: str, label: str, a: Value | None, b: Value | None, share: float = 0.0, why: str = ""
) -> ComparedRow:
    """A row of two values. Numbers differ if they are more than ``share`` of the larger one apart; other values if they
    are not equal. ``why``: the reason to give if a value is missing."""
    if a is None or b is None or a.value is None or b.value is None:
        unknown = [letter for letter, value in (("A", a), ("B", b)) if value is None or value.value is None]
        missing = "not known for either run" if len(unknown) == 2 else f"not known for run {unknown[0]}"
        return ComparedRow(topic, label, a, b, None, why=why or missing)
    if isinstance(a.value, (int, float)) and isinstance(b.value, (int, float)):
        differs = abs(a.number - b.number) > share * max(abs(a.number), abs(b.number))
        rule = f"values differ if they are more than {share:.0%} apart" if share else ""
        return ComparedRow(topic, label, a, b, differs, rule)
    return ComparedRow(topic, label, a, b, a.value != b.value)
