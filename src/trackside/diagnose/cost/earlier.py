"""What the attempts before the last gave, and what of them was done again. Pure."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence

from trackside.diagnose.cost.held import Held, attempt_span, hour, hours, length
from trackside.diagnose.cost.parts import span
from trackside.diagnose.cost.work import SLACK_S, lives
from trackside.diagnose.family import Evidence, claim
from trackside.diagnose.training.learning import number, training_points
from trackside.model import Attempt, Claim, Event, Loss, Run, Value
from trackside.query import derived

EARLIER_SAYS: Mapping[str, str] = {
    "thrown_away": "an attempt of which nothing was used: the next one started over",
    "redone": "steps {first} to {last} of an attempt, which the next one did again",
    "by_attempt": "{gpus} x {lasted:plain} s of the attempt x ({last:plain} - {first:plain}) / "
    "({last:plain} - {begun:plain}) of its steps / {hour:plain} s = {hours:plain} GPU-hours",
    "attempt_unknown": "what of attempt {attempt} was done again: its steps can't be told from the others'",
}
"""Sentences."""


def earlier(evidence: Evidence, run: Run, held: Held) -> Iterator[Loss | Claim]:
    """A part for each attempt but the last of which not all was used."""
    if len(run.attempts) < 2:
        return
    jobs = evidence["jobs"]
    parts = _by_attempt(training_points(evidence["progress"]), evidence["loads"].events, run.attempts)
    for index, attempt in enumerate(run.attempts[:-1]):
        told = attempt_span(jobs, attempt.start)
        if told is None:
            continue
        if parts is None:
            yield claim("attempt_unknown", attempt=derived(attempt.number, told[0]))
            continue
        lost = _lost(evidence, held, told, parts[index], parts[index + 1])
        yield lost if lost is not None else claim("attempt_unknown", attempt=derived(attempt.number, told[0]))


def _by_attempt(
    points: Sequence[Event], loads: Sequence[Event], attempts: Sequence[Attempt]
) -> list[list[Event]] | None:
    """The points of each attempt, by their times, else by where steps go back or state was restored; None where none of
    these tells."""
    stamped = [row for row in points if row.time is not None]
    if len(stamped) == len(points) and points:
        spans = [(each.start, each.end) for each in attempts]
        return [
            [
                row
                for row in points
                if (start or 0.0) - SLACK_S <= (row.time or 0.0) <= (end if end is not None else 1e12) + SLACK_S
            ]
            for start, end in spans
        ]
    for parts in (lives(points), _restored(points, loads)):
        if len(parts) == len(attempts):
            return parts
    return None


def _restored(points: Sequence[Event], loads: Sequence[Event]) -> list[list[Event]]:
    """The points between the places of one log at which state was restored."""
    if len({row.at.path for row in (*points, *loads)}) != 1:
        return []
    lines = [row.at.line for row in loads]
    parts: list[list[Event]] = [[] for _ in range(len(lines) + 1)]
    for row in points:
        parts[bisect(lines, row.at.line)].append(row)
    return [part for part in parts if part]


def _lost(
    evidence: Evidence, held: Held, told: tuple[Value, Value], own: Sequence[Event], after: Sequence[Event]
) -> Loss | None:
    """What the next attempt did again of this one; None where that isn't told."""
    steps, following = ([row for row in rows if number(row, "step") is not None] for rows in (own, after))
    if not own:
        return span("thrown_away", held.during(*told), *told)
    if not steps or not following:
        return None
    frame = evidence["progress"]
    begun, last, first = (frame.value(row, "step") for row in (steps[0], steps[-1], following[0]))
    if first.number <= begun.number:
        return span("thrown_away", held.during(*told), *told)
    lasted = length(*told)
    share = max(0.0, last.number - first.number) / (last.number - begun.number) if last.number > begun.number else 0.0
    seconds = derived(round(share * lasted.number, 1), lasted, begun, last, first, unit="s")
    lost = hours(held.gpus, seconds)
    values = {"gpus": held.gpus, "lasted": lasted, "begun": begun, "first": first, "last": last}
    formula = claim("by_attempt", **values, hour=hour(lasted), hours=lost)
    return Loss("attempt", lost, claim("redone", first=first, last=last), formula, claim("assume_even"))
