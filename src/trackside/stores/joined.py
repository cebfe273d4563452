"""Combines two metric backends into one: the files that were given, and the site's store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trackside.http.unavailable import SourceUnavailable
from trackside.stores.metric_backend import MetricBackend, RollupRequest, RollupResult, SeriesInfo


class JoinedBackend(MetricBackend):
    """The series of both backends. A series that both hold was measured once and is found twice: in windows that
    ``first`` has a value for, that value is used."""

    def __init__(self, first: MetricBackend, second: MetricBackend) -> None:
        self._parts = first, second
        self.name = f"{first.name} and {second.name}"
        self._offset = 1 + max((info.id for info in first.series()), default=-1)
        """Added to the ids of the second backend, so that they follow those of the first."""
        self._series = [*first.series(), *(replace(info, id=info.id + self._offset) for info in second.series())]
        self._unavailable = {**_unavailable_in(second, first), **_unavailable_in(first, second)}

    @property
    def unavailable(self) -> Mapping[str, SourceUnavailable]:
        """What one backend cannot provide and the other does not hold."""
        return self._unavailable

    def series(self) -> Sequence[SeriesInfo]:
        return self._series

    def resolution_ms(self, first_ms: int, last_ms: int) -> int:
        return max(part.resolution_ms(first_ms, last_ms) for part in self._parts)

    def expect(self, requests: Sequence[RollupRequest]) -> None:
        for index, part in enumerate(self._parts):
            part.expect([share for request in requests if (share := self._share_of_part(request, index)).groups])

    def rollups(self, requests: Sequence[RollupRequest]) -> list[RollupResult]:
        answers: list[list[RollupResult]] = []
        for index, part in enumerate(self._parts):
            part_requests = [self._share_of_part(request, index) for request in requests]
            results = iter(part.rollups([request for request in part_requests if request.groups]))
            answers.append(
                [next(results) if request.groups else (np.empty((0, request.width)), 0) for request in part_requests]
            )
        merged = [self._merge(request, *both) for request, *both in zip(requests, *answers, strict=True)]
        count_requests = [
            answer.remainder.request
            for answer in merged
            if isinstance(answer, _MergedResult) and answer.remainder is not None
        ]
        counts = iter(self._parts[1].rollups(count_requests))
        return [
            answer
            if isinstance(answer, SourceUnavailable)
            else answer.answer(None if answer.remainder is None else next(counts))
            for answer in merged
        ]

    def _rows(self, request: RollupRequest, index: int) -> list[int]:
        """Indices of the groups that have a series in this part."""
        return [
            row for row, ids in enumerate(request.groups) if any((id_ >= self._offset) == bool(index) for id_ in ids)
        ]

    def _share_of_part(self, request: RollupRequest, index: int) -> RollupRequest:
        """The part's share of a request, with the part's own ids."""
        id_offset = self._offset if index else 0
        groups = [
            [id_ - id_offset for id_ in request.groups[row] if (id_ >= self._offset) == bool(index)]
            for row in self._rows(request, index)
        ]
        return replace(request, groups=groups)

    def _merge(
        self, request: RollupRequest, first: RollupResult, second: RollupResult
    ) -> _MergedResult | SourceUnavailable:
        """Both results merged into one."""
        values, samples = np.full((2, len(request.groups), request.width), np.nan), 0
        for index, result in enumerate((first, second)):
            if isinstance(result, SourceUnavailable):
                return result
            values[index, self._rows(request, index)] = result[0]
            samples += result[1]
        in_first, in_second = ~np.isnan(values[0]), ~np.isnan(values[1])
        np.copyto(values[0], values[1], where=~in_first)
        if isinstance(first, SourceUnavailable) or not (in_first & in_second).any():
            return _MergedResult(values[0], samples)
        remainder = _Remainder.of(request, in_second & ~in_first)
        return _MergedResult(
            values[0], first[1], remainder and replace(remainder, request=self._share_of_part(remainder.request, 1))
        )


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Cells that only the second part has a value for, while other cells are in both: the request that counts their
    samples."""

    request: RollupRequest
    counted_cells: NDArray[np.bool_]
    """Which of the requested cells count."""

    @classmethod
    def of(cls, request: RollupRequest, cells: NDArray[np.bool_]) -> _Remainder | None:
        """The remainder for these cells; None if there are none."""
        rows, columns = np.flatnonzero(cells.any(axis=1)), np.flatnonzero(cells.any(axis=0))
        if not len(rows):
            return None
        first, end = int(columns[0]), int(columns[-1]) + 1
        start_ms, end_ms = (request.start_ms + column * request.step_ms for column in (first, end))
        groups = [request.groups[row] for row in rows.tolist()]
        return cls(RollupRequest(groups, start_ms, end_ms, request.step_ms, "count"), cells[rows, first:end])


@dataclass(frozen=True, slots=True)
class _MergedResult:
    """The merged result of two parts. ``samples``: number of samples used, without those of ``remainder``."""

    values: NDArray[np.float64]
    samples: int
    remainder: _Remainder | None = None

    def answer(self, counts: RollupResult | None) -> RollupResult:
        """The complete result. ``counts``: the samples of the remainder."""
        if counts is None or self.remainder is None:
            return self.values, self.samples
        if isinstance(counts, SourceUnavailable):
            return counts
        return self.values, self.samples + int(np.nansum(counts[0][self.remainder.counted_cells]))


def _unavailable_in(part: MetricBackend, other: MetricBackend) -> Mapping[str, SourceUnavailable]:
    if not part.unavailable:
        return {}
    other_metrics = {info.series.metric for info in other.series()}
    return {metric: reason for metric, reason in part.unavailable.items() if metric not in other_metrics}
