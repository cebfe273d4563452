"""The HTTP API of a Prometheus-compatible server: what it can be asked, in pieces that it takes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from trackside.http.client import HttpClient
from trackside.http.unavailable import SourceUnavailable
from trackside.stores.metric_store import MetricOptions
from trackside.stores.prometheus import matrix, promql
from trackside.stores.prometheus.matrix import Found, Times, Values

T = TypeVar("T")
MOST_POINTS = 11_000
"""Points of a series that Prometheus gives at once."""
MOST_PAGE = 1_000_000
"""Points asked for at once, of all series: some 35 MB."""
POINT_BYTES = 96
"""The most that a point takes in an answer, and its share of its series' labels."""
_PROBED_MS = 1_700_000_040_000
"""A whole minute."""
_TOO_MUCH = re.compile(r"exceed|too many|too large|limit|maximum|max-|resolution", re.IGNORECASE)


class Page(NamedTuple):
    """Some windows of some series: they end at ``start_ms`` + step ... + ``width`` steps."""

    start_ms: int
    width: int
    series: Sequence[tuple[bytes, Values]]
    """Labels as JSON, and (width,) values."""


class Api:
    """A server, asked from any thread. What it can't answer raises SourceUnavailable."""

    def __init__(self, options: MetricOptions, endpoint: HttpClient | None = None) -> None:
        self.options = options
        self.endpoint = endpoint or HttpClient(options.endpoint)
        self.pool = ThreadPoolExecutor(self.endpoint.options.concurrency, thread_name_prefix="prometheus")
        """For whole questions; nothing in it waits for another thing in it."""
        self._labels: dict[bytes, dict[str, str]] = {}
        self._told: dict[str, bool] = {}
        self._telling = threading.Lock()

    def close(self) -> None:
        """Ask no more; what is under way ends."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.endpoint.close()

    @property
    def name(self) -> str:
        """Without credentials."""
        return f"prometheus {self.endpoint.name}"

    @property
    def matchers(self) -> tuple[str, ...]:
        """The conditions that the site's series meet, as PromQL writes them."""
        match = self.options.match
        if isinstance(match, Mapping):
            return tuple(promql.matcher(label, "=", value) for label, value in match.items())
        return tuple(match)

    @property
    def closed(self) -> bool:
        """Whether windows hold their beginning."""
        return self._once("closed", self._closed)

    @property
    def victoria(self) -> bool:
        """Whether it speaks MetricsQL, which tells at once what others are asked step by step."""
        return self._once("victoria", self._victoria)

    def _once(self, what: str, probe: Callable[[], bool]) -> bool:
        if what not in self._told:
            with self._telling:
                if what not in self._told:
                    self._told[what] = probe()
        return self._told[what]

    def _closed(self) -> bool:
        found = list(self._points(promql.PROBE, _PROBED_MS))
        told = [int(values[0]) for _, (_, values) in found if len(values) == 1 and values[0] in (1, 2)]
        if len(told) != 1:
            raise SourceUnavailable("broken", f"{self._where('query')} did not tell how its windows are bounded")
        return told[0] == 2

    def _victoria(self) -> bool:
        try:
            return len(list(self._points(promql.PROBE_METRICSQL, _PROBED_MS))) == 1
        except SourceUnavailable as reason:
            if reason.kind == "refused":
                return False
            raise

    def names(self, start_ms: int, end_ms: int) -> list[str]:
        """The names of all metrics that the site's matchers let through."""
        form = _chosen([promql.selector("", self.matchers)] if self.matchers else [], start_ms, end_ms)
        return self._answer("label/__name__/values", form, matrix.names_of, method="GET")

    def labels_of(self, selectors: Iterable[str], start_ms: int, end_ms: int) -> list[str]:
        """The names of all labels of the series that any of the selectors chooses."""
        return self._answer("labels", _chosen(selectors, start_ms, end_ms), matrix.names_of)

    def matcher(self, label: str, operator: str, value: str) -> str:
        """A condition as this server reads it."""
        return promql.matcher(label, operator, value, metricsql=self.victoria)

    def series(self, selectors: Iterable[str], start_ms: int, end_ms: int) -> list[dict[str, str]]:
        """The label sets of all series that any of the selectors chooses."""
        return self._answer("series", _chosen(selectors, start_ms, end_ms), matrix.sets_of)

    def rolled(self, query: str, start_ms: int, end_ms: int, step_ms: int, series: int) -> Iterator[Page]:
        """The windows of a query, page by page; it gives about so many ``series``."""
        if start_ms >= end_ms:
            return
        width = min(MOST_POINTS, max(1, MOST_PAGE // max(1, series)), max(1, self._room // max(1, series)))
        for begin in range(start_ms, end_ms, width * step_ms):
            yield from self._pages(query, begin, min(end_ms, begin + width * step_ms), step_ms)

    def at(self, query: str, time_ms: int) -> list[tuple[bytes, float]]:
        """The value of each series at one moment."""
        where = self._where("query")
        told = ((each.labels, matrix.value_of(each.points, where)) for each in self._vector(query, time_ms))
        return [(labels, value) for labels, value in told if value is not None]

    def samples(self, chosen: str, start_ms: int, end_ms: int) -> list[tuple[bytes, tuple[Times, Values]]]:
        """The samples in ``(start, end]`` of what a selector chooses; the server answers with all of them at once."""
        found = []
        for labels, (times, values) in self._points(promql.window(chosen, end_ms - start_ms, self.closed), end_ms):
            inside = (times > start_ms) & (times <= end_ms)  # VictoriaMetrics gives the beginning's as well
            found.append((labels, (times, values) if inside.all() else (times[inside], values[inside])))
        return found

    def labels(self, found: bytes) -> dict[str, str]:
        """What labels a series of an answer has, without its name."""
        known = self._labels.get(found)
        if known is None:
            known = self._labels[found] = matrix.labels_of(found, self._where("query"))
        return known

    # -- requests

    @property
    def _room(self) -> int:
        """Points that an answer can hold."""
        return self.endpoint.options.most_bytes // POINT_BYTES

    def _pages(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> Iterator[Page]:
        """A page; in halves, and they in halves, where the server says that it's too much."""
        width = (end_ms - start_ms) // step_ms
        form = [("query", query), *_bounds(start_ms + step_ms, end_ms), ("step", _seconds(step_ms))]
        try:
            found = self._answer("query_range", form, matrix.series_of)
        except SourceUnavailable as reason:
            much = reason.kind == "too_large" or (reason.kind == "refused" and _TOO_MUCH.search(str(reason)))
            if width == 1 or not much:
                raise
            middle = start_ms + width // 2 * step_ms
            yield from self._pages(query, start_ms, middle, step_ms)
            yield from self._pages(query, middle, end_ms, step_ms)
        else:
            where = self._where("query_range")
            yield Page(start_ms, width, [
                (each.labels, matrix.windows(each.points, start_ms, step_ms, width, where)) for each in found
            ])  # fmt: skip

    def _points(self, query: str, time_ms: int) -> Iterator[tuple[bytes, tuple[Times, Values]]]:
        where = self._where("query")
        for each in self._vector(query, time_ms):
            yield each.labels, matrix.samples(each.points, where)

    def _vector(self, query: str, time_ms: int) -> Iterable[Found]:
        return self._answer("query", [("query", query), ("time", _seconds(time_ms))], matrix.series_of)

    def _answer(
        self, path: str, form: Sequence[tuple[str, str]], read: Callable[[bytes, str], T], method: str = "POST"
    ) -> T:
        # nocache: VictoriaMetrics would move the start and the end to where its cache has something.
        sent = [*form, ("nocache", "1"), *self.options.extra_params.items()]
        if method == "GET":
            answer = self.endpoint.request("GET", f"/api/v1/{path}", params=sent)
        else:
            answer = self.endpoint.request("POST", f"/api/v1/{path}", form=sent)
        data = matrix.data_of(answer.body, answer.url, self.options.allow_partial)
        return read(data, self._where(path.partition("/")[0]))

    def _where(self, path: str) -> str:
        return f"{self.endpoint.name}/api/v1/{path}"


def _chosen(selectors: Iterable[str], start_ms: int, end_ms: int) -> list[tuple[str, str]]:
    return [*_bounds(start_ms, end_ms), *(("match[]", each) for each in selectors)]


def _bounds(start_ms: int, end_ms: int) -> list[tuple[str, str]]:
    return [("start", _seconds(start_ms)), ("end", _seconds(end_ms))]


def _seconds(time_ms: int) -> str:
    whole, rest = divmod(time_ms, 1000)
    return f"{whole}.{rest:03d}" if rest else str(whole)
