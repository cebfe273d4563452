"""What the attempts before the last gave, and what of them was done again. Pure."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence

from trackside.evidence import Evidence, Value, derived
from trackside.facts.cost.held import Held, attempt_span, hour, hours, length
from trackside.facts.cost.parts import span
from trackside.facts.cost.work import SLACK_S, lives
from trackside.facts.training.learning import number, step_seconds, training_points
from trackside.finding import Claim, Loss, claim
from trackside.model import Attempt, Event, Run

SAVED_WITHIN = 20
"""Lines after an attempt's last training point in which its last checkpoint is told."""
EARLIER_SAYS: Mapping[str, str] = {
    "thrown_away": "an attempt of which nothing was used: the next one started over",
    "redone": "steps {first} to {last} of an attempt, which the next one did again",
    "by_attempt": "{gpus} x {lasted:plain} s of the attempt x ({last:plain} - {first:plain}) / "
    "({last:plain} - {begun:plain}) of its steps / {hour:plain} s an hour = {hours:plain} GPU-hours",
    "attempt_unknown": "what of attempt {attempt} was done again: its steps can't be told from the others'",
    "attempt_open": "what of attempt {attempt} was done again: its record tells of no end",
    "resumed_unknown": "what of attempt {attempt} was done again: the log doesn't tell from where the next one went on",
    "restart_unknown": "how long the start-up of attempt {attempt} took: the log doesn't tell when its training began",
}
"""Sentences."""


def earlier(evidence: Evidence, run: Run, held: Held, last_counts: bool = True) -> Iterator[Loss | Claim]:
    """A part for each attempt but the last of which not all was used, and for each start-up that was done again.

    ``last_counts``: whether the start-up of the last one counts here, and not as part of what it lost itself.
    """
    if len(run.attempts) < 2:
        return
    jobs = evidence["jobs"]
    parts = _by_attempt(training_points(evidence["progress"]), evidence["loads"].events, run.attempts)
    went_on = False
    for index, attempt in enumerate(run.attempts[:-1]):
        told = attempt_span(jobs, attempt.start)
        number = derived(attempt.number, held.start)
        if told is None or parts is None:
            if attempt.start is not None:
                yield claim("attempt_open" if told is None else "attempt_unknown", attempt=number)
            went_on = False
            continue
        lost = _lost(evidence, held, told, parts[index], parts[index + 1], number)
        yield lost
        thrown = isinstance(lost, Loss) and lost.what.key == "thrown_away"
        if went_on and not thrown:
            yield _restart(evidence, held, told, parts[index], number)
        went_on = not thrown
    if went_on and last_counts and parts is not None and parts[-1]:
        number = derived(run.attempts[-1].number, held.start)
        yield _restart(evidence, held, (held.start, held.end), parts[-1], number)


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
    evidence: Evidence,
    held: Held,
    told: tuple[Value, Value],
    own: Sequence[Event],
    after: Sequence[Event],
    attempt: Value,
) -> Loss | Claim:
    """What the next attempt did again of this one, or that it isn't told."""
    steps, following = ([row for row in rows if number(row, "step") is not None] for rows in (own, after))
    if not own:
        return span("thrown_away", held.during(*told), *told)
    if not steps or not following:
        return claim("attempt_unknown", attempt=attempt)
    frame = evidence["progress"]
    begun, last, first = (frame.value(row, "step") for row in (steps[0], steps[-1], following[0]))
    if first.number <= begun.number:
        return span("thrown_away", held.during(*told), *told)
    loaded = _loaded(evidence, steps[-1], following[0])
    if loaded is not None and (saved := _reached(evidence, steps, loaded)) is not None:
        return span("since_loaded", held.during(*told), saved, told[1], first=loaded)
    first = loaded or first
    if loaded is None and first.number > last.number:  # somewhere between two points: from where is not told
        return claim("resumed_unknown", attempt=attempt)
    lasted = length(*told)
    share = max(0.0, last.number - first.number) / (last.number - begun.number) if last.number > begun.number else 0.0
    seconds = derived(round(share * lasted.number, 1), lasted, begun, last, first, unit="s")
    lost = hours(held.gpus, seconds)
    values = {"gpus": held.gpus, "lasted": lasted, "begun": begun, "first": first, "last": last}
    formula = claim("by_attempt", **values, hour=hour(lasted), hours=lost)
    return Loss("attempt", lost, claim("redone", first=first, last=last), formula, claim("assume_even"))


def _loaded(evidence: Evidence, last: Event, first: Event) -> Value | None:
    """The step of the checkpoint that was loaded between the last point of one attempt and the first of the next."""
    frame = evidence["loads"]
    for row in reversed(frame.events):
        step = number(row, "step")
        within = (row.at.path == first.at.path and row.at.line < first.at.line) and (
            row.at.path != last.at.path or row.at.line > last.at.line
        )
        if within and step is not None and step <= (number(first, "step") or 0.0):
            return frame.value(row, "step")
    return None


def _reached(evidence: Evidence, points: Sequence[Event], step: Value) -> Value | None:
    """When an attempt had done a step: the time of the checkpoint of it, else of the training point."""
    for name, rows in (("saves", evidence["saves"].events), ("progress", points)):
        for row in rows:
            inside = points[0].at.path != row.at.path or row.at.line <= points[-1].at.line + SAVED_WITHIN
            if number(row, "step") == step.number and row.time is not None and inside:
                return evidence[name].value(row, "time", "time")
    return None


def _restart(
    evidence: Evidence, held: Held, told: tuple[Value, Value], own: Sequence[Event], attempt: Value
) -> Loss | Claim:
    """The start-up of an attempt that went on from where another had come to."""
    starts = evidence["starts"]
    first = next((row for row in own if row.time is not None), None)
    begun = [
        starts.value(row, "time", "time")
        for row in starts.events
        if row.time is not None and first is not None and told[0].number <= row.time <= (first.time or 0.0)
    ]
    if not begun and first is not None and (first.time or 0.0) >= told[0].number:
        step, pace = number(first, "step"), step_seconds(own, evidence["progress"])
        loads = [n for row in evidence["loads"].events if (n := number(row, "step")) is not None and n <= (step or 0.0)]
        if step is not None and pace is not None and loads:
            time = evidence["progress"].value(first, "time", "time")
            began = time.number - (step - loads[-1]) * pace.number
            begun = [derived(max(told[0].number, began), time, pace, unit="time")]
    if not begun:
        return claim("restart_unknown", attempt=attempt)
    return span("restart", held.during(*told), told[0], begun[-1])
