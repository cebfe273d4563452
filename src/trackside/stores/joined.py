"""Two places that hold curves as one: files that were given, and the store of the site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trackside.stores.curves import Batching, Curves, Engine, Held, RolledUp, Wanted
from trackside.stores.unanswered import Unanswered


class JoinedCurves:
    """The curves of both. Where both hold what is taken as one curve, it was measured once and is found twice: in
    windows that ``first`` has a value for, that one holds."""

    def __init__(self, first: Curves, second: Curves) -> None:
        self._parts = first, second
        self.name = f"{first.name} and {second.name}"
        self._offset = 1 + max((each.id for each in first.held()), default=-1)
        """The ids of the second's follow those of the first's."""
        self._held = [*first.held(), *(replace(each, id=each.id + self._offset) for each in second.held())]

    def held(self) -> Sequence[Held]:
        """See :class:`trackside.stores.curves.Curves`."""
        return self._held

    def rollup(
        self, groups: Sequence[Sequence[int]], start_ms: int, end_ms: int, step_ms: int, how: Engine
    ) -> tuple[NDArray[np.float64], int]:
        """See :class:`trackside.stores.curves.Curves`."""
        rolled = self.rollups([Wanted(groups, start_ms, end_ms, step_ms, how)])[0]
        if isinstance(rolled, Unanswered):
            raise rolled
        return rolled

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """See :class:`trackside.stores.curves.Batching`."""
        for place, part in enumerate(self._parts):
            if isinstance(part, Batching):
                part.expect([mine for each in wanted if (mine := self._of_part(each, place)).groups])

    def rollups(self, wanted: Sequence[Wanted]) -> list[RolledUp]:
        """See :class:`trackside.stores.curves.Batching`."""
        answers: list[list[RolledUp]] = []
        for place, part in enumerate(self._parts):
            mine = [self._of_part(each, place) for each in wanted]
            asked = iter(_asked(part, [each for each in mine if each.groups]))
            answers.append([next(asked) if each.groups else _nothing(each) for each in mine])
        return [self._whole(each, *both) for each, *both in zip(wanted, *answers, strict=True)]

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

    def _whole(self, wanted: Wanted, first: RolledUp, second: RolledUp) -> RolledUp:
        """The answers of both, the second's first so that the first's stand above them."""
        values = np.full((len(wanted.groups), (wanted.end_ms - wanted.start_ms) // wanted.step_ms), np.nan)
        samples = 0
        for place, rolled in ((1, second), (0, first)):
            if isinstance(rolled, Unanswered):
                return rolled
            rows = self._rows(wanted, place)
            values[rows] = np.where(np.isnan(rolled[0]), values[rows], rolled[0])
            samples += rolled[1]
        return values, samples


def _nothing(wanted: Wanted) -> RolledUp:
    return np.empty((0, (wanted.end_ms - wanted.start_ms) // wanted.step_ms)), 0


def _asked(part: Curves, wanted: Sequence[Wanted]) -> Iterable[RolledUp]:
    if not wanted:
        return ()
    if isinstance(part, Batching):
        return part.rollups(wanted)
    return [part.rollup(each.groups, each.start_ms, each.end_ms, each.step_ms, each.how) for each in wanted]
