"""Two places that hold curves as one: files that were given, and the store of the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trackside.http.unavailable import SourceUnavailable
from trackside.stores.curves import Curves, Held, RolledUp, Wanted


class JoinedCurves(Curves):
    """The curves of both. Where both hold what is taken as one curve, it was measured once and is found twice: in
    windows that ``first`` has a value for, that one holds."""

    def __init__(self, first: Curves, second: Curves) -> None:
        self._parts = first, second
        self.name = f"{first.name} and {second.name}"
        self._offset = 1 + max((each.id for each in first.held()), default=-1)
        """The ids of the second's follow those of the first's."""
        self._held = [*first.held(), *(replace(each, id=each.id + self._offset) for each in second.held())]
        self._failed = {**_failed(second, first), **_failed(first, second)}

    @property
    def failed(self) -> Mapping[str, SourceUnavailable]:
        """What one of them can't look at and the other doesn't hold."""
        return self._failed

    def held(self) -> Sequence[Held]:
        return self._held

    def expect(self, wanted: Sequence[Wanted]) -> None:
        for place, part in enumerate(self._parts):
            part.expect([mine for each in wanted if (mine := self._of_part(each, place)).groups])

    def rollups(self, wanted: Sequence[Wanted]) -> list[RolledUp]:
        answers: list[list[RolledUp]] = []
        for place, part in enumerate(self._parts):
            mine = [self._of_part(each, place) for each in wanted]
            asked = iter(part.rollups([each for each in mine if each.groups]))
            answers.append([next(asked) if each.groups else (np.empty((0, each.width)), 0) for each in mine])
        merged = [self._merged(each, *both) for each, *both in zip(wanted, *answers, strict=True)]
        rests = [each.rest.wanted for each in merged if isinstance(each, _Merged) and each.rest is not None]
        counted = iter(self._parts[1].rollups(rests))
        return [
            each if isinstance(each, SourceUnavailable) else each.answer(None if each.rest is None else next(counted))
            for each in merged
        ]

    def _rows(self, wanted: Wanted, place: int) -> list[int]:
        """The groups that a part holds any series of."""
        return [
            row for row, ids in enumerate(wanted.groups) if any((id_ >= self._offset) == bool(place) for id_ in ids)
        ]

    def _of_part(self, wanted: Wanted, place: int) -> Wanted:
        """What of it a part is asked, in that part's ids."""
        less = self._offset if place else 0
        groups = [
            [id_ - less for id_ in wanted.groups[row] if (id_ >= self._offset) == bool(place)]
            for row in self._rows(wanted, place)
        ]
        return replace(wanted, groups=groups)

    def _merged(self, wanted: Wanted, first: RolledUp, second: RolledUp) -> _Merged | SourceUnavailable:
        """The answers of both as one."""
        values, known = np.full((2, len(wanted.groups), wanted.width), np.nan), 0
        for place, rolled in enumerate((first, second)):
            if isinstance(rolled, SourceUnavailable):
                return rolled
            values[place, self._rows(wanted, place)] = rolled[0]
            known += rolled[1]
        held, also = ~np.isnan(values[0]), ~np.isnan(values[1])
        np.copyto(values[0], values[1], where=~held)
        if isinstance(first, SourceUnavailable) or not (held & also).any():
            return _Merged(values[0], known)
        rest = _Rest.of(wanted, also & ~held)
        return _Merged(values[0], first[1], rest and replace(rest, wanted=self._of_part(rest.wanted, 1)))


@dataclass(frozen=True, slots=True)
class _Rest:
    """Cells that only the second part has a value for, where others are in both: how its samples are asked for."""

    wanted: Wanted
    inside: NDArray[np.bool_]
    """Which of the cells that are asked for."""

    @classmethod
    def of(cls, wanted: Wanted, cells: NDArray[np.bool_]) -> _Rest | None:
        """None without any."""
        rows, columns = np.flatnonzero(cells.any(axis=1)), np.flatnonzero(cells.any(axis=0))
        if not len(rows):
            return None
        first, end = int(columns[0]), int(columns[-1]) + 1
        start_ms, end_ms = (wanted.start_ms + at * wanted.step_ms for at in (first, end))
        groups = [wanted.groups[row] for row in rows.tolist()]
        return cls(Wanted(groups, start_ms, end_ms, wanted.step_ms, "count"), cells[rows, first:end])


@dataclass(frozen=True, slots=True)
class _Merged:
    """What two parts answered as one. ``samples``: those behind it, but for ``rest``."""

    values: NDArray[np.float64]
    samples: int
    rest: _Rest | None = None

    def answer(self, counted: RolledUp | None) -> RolledUp:
        """The whole. ``counted``: how many samples are behind the rest."""
        if counted is None or self.rest is None:
            return self.values, self.samples
        if isinstance(counted, SourceUnavailable):
            return counted
        return self.values, self.samples + int(np.nansum(counted[0][self.rest.inside]))


def _failed(part: Curves, other: Curves) -> Mapping[str, SourceUnavailable]:
    if not part.failed:
        return {}
    held = {each.series.metric for each in other.held()}
    return {metric: why for metric, why in part.failed.items() if metric not in held}
