"""From raw progress lines to one training trajectory: the best series of each file, the files joined, missing steps
filled in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

from trackside.logs.pattern import PRECEDENCE, generic_ids, parsers
from trackside.logs.series import PointSeries
from trackside.model import Event

MAX_POINTS_PER_SERIES = 50_000
"""Above this, every second interior point of a series is dropped, repeatedly."""
MAX_POINTS = 200_000
"""The same for all series together."""
MIN_DIFFERING_STEPS, MAX_LOSS_DIFFERENCE_RATIO = 3, 0.01
"""Two files are two trainings if their losses differ at this many equal steps, by more than this share."""
MAX_COMPARED_FILES = 8
"""Files that are compared for that."""
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d+)/")


class Trajectories:
    """Takes raw progress events of all files; gives the distinct logged steps of some of them.

    Memory is bounded: above a limit, points between the first and the last are thinned out, but never the ends, the
    extremes or the first non-finite ones.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], PointSeries] = {}

    def add(self, event: Event) -> None:
        """Take one raw point."""
        key = (event.at.path, event.parser)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = PointSeries(*key)
        series.add(event)
        if series.size > MAX_POINTS_PER_SERIES:
            series.thin()
        elif series.size % 1024 == 1023 and sum(other.size for other in self._series.values()) > MAX_POINTS:
            max(self._series.values(), key=lambda series: series.size).thin()

    def series(self) -> tuple[PointSeries, ...]:
        """What each parser read in each file."""
        return tuple(self._series.values())

    def take(self, series: PointSeries) -> None:
        """Take a complete series, as :meth:`series` gave it."""
        self._series[series.path, series.parser] = series
        while sum(other.size for other in self._series.values()) > MAX_POINTS:
            largest = max(self._series.values(), key=lambda series: series.size)
            before = largest.size
            largest.thin()
            if largest.size == before:  # all its points are pinned
                break

    def start_over(self, path: str) -> bool:
        """Whether the steps of a file start over."""
        return any(series.part for (other, _), series in self._series.items() if other == path)

    def parts(self, path: str) -> list[tuple[int, int]]:
        """Line and run part of each point of a file's best series, in order."""
        candidates = [series for (other, _), series in self._series.items() if other == path]
        if not candidates:
            return []
        parts = [
            (point.at.line, part if isinstance(part := point.fields.get("run_part"), int) else 0)
            for point in min(candidates, key=_rank_key).points()
        ]
        return sorted(parts)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that contain logged steps."""
        return tuple(dict.fromkeys(path for path, _ in self._series))

    def differing(self, paths: frozenset[str]) -> Event | None:
        """A point of a file that :meth:`points` omits although it shows another training than the fullest file: both
        print losses, neither names a rank, and at several equal steps the losses differ."""
        candidates = [series for (path, _), series in self._series.items() if path in paths and series.has_loss]
        candidates = sorted((series for series in candidates if series.rank == 0), key=_fullness, reverse=True)
        if not candidates:
            return None
        reference = _losses(candidates[0])
        for other in candidates[1:MAX_COMPARED_FILES]:
            losses = _losses(other) if other.path != candidates[0].path else {}
            shared = sorted(reference.keys() & losses.keys())
            differing_steps = [step for step in shared if _losses_differ(reference[step], losses[step])]
            if len(differing_steps) >= MIN_DIFFERING_STEPS and len(differing_steps) >= 0.8 * len(shared):
                return losses[differing_steps[0]]
        return None

    def points(self, paths: frozenset[str] | None = None) -> list[Event]:
        """The distinct points of these files (None: of all files), in training order."""
        chosen: dict[str, PointSeries] = {}
        for (path, _), series in self._series.items():
            if (paths is None or path in paths) and (path not in chosen or _rank_key(series) < _rank_key(chosen[path])):
                chosen[path] = series
        return list(_join_files(list(chosen.values())))


def _rank_key(series: PointSeries) -> tuple[bool, float, int]:
    """Sort key of how well a series describes the run: smaller is better."""
    return (not series.has_loss, _precedence().get(series.parser, PRECEDENCE), -series.count)


@cache
def _precedence() -> dict[str, float]:
    fallbacks = {parser.fallback_id: math.inf for parser in parsers() if parser.fallback_id}
    return fallbacks | {parser.id: parser.precedence for parser in parsers()}


def _join_files(files: list[PointSeries]) -> Iterable[Event]:
    """The points of several files: copies of one another count once; attempts and continuations follow each other."""
    if len(files) <= 1:
        return _without_summaries(files[0]) if files else ()
    attempts: dict[int, list[PointSeries]] = {}
    for series in files:
        match = _ATTEMPT.search(series.path)
        attempts.setdefault(int(match[1]) if match else -1, []).append(series)
    other_files = attempts.pop(-1, [])
    fullest = [max(group, key=_fullness) for group in ([other_files] if other_files else [])]
    attempt_files = [max(attempts[number], key=_fullness) for number in sorted(attempts)]
    if not fullest or sum(file.count for file in attempt_files) > sum(file.count for file in other_files):
        return _chain([_without_summaries(file) for file in attempt_files])
    return _chain(_sequence(other_files))


def _losses(series: PointSeries) -> dict[float, Event]:
    """step -> the point with its loss, without points that name a rank."""
    points = (point for point in _without_summaries(series) if point.rank is None)
    steps = [
        (point.fields.get("step"), point) for point in points if isinstance(point.fields.get("loss"), (int, float))
    ]
    return {float(step): point for step, point in steps if isinstance(step, (int, float))}


def _losses_differ(first: Event, second: Event) -> bool:
    a, b = first.fields["loss"], second.fields["loss"]
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        return False
    return abs(a - b) > MAX_LOSS_DIFFERENCE_RATIO * max(abs(a), abs(b))


def _fullness(series: PointSeries) -> tuple[bool, int, int, str]:
    """Sort key: the series that shows most of a training is the greatest."""
    return (series.has_loss, series.count, -series.rank, series.path)


def _sequence(files: list[PointSeries]) -> list[list[Event]]:
    """The points of files without attempt numbers: the fullest file, and those before or after it whose steps or
    times do not overlap it."""
    chosen: list[tuple[tuple[float, ...], list[Event]]] = []
    for series in sorted(files, key=_fullness, reverse=True):
        extent = series.extent  # logs of other ranks repeat the same points: most need not be loaded
        if extent is not None and not all(_are_disjoint(extent, other) for other, _ in chosen):
            continue
        points = _without_summaries(series)
        spans = _spans(points)
        if points and all(_are_disjoint(spans, other) for other, _ in chosen):
            chosen.append((spans, points))
    timed = all(spans[2] < math.inf for spans, _ in chosen)
    chosen.sort(key=lambda item: item[0][2] if timed else item[0][0])
    return [points for _, points in chosen]


def _spans(points: list[Event]) -> tuple[float, ...]:
    """Lowest and highest step, first and last time of some points."""
    steps = [float(step) for p in points if isinstance(step := p.fields.get("step"), (int, float))]
    times = [p.time for p in points if p.time is not None]
    return (*_min_max(steps), *_min_max(times))


def _min_max(values: list[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (math.inf, -math.inf)


def _are_disjoint(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Whether the steps or the times of two spans do not overlap."""
    steps = (first[0] > second[1] > -math.inf) or (second[0] > first[1] > -math.inf)
    times = (first[2] > second[3] > -math.inf) or (second[2] > first[3] > -math.inf)
    return steps or times


def _chain(runs: list[list[Event]]) -> Iterator[Event]:
    """The points of parts that follow each other; a part whose steps go back increases ``run_part``."""
    part, last_step = 0, -math.inf
    for points in runs:
        first_step = next((step for p in points if isinstance(step := p.fields.get("step"), (int, float))), None)
        if first_step is not None and first_step <= last_step:
            part += 1
        for point in points:
            part_in_run = point.fields.get("run_part", 0)
            number = part + (part_in_run if isinstance(part_in_run, int) else 0)
            yield replace(point, fields={**point.fields, "run_part": number}) if number else point
            step = point.fields.get("step")
            last_step = step if isinstance(step, (int, float)) else last_step
        if points:
            last = points[-1].fields.get("run_part", 0)
            part += last if isinstance(last, int) else 0


def _without_summaries(series: PointSeries) -> list[Event]:
    """A series' points; an epoch's summary among printed steps is not a point."""
    points = series.points()
    if series.parser in generic_ids():
        stepped = [point for point in points if "step" in point.fields]
        if 2 * len(stepped) >= len(points):
            points = [point for point in points if "step" in point.fields or not isinstance(point.get("epoch"), int)]
    return _with_missing_steps(points)


def _with_missing_steps(points: list[Event]) -> list[Event]:
    """The points with missing steps filled in, if the known steps around them divide evenly."""
    known_steps = [(index, step) for index, p in enumerate(points) if isinstance(step := p.fields.get("step"), int)]
    for (start, first), (stop, last) in pairwise(known_steps):
        gap, remainder = divmod(last - first, stop - start)
        if stop - start < 2 or remainder or gap <= 0:
            continue
        for index in range(start + 1, stop):
            step = first + gap * (index - start)
            points[index] = replace(points[index], fields={**points[index].fields, "step": step})
    return points
