"""The HTTP API of a Prometheus-compatible server: the queries it supports, in pages that it accepts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from trackside.http.client import HttpClient
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.metric_server import MetricOptions
from trackside.stores.prometheus import matrix, promql
from trackside.stores.prometheus.matrix import RawSeries, Times, Values

T = TypeVar("T")
MAX_POINTS_PER_SERIES = 11_000
"""Maximum number of points per series that Prometheus returns at once."""
MAX_POINTS_PER_QUERY = 1_000_000
"""Maximum number of points of all series in one query: about 35 MB."""
MAX_POINT_BYTES = 96
"""Largest size of a point in an answer, with its share of the series' labels."""
_PROBE_TIME_MS = 1_700_000_040_000
"""A whole minute."""
_TOO_MUCH = re.compile(r"exceed|too many|too large|limit|maximum|max-|resolution", re.IGNORECASE)


class Page(NamedTuple):
    """Some windows of some series: they end at ``start_ms`` + step ... + ``width`` steps."""

    start_ms: int
    width: int
    series: Sequence[tuple[bytes, Values]]
    """Labels as JSON, and (width,) values."""


class Api:
    """A server; any thread may use it. Raises SourceUnavailable for what it cannot answer."""

    def __init__(self, options: MetricOptions, endpoint: HttpClient | None = None) -> None:
        self.options = options
        self.endpoint = endpoint or HttpClient(options.endpoint)
        self.pool = ThreadPoolExecutor(self.endpoint.options.concurrency, thread_name_prefix="prometheus")
        """For whole queries; no task in it waits for another."""
        self._labels: dict[bytes, dict[str, str]] = {}
        self._probe_results: dict[str, bool] = {}
        self._probe_lock = threading.Lock()

    def close(self) -> None:
        """Cancel running queries and send no more."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.endpoint.close()

    @property
    def name(self) -> str:
        """Product and URL, without credentials."""
        return f"prometheus {self.endpoint.name}"

    @property
    def matchers(self) -> tuple[str, ...]:
        """The site's conditions on every series, in PromQL."""
        match = self.options.match
        if isinstance(match, Mapping):
            return tuple(promql.matcher(label, "=", value) for label, value in match.items())
        return tuple(match)

    @property
    def is_closed(self) -> bool:
        """Whether the server's windows include their start."""
        return self._probe_once("closed", self._probe_closed)

    @property
    def is_victoria(self) -> bool:
        """Whether the server speaks MetricsQL, which answers in one query what others answer step by step."""
        return self._probe_once("victoria", self._probe_metricsql)

    def _probe_once(self, name: str, probe: Callable[[], bool]) -> bool:
        if name not in self._probe_results:
            with self._probe_lock:
                if name not in self._probe_results:
                    self._probe_results[name] = probe()
        return self._probe_results[name]

    def _probe_closed(self) -> bool:
        series = list(self._points(promql.PROBE, _PROBE_TIME_MS))
        answers = [int(values[0]) for _, (_, values) in series if len(values) == 1 and values[0] in (1, 2)]
        if len(answers) != 1:
            raise SourceUnavailable("broken", f"{self._endpoint('query')} did not show how its windows are bounded")
        return answers[0] == 2

    def _probe_metricsql(self) -> bool:
        try:
            return len(list(self._points(promql.PROBE_METRICSQL, _PROBE_TIME_MS))) == 1
        except SourceUnavailable as reason:
            if reason.kind == "refused":
                return False
            raise

    def names(self, start_ms: int, end_ms: int) -> list[str]:
        """The names of all metrics that meet the site's conditions."""
        form = _selection([promql.selector("", self.matchers)] if self.matchers else [], start_ms, end_ms)
        return self._answer("label/__name__/values", form, matrix.names_of, method="GET")

    def labels_of(self, selectors: Iterable[str], start_ms: int, end_ms: int) -> list[str]:
        """The names of all labels of the series that any of the selectors matches."""
        return self._answer("labels", _selection(selectors, start_ms, end_ms), matrix.names_of)

    def matcher(self, label: str, operator: str, value: str) -> str:
        """A condition in this server's syntax."""
        return promql.matcher(label, operator, value, metricsql=self.is_victoria)

    def series(self, selectors: Iterable[str], start_ms: int, end_ms: int) -> list[dict[str, str]]:
        """The label sets of all series that any of the selectors matches."""
        return self._answer("series", _selection(selectors, start_ms, end_ms), matrix.label_sets_of)

    def rolled_up(self, query: str, start_ms: int, end_ms: int, step_ms: int, series: int) -> Iterator[Page]:
        """The windows of a query, page by page; ``series``: how many series the answer has, about."""
        if start_ms >= end_ms:
            return
        width = min(
            MAX_POINTS_PER_SERIES,
            max(1, MAX_POINTS_PER_QUERY // max(1, series)),
            max(1, self._max_points // max(1, series)),
        )
        for begin in range(start_ms, end_ms, width * step_ms):
            yield from self._pages(query, begin, min(end_ms, begin + width * step_ms), step_ms)

    def at(self, query: str, time_ms: int) -> list[tuple[bytes, float]]:
        """The value of each series at one time."""
        endpoint = self._endpoint("query")
        pairs = ((series.labels, matrix.value_of(series.points, endpoint)) for series in self._vector(query, time_ms))
        return [(labels, value) for labels, value in pairs if value is not None]

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[tuple[bytes, tuple[Times, Values]]]:
        """The samples in ``(start, end]`` of the series that a selector matches, all in one answer."""
        series = []
        for labels, (times, values) in self._points(promql.window(selector, end_ms - start_ms, self.is_closed), end_ms):
            inside = (times > start_ms) & (times <= end_ms)  # VictoriaMetrics also returns the sample at the start
            series.append((labels, (times, values) if inside.all() else (times[inside], values[inside])))
        return series

    def labels(self, raw_labels: bytes) -> dict[str, str]:
        """The labels of a series in an answer, without its name."""
        labels = self._labels.get(raw_labels)
        if labels is None:
            labels = self._labels[raw_labels] = matrix.labels_of(raw_labels, self._endpoint("query"))
        return labels

    # -- requests

    @property
    def _max_points(self) -> int:
        """Points that fit into an answer."""
        return self.endpoint.options.max_answer_bytes // MAX_POINT_BYTES

    def _pages(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> Iterator[Page]:
        """A page, split in halves again and again if the server says that it is too large."""
        width = (end_ms - start_ms) // step_ms
        form = [("query", query), *_bounds(start_ms + step_ms, end_ms), ("step", _seconds(step_ms))]
        try:
            answer = self._answer("query_range", form, matrix.series_of)
        except SourceUnavailable as reason:
            is_too_large = reason.kind == "too_large" or (reason.kind == "refused" and _TOO_MUCH.search(str(reason)))
            if width == 1 or not is_too_large:
                raise
            middle = start_ms + width // 2 * step_ms
            yield from self._pages(query, start_ms, middle, step_ms)
            yield from self._pages(query, middle, end_ms, step_ms)
        else:
            endpoint = self._endpoint("query_range")
            yield Page(start_ms, width, [
                (series.labels, matrix.windows(series.points, start_ms, step_ms, width, endpoint)) for series in answer
            ])  # fmt: skip

    def _points(self, query: str, time_ms: int) -> Iterator[tuple[bytes, tuple[Times, Values]]]:
        endpoint = self._endpoint("query")
        for series in self._vector(query, time_ms):
            yield series.labels, matrix.samples(series.points, endpoint)

    def _vector(self, query: str, time_ms: int) -> Iterable[RawSeries]:
        return self._answer("query", [("query", query), ("time", _seconds(time_ms))], matrix.series_of)

    def _answer(
        self, path: str, form: Sequence[tuple[str, str]], read: Callable[[bytes, str], T], method: str = "POST"
    ) -> T:
        # nocache: otherwise VictoriaMetrics aligns start and end to its cache.
        params = [*form, ("nocache", "1"), *self.options.extra_params.items()]
        if method == "GET":
            answer = self.endpoint.request("GET", f"/api/v1/{path}", params=params)
        else:
            answer = self.endpoint.request("POST", f"/api/v1/{path}", form=params)
        data = matrix.data_of(answer.body, answer.url, self.options.allow_partial)
        return read(data, self._endpoint(path.partition("/")[0]))

    def _endpoint(self, path: str) -> str:
        return f"{self.endpoint.name}/api/v1/{path}"


def _selection(selectors: Iterable[str], start_ms: int, end_ms: int) -> list[tuple[str, str]]:
    return [*_bounds(start_ms, end_ms), *(("match[]", selector) for selector in selectors)]


def _bounds(start_ms: int, end_ms: int) -> list[tuple[str, str]]:
    return [("start", _seconds(start_ms)), ("end", _seconds(end_ms))]


def _seconds(time_ms: int) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{seconds}.{milliseconds:03d}" if milliseconds else str(seconds)
