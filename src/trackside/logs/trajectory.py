"""From raw progress lines to one training trajectory: the best witness in each file, the files joined, steps completed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

from trackside.logs.pattern import PRECEDENCE, parsers
from trackside.logs.series import Series
from trackside.model import Event

POINTS_PER_SERIES = 50_000
"""Beyond it, every second interior point of a series goes, and so on."""
POINTS = 200_000
"""The same for all series together."""
SHARED, ALIKE, COMPARED = 3, 0.01, 8
"""Equal steps at which two files' losses differ, and by which share, to be two trainings; files that are looked at."""
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d+)/")


class Trajectories:
    """Takes raw progress events of all files; gives the distinct training points of some of them.

    Memory is bounded: beyond a cap, points between the first and the last are thinned, never the ends,
    the extremes or the first non-finite ones.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def add(self, event: Event) -> None:
        """Take one raw point."""
        key = (event.at.path, event.parser)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(*key)
        series.add(event)
        if series.size > POINTS_PER_SERIES:
            series.thin()
        elif series.size % 1024 == 1023 and sum(one.size for one in self._series.values()) > POINTS:
            max(self._series.values(), key=lambda one: one.size).thin()

    def series(self) -> tuple[Series, ...]:
        """What each parser read in each file."""
        return tuple(self._series.values())

    def take(self, series: Series) -> None:
        """Take a series whole, as :meth:`series` gave it."""
        self._series[series.path, series.parser] = series
        while sum(one.size for one in self._series.values()) > POINTS:
            largest = max(self._series.values(), key=lambda one: one.size)
            before = largest.size
            largest.thin()
            if largest.size == before:  # all of it is pinned
                break

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that hold training points."""
        return tuple(dict.fromkeys(path for path, _ in self._series))

    def differing(self, paths: frozenset[str]) -> Event | None:
        """A point of a file that :meth:`points` leaves aside though it tells another training than the fullest one
        does: both print losses, neither says of which rank, and at several equal steps these differ."""
        told = [one for (path, _), one in self._series.items() if path in paths and one.loss_seen]
        told = sorted((one for one in told if one.rank == 0), key=_weight, reverse=True)
        if not told:
            return None
        full = _losses(told[0])
        for other in told[1:COMPARED]:
            losses = _losses(other) if other.path != told[0].path else {}
            shared = sorted(full.keys() & losses.keys())
            apart = [step for step in shared if _unlike(full[step], losses[step])]
            if len(apart) >= SHARED and len(apart) >= 0.8 * len(shared):
                return losses[apart[0]]
        return None

    def points(self, paths: frozenset[str] | None = None) -> list[Event]:
        """The distinct points of these files (all without), in training order."""
        chosen: dict[str, Series] = {}
        for (path, _), series in self._series.items():
            if (paths is None or path in paths) and (path not in chosen or _rank(series) < _rank(chosen[path])):
                chosen[path] = series
        return list(_joined(list(chosen.values())))


def _rank(series: Series) -> tuple[bool, float, int]:
    """Smaller tells the run better."""
    return (not series.loss_seen, _precedence().get(series.parser, PRECEDENCE), -series.seen)


@cache
def _precedence() -> dict[str, float]:
    asides = {parser.aside: math.inf for parser in parsers() if parser.aside}
    return asides | {parser.id: parser.precedence for parser in parsers()}


def _joined(files: list[Series]) -> Iterable[Event]:
    """The points of several files: copies of one another give one, attempts and continuations follow each other."""
    if len(files) <= 1:
        return _cleaned(files[0]) if files else ()
    attempts: dict[int, list[Series]] = {}
    for series in files:
        found = _ATTEMPT.search(series.path)
        attempts.setdefault(int(found[1]) if found else -1, []).append(series)
    whole = attempts.pop(-1, [])
    best = [max(group, key=_weight) for group in ([whole] if whole else [])]
    split = [max(attempts[number], key=_weight) for number in sorted(attempts)]
    if not best or sum(one.seen for one in split) > sum(one.seen for one in whole):
        return _chained([_cleaned(one) for one in split])
    return _chained(_sequence(whole))


def _losses(series: Series) -> dict[float, Event]:
    """The point with a loss of each step, of no rank that is told."""
    points = (point for point in _cleaned(series) if point.rank is None)
    told = [(point.fields.get("step"), point) for point in points if isinstance(point.fields.get("loss"), (int, float))]
    return {float(step): point for step, point in told if isinstance(step, (int, float))}


def _unlike(one: Event, other: Event) -> bool:
    a, b = one.fields["loss"], other.fields["loss"]
    return isinstance(a, (int, float)) and isinstance(b, (int, float)) and abs(a - b) > ALIKE * max(abs(a), abs(b))


def _weight(series: Series) -> tuple[bool, int, int, str]:
    return (series.loss_seen, series.seen, -series.rank, series.path)


def _sequence(files: list[Series]) -> list[list[Event]]:
    """Of files without attempt numbers: the fullest, and before or after it those whose steps or times don't overlap it."""
    kept: list[tuple[tuple[float, ...], list[Event]]] = []
    for series in sorted(files, key=_weight, reverse=True):
        ends = series.ends  # the logs of other ranks tell the same: most need not be looked at
        if ends is not None and not all(_apart(ends, other) for other, _ in kept):
            continue
        points = _cleaned(series)
        spans = _spans(points)
        if points and all(_apart(spans, other) for other, _ in kept):
            kept.append((spans, points))
    timed = all(spans[2] < math.inf for spans, _ in kept)
    kept.sort(key=lambda item: item[0][2] if timed else item[0][0])
    return [points for _, points in kept]


def _spans(points: list[Event]) -> tuple[float, ...]:
    steps = [float(s) for p in points if isinstance(s := p.fields.get("step"), (int, float))]
    times = [p.time for p in points if p.time is not None]
    return (*_ends(steps), *_ends(times))


def _ends(values: list[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (math.inf, -math.inf)


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    steps = (one[0] > other[1] > -math.inf) or (other[0] > one[1] > -math.inf)
    times = (one[2] > other[3] > -math.inf) or (other[2] > one[3] > -math.inf)
    return steps or times


def _chained(runs: list[list[Event]]) -> Iterator[Event]:
    """Points of parts that follow each other; a part whose steps go back counts ``run_part`` up."""
    part, top = 0, -math.inf
    for points in runs:
        first = next((s for p in points if isinstance(s := p.fields.get("step"), (int, float))), None)
        if first is not None and first <= top:
            part += 1
        for point in points:
            own = point.fields.get("run_part", 0)
            number = part + (own if isinstance(own, int) else 0)
            yield replace(point, fields={**point.fields, "run_part": number}) if number else point
            step = point.fields.get("step")
            top = step if isinstance(step, (int, float)) else top
        if points:
            last = points[-1].fields.get("run_part", 0)
            part += last if isinstance(last, int) else 0


def _cleaned(series: Series) -> list[Event]:
    """A series' points; an epoch's summary among printed steps is no point of its own."""
    points = series.points()
    if series.parser in ("custom", "tqdm"):
        stepped = [point for point in points if "step" in point.fields]
        if 2 * len(stepped) > len(points):
            points = stepped
    return _filled(points)


def _filled(points: list[Event]) -> list[Event]:
    """Steps between two known ones, where they divide evenly among the points between."""
    known = [(index, step) for index, p in enumerate(points) if isinstance(step := p.fields.get("step"), int)]
    for (start, low), (stop, high) in pairwise(known):
        gap, rest = divmod(high - low, stop - start)
        if stop - start < 2 or rest or gap <= 0:
            continue
        for index in range(start + 1, stop):
            step = low + gap * (index - start)
            points[index] = replace(points[index], fields={**points[index].fields, "step": step})
    return points
