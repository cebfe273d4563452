"""From raw progress lines to one training trajectory: the best series of each file, the files joined, missing steps
filled in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

from trackside.logs.alike_lines import SERIES_IDS
from trackside.logs.pattern import PRECEDENCE, generic_ids, parsers, redrawing_ids
from trackside.logs.series import PointSeries
from trackside.logs.stored_series import Extent
from trackside.model import Event

MAX_POINTS_PER_SERIES = 50_000
"""Above this, every second interior point of a series is dropped, repeatedly."""
MAX_POINTS = 200_000
"""Above this for all series together, every second interior point of each is dropped, repeatedly."""
MIN_DIFFERING_STEPS, MIN_DIFFERING_SHARE, MAX_LOSS_DIFFERENCE_RATIO = 3, 0.8, 0.01
"""Two files are two trainings if their losses differ, by more than this ratio, at this many of the steps that both print
and at this share of them."""
SPARSE_RATIO = 50
"""How many times as many points make a series the better description of a run."""
STRAY_RATIO = 8
"""How many times as many lines that begin alike show that the losses of a custom loop were read of single lines; not if those
lines begin alike, too: then they are the means of epochs."""
MAX_SUMMARIES_PER_STEP = 2
"""Epochs' means for each printed step up to which only the steps are the training's points, if the two are printed in
turn: the means may have another scale."""
MAX_COMPARED_FILES = 8
"""Files of which the losses are compared."""
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d+)/")


class Trajectories:
    """Takes raw progress events of all files; gives the distinct logged steps of some of them.

    Memory is bounded: above a limit, points between the first and the last are thinned out, but never the ends, the
    extremes or the first non-finite ones.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], PointSeries] = {}

    def add(self, event: Event) -> None:
        """Add one raw point to the series of its file and parser; a series at its limit is thinned."""
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
        """The series of each file and parser, without lines that begin alike unless they describe the run."""
        by_path: dict[str, list[PointSeries]] = {}
        for series in self._series.values():
            by_path.setdefault(series.path, []).append(series)
        chosen = {path: _best_series(of_path).parser for path, of_path in by_path.items()}
        return tuple(
            series
            for series in self._series.values()
            if series.parser not in SERIES_IDS or series.parser == chosen[series.path]
        )

    def add_series(self, series: PointSeries) -> None:
        """Add a complete series, as :meth:`series` returned it."""
        self._series[series.path, series.parser] = series
        while sum(other.size for other in self._series.values()) > MAX_POINTS:
            largest = max(self._series.values(), key=lambda series: series.size)
            before = largest.size
            largest.thin()
            if largest.size == before:  # all its points are pinned
                break

    def steps_start_over(self, path: str) -> bool:
        """Whether the steps of a file start over."""
        return any(series.part for (other, _), series in self._series.items() if other == path)

    def parts(self, path: str) -> list[tuple[int, int]]:
        """Line and run part of each point of a file's best series, in order."""
        candidates = [series for (other, _), series in self._series.items() if other == path]
        if not candidates:
            return []
        parts = [
            (point.at.line, part if isinstance(part := point.fields.get("run_part"), int) else 0)
            for point in _best_series(candidates).points()
        ]
        return sorted(parts)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that contain logged steps."""
        return tuple(dict.fromkeys(path for path, _ in self._series))

    def point_of_other_training(self, paths: frozenset[str]) -> Event | None:
        """A point of a file that :meth:`points` omits although it shows another training than the fullest file: both
        print losses, neither names a rank, and at several equal steps the losses differ."""
        candidates = [series for (path, _), series in self._series.items() if path in paths and series.has_loss]
        candidates = sorted((series for series in candidates if series.rank == 0), key=_fullness_key, reverse=True)
        if not candidates:
            return None
        reference = _losses_by_step(candidates[0])
        for other in candidates[1:MAX_COMPARED_FILES]:
            losses = _losses_by_step(other) if other.path != candidates[0].path else {}
            shared = sorted(reference.keys() & losses.keys())
            differing_steps = [step for step in shared if _losses_differ(reference[step], losses[step])]
            if len(differing_steps) >= MIN_DIFFERING_STEPS and len(differing_steps) >= MIN_DIFFERING_SHARE * len(
                shared
            ):
                return losses[differing_steps[0]]
        return None

    def points(self, paths: frozenset[str] | None = None) -> list[Event]:
        """The distinct points of these files (None: of all files), in training order."""
        candidates: dict[str, list[PointSeries]] = {}
        for (path, _), series in self._series.items():
            if paths is None or path in paths:
                candidates.setdefault(path, []).append(series)
        return list(_join_files([_best_series(of_path) for of_path in candidates.values()]))


def _best_series(candidates: list[PointSeries]) -> PointSeries:
    """The series of one file that describes the run: that of lines that begin alike only if the readers of losses found none, or
    single ones."""
    alike = sorted((series for series in candidates if series.parser in SERIES_IDS), key=lambda series: -series.count)
    read = [series for series in candidates if series.parser not in SERIES_IDS]
    best = _best_of_readers(read) if read else alike[0]
    if not alike:
        return best
    is_weak = not best.has_loss or (_is_fallback(best) and best.count < alike[0].count) or _is_stray(best, alike)
    return alike[0] if is_weak else best


def _best_of_readers(candidates: list[PointSeries]) -> PointSeries:
    """Of bars and lines of custom loops, one of few losses does not describe the run if another has many, and lines with as many
    losses as a bar print them with more digits."""
    most = max((series.count for series in candidates if series.has_loss and series.parser in generic_ids()), default=0)
    dense = [
        series for series in candidates if series.parser not in generic_ids() or series.count * SPARSE_RATIO >= most
    ]
    best = min(dense, key=_preference_key)
    lines = [series for series in dense if series.has_loss and series.parser in generic_ids() - redrawing_ids()]
    if best.parser in generic_ids() & redrawing_ids():
        return next((series for series in lines if best.count <= series.count < 2 * best.count), best)
    return best


def _is_fallback(series: PointSeries) -> bool:
    """Whether its points describe the run only if no others do."""
    return math.isinf(_precedence().get(series.parser, PRECEDENCE))


def _is_stray(series: PointSeries, alike: list[PointSeries]) -> bool:
    """Whether the losses of a custom loop are few single ones, compared with lines that begin alike; ``alike``: the longest
    first."""
    is_of_lines = series.parser in generic_ids() - redrawing_ids()
    begin_alike = any(other.count >= series.count for other in alike[1:])
    return is_of_lines and not begin_alike and series.count * STRAY_RATIO <= alike[0].count


def _preference_key(series: PointSeries) -> tuple[bool, float, int]:
    """Sort key of the series of one file: the smallest describes the run."""
    return (not series.has_loss, _precedence().get(series.parser, PRECEDENCE), -series.count)


@cache
def _precedence() -> dict[str, float]:
    """Id of a parser -> its precedence; infinite for ids of fallback points."""
    fallbacks = {series_id: math.inf for parser in parsers() for series_id in parser.fallback_ids}
    return fallbacks | {parser.id: parser.precedence for parser in parsers()}


def _join_files(files: list[PointSeries]) -> Iterable[Event]:
    """The points of several files: copies of one another count once; attempts and continuations follow each other."""
    if len(files) <= 1:
        return _clean_points(files[0]) if files else ()
    attempts: dict[int, list[PointSeries]] = {}
    for series in files:
        match = _ATTEMPT.search(series.path)
        attempts.setdefault(int(match[1]) if match else -1, []).append(series)
    other_files = attempts.pop(-1, [])
    fullest = [max(group, key=_fullness_key) for group in ([other_files] if other_files else [])]
    attempt_files = [max(attempts[number], key=_fullness_key) for number in sorted(attempts)]
    if not fullest or sum(file.count for file in attempt_files) > sum(file.count for file in other_files):
        return _chain_parts([_clean_points(file) for file in attempt_files])
    return _chain_parts(_consecutive_parts(other_files))


def _losses_by_step(series: PointSeries) -> dict[float, Event]:
    """step -> the point with its loss, without points that name a rank."""
    points = (point for point in _clean_points(series) if point.rank is None)
    steps = [
        (point.fields.get("step"), point) for point in points if isinstance(point.fields.get("loss"), (int, float))
    ]
    return {float(step): point for step, point in steps if isinstance(step, (int, float))}


def _losses_differ(first: Event, second: Event) -> bool:
    """Whether the losses of two points differ by more than MAX_LOSS_DIFFERENCE_RATIO; False if one has none."""
    a, b = first.fields["loss"], second.fields["loss"]
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        return False
    return abs(a - b) > MAX_LOSS_DIFFERENCE_RATIO * max(abs(a), abs(b))


def _fullness_key(series: PointSeries) -> tuple[bool, int, int, str]:
    """Sort key of the series of several files: the greatest shows the most of a training; of equal ones, that of the
    lowest MPI rank."""
    return (series.has_loss, series.count, -series.rank, series.path)


def _consecutive_parts(files: list[PointSeries]) -> list[list[Event]]:
    """The points of files without attempt numbers: the fullest file, and those before or after it whose steps or
    times do not overlap it."""
    chosen: list[tuple[Extent, list[Event]]] = []
    for series in sorted(files, key=_fullness_key, reverse=True):
        extent = series.extent  # logs of other ranks repeat the same points: most need not be loaded
        if extent is not None and not all(extent.is_disjoint(other) for other, _ in chosen):
            continue
        points = _clean_points(series)
        extent = _extent_of(points)
        if points and all(extent.is_disjoint(other) for other, _ in chosen):
            chosen.append((extent, points))
    have_times = all(extent.first_time < math.inf for extent, _ in chosen)
    chosen.sort(key=lambda item: item[0].first_time if have_times else item[0].lowest_step)
    return [points for _, points in chosen]


def _extent_of(points: list[Event]) -> Extent:
    """The steps and times between which points lie."""
    steps = [float(step) for p in points if isinstance(step := p.fields.get("step"), (int, float))]
    times = [p.time for p in points if p.time is not None]
    return Extent(*_min_max(steps), *_min_max(times))


def _min_max(values: list[float]) -> tuple[float, float]:
    """The lowest and the highest value; inverted infinities if there are none."""
    return (min(values), max(values)) if values else (math.inf, -math.inf)


def _chain_parts(parts: list[list[Event]]) -> Iterator[Event]:
    """The points of parts that follow each other; ``run_part`` grows by one at a part whose steps go back."""
    part, last_step = 0, -math.inf
    for points in parts:
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


def _clean_points(series: PointSeries) -> list[Event]:
    """The points of a series, without the summaries of epochs among printed steps, and with missing steps filled in."""
    points = series.points()
    if series.parser in generic_ids():
        has_step = ["step" in point.fields for point in points]
        n_steps = sum(has_step)
        counts = len({point.get("step") for point in points if "step" in point.fields}) > 1
        in_turn = counts and any(after and not before for before, after in pairwise(has_step))
        if n_steps * (1 + (MAX_SUMMARIES_PER_STEP if in_turn else 1)) >= len(points):
            points = [point for point in points if "step" in point.fields or not isinstance(point.get("epoch"), int)]
    return _fill_missing_steps(points)


def _fill_missing_steps(points: list[Event]) -> list[Event]:
    """Set the step of points without one where the known steps around them divide evenly; returns the points."""
    known_steps = [(index, step) for index, p in enumerate(points) if isinstance(step := p.fields.get("step"), int)]
    for (start, first), (stop, last) in pairwise(known_steps):
        gap, remainder = divmod(last - first, stop - start)
        if stop - start < 2 or remainder or gap <= 0:
            continue
        for index in range(start + 1, stop):
            step = first + gap * (index - start)
            points[index] = replace(points[index], fields={**points[index].fields, "step": step})
    return points
