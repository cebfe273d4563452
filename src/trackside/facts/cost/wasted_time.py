"""One part of what a fault cost: a time span or a number of steps, times the allocated GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Value, derived
from trackside.facts.cost.allocation import Allocation, gpu_hours, hour, seconds_between
from trackside.finding import Claim, Sentence, WastedTime

ALL_WASTED = Sentence("assumes that nothing of it can be used")
NOTHING_BEFORE_TRAINING = Sentence("assumes that nothing done before the first training step can be used again")
UNSAVED = Sentence("no complete checkpoint appears in the log; if one exists, less was lost")
LAST_CHECKPOINT_COMPLETE = Sentence("assumes that the last checkpoint in the log is complete")
CHECKPOINT_COMPLETE_EVEN_STEPS = Sentence(
    "assumes that the last checkpoint in the log is complete, and equal step times"
)
ALL_WORK_SHOWN = Sentence("assumes that the log and the metrics show all work")
USELESS_AFTER_FAULT = Sentence("the training after the fault cannot be used")
USABLE_BEFORE_FAULT = Sentence("the training before it can be used: there is a checkpoint from before it")
CHECKPOINT_COMPLETE = Sentence("assumes that this checkpoint is complete and can be loaded")
EVEN_STEPS = Sentence("assumes equal step times")
EVEN_STEPS_OF_ATTEMPT = Sentence("assumes equal step times over the whole attempt")
STARTED_OVER = Sentence("the next attempt used nothing of it")
REPEATED_AFTER_CHECKPOINT = Sentence("everything after that checkpoint had to be repeated")
ONE_START = Sentence("an uninterrupted run would have had one startup")

BY_TIME = Sentence("{gpus} x {seconds:plain} s ({since} to {until}) / {hour:plain} s/h = {hours:plain} GPU-hours")
BY_STEPS = Sentence(
    "{gpus} x ({last:plain} - {first:plain}) steps x {pace:plain} s per step / {hour:plain} s/h = "
    "{hours:plain} GPU-hours"
)


@dataclass(frozen=True, slots=True)
class CostPart:
    """A part of what a fault cost: its kind in the document, its description and its assumption."""

    kind: str
    what: Sentence
    assumption: Sentence
    at_most: bool = False
    """Whether the assumption makes it an upper bound."""

    def wasted(self, hours: Value, formula: Claim, **values: Value) -> WastedTime:
        """The waste in GPU-hours; ``values`` fill the placeholders of its description."""
        return WastedTime(self.kind, hours, self.what(**values), formula, self.assumption(), self.at_most)


def waste_of_range(part: CostPart, allocation: Allocation, since: Value, until: Value, **values: Value) -> WastedTime:
    """The waste of a time span; ``values`` fill the other placeholders of its description."""
    first = (
        since
        if since.number >= allocation.start.number
        else derived(allocation.start.number, since, allocation.start, unit="time")
    )
    seconds = seconds_between(first, until)
    hours = gpu_hours(allocation.gpus, seconds)
    formula = BY_TIME(gpus=allocation.gpus, seconds=seconds, since=first, until=until, hour=hour(seconds), hours=hours)
    return part.wasted(hours, formula, **values)


def waste_of_steps(part: CostPart, allocation: Allocation, first: Value, last: Value, pace: Value) -> WastedTime:
    """The waste of a number of steps at a given pace, capped at the duration of the attempt."""
    rounded = derived(float(f"{pace.number:.4g}"), pace, unit="s")
    seconds = derived((last.number - first.number) * rounded.number, first, last, rounded, unit="s")
    seconds = derived(min(seconds.number, allocation.seconds), seconds, unit="s")
    hours = gpu_hours(allocation.gpus, seconds)
    formula = BY_STEPS(gpus=allocation.gpus, first=first, last=last, pace=rounded, hour=hour(seconds), hours=hours)
    return part.wasted(hours, formula, first=first, last=last)
