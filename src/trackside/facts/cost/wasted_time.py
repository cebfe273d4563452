"""One part of what a fault cost: a time span or a number of steps, times the allocated GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Value, derived
from trackside.facts.cost.allocation import Allocation, gpu_hours, hour, length
from trackside.finding import Claim, Sentence, WastedTime

ALL_WASTED = Sentence("nothing of it is of use")
UNSAVED = Sentence("nothing was saved without a word in the log; a checkpoint that was would make it less")
SAVED = Sentence("the last checkpoint that the log tells of is whole")
SAVED_AND_EVEN = Sentence(
    "the last checkpoint that the log tells of is whole, and each step took as long as they mostly did"
)
IDLE = Sentence("no work was done that the log or the metrics don't show")
GONE_WRONG = Sentence("nothing that it trained after that is of use")
GOOD_BEFORE = Sentence("what was trained until then is of use: a checkpoint from before it can be gone back to")
GOOD_SAVE = Sentence("that checkpoint is whole, and can be gone back to")
EVEN_STEPS = Sentence("each step took as long as they mostly did")
EVEN_TIME = Sentence("its steps were spread evenly over its time")
STARTED_OVER = Sentence("the next attempt began anew: nothing of it was used")
LOADED = Sentence("all that came after that checkpoint had to be done again")
ONE_START = Sentence("without the interruption there would have been one start-up")

BY_TIME = Sentence("{gpus} x {seconds:plain} s, {since} to {until}, / {hour:plain} s an hour = {hours:plain} GPU-hours")
BY_STEPS = Sentence(
    "{gpus} x ({last:plain} - {first:plain}) steps x {pace:plain} s a step / {hour:plain} s an hour = "
    "{hours:plain} GPU-hours"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what a fault cost: its kind in the document, its description and its assumption."""

    kind: str
    what: Sentence
    assumption: Sentence
    at_most: bool = False
    """Whether the assumption makes it an upper bound."""

    def wasted(self, hours: Value, formula: Claim, **values: Value) -> WastedTime:
        """The waste in GPU-hours; ``values`` fill the placeholders of its description."""
        return WastedTime(self.kind, hours, self.what(**values), formula, self.assumption(), self.at_most)


def span(part: Part, allocation: Allocation, since: Value, until: Value, **values: Value) -> WastedTime:
    """The waste of a time span; ``values`` fill the other placeholders of its description."""
    first = (
        since
        if since.number >= allocation.start.number
        else derived(allocation.start.number, since, allocation.start, unit="time")
    )
    seconds = length(first, until)
    hours = gpu_hours(allocation.gpus, seconds)
    formula = BY_TIME(gpus=allocation.gpus, seconds=seconds, since=first, until=until, hour=hour(seconds), hours=hours)
    return part.wasted(hours, formula, **values)


def steps(part: Part, allocation: Allocation, first: Value, last: Value, pace: Value) -> WastedTime:
    """The waste of a number of steps at a given pace, capped at the duration of the attempt."""
    rounded = derived(float(f"{pace.number:.4g}"), pace, unit="s")
    seconds = derived((last.number - first.number) * rounded.number, first, last, rounded, unit="s")
    seconds = derived(min(seconds.number, allocation.seconds), seconds, unit="s")
    hours = gpu_hours(allocation.gpus, seconds)
    formula = BY_STEPS(gpus=allocation.gpus, first=first, last=last, pace=rounded, hour=hour(seconds), hours=hours)
    return part.wasted(hours, formula, first=first, last=last)
