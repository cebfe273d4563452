"""How far the run came, in the words of its log: the same in the evidence of every family and in the line above it."""

from __future__ import annotations

from trackside.evidence import Value
from trackside.facts.training.learning import Trajectory, place_of
from trackside.finding import Claim, Sentence

REACHES = Sentence("the log reaches {place}", running="the log has reached {place} so far")
REACHES_OF = Sentence(
    "the log reaches {place} of {planned:plain}", running="the log has reached {place} of {planned:plain} so far"
)


def last_position(trajectory: Trajectory) -> Value | None:
    """The last step of the log, or its last epoch if it prints no step. It is a position, not a count: some programs
    count from 0."""
    done, last = trajectory.done, trajectory.last
    if last is not None and (done is None or done.value == last.get("step")):
        place = place_of(trajectory.progress, last)
        if not place.unit:
            return None
        return Value(place.value, place.cites, "epoch") if trajectory.in_epochs else place
    return None if done is None else Value(done.value, done.cites, "step")


def steps_of_plan(trajectory: Trajectory, place: Value) -> Value | None:
    """The planned steps if the place is a step, or the planned epochs if it is an epoch; None if they are not known."""
    planned = trajectory.planned
    if planned is None or isinstance(place.value, str):
        return None
    if place.unit == "epoch" and (trajectory.last is None or trajectory.last.get("total_steps") != planned.value):
        return None
    return planned


def position_claims(trajectory: Trajectory) -> tuple[Claim, ...]:
    """The claim that the log reaches this step or epoch; empty if it names neither."""
    place = last_position(trajectory)
    if place is None:
        return ()
    planned = steps_of_plan(trajectory, place)
    return (REACHES(place=place) if planned is None else REACHES_OF(place=place, planned=planned),)
