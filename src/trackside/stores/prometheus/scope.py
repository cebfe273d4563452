"""Finds the series of a Prometheus-compatible server that concern a run: by its nodes, its job, its time.

Only names that a dialect knows are requested, and only on the run's nodes or under its job's label if either is known:
a cluster has a thousand times as many series.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from trackside.catalog.dialect import Translation, translate, with_further_labels
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label
from trackside.catalog.natural import natural_key
from trackside.catalog.settling import ForeignSeries
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Position
from trackside.stores.metric_backend import SeriesInfo
from trackside.stores.metric_server import HIDDEN_S, RunScope
from trackside.stores.prometheus import promql
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.series import COARSE_WINDOWS, MetricSource, coarse_step, plain_label

MARGIN_S = 1800.0
"""Margin before and after the run."""
LOOK_BACK_S = (3600.0, 86400.0, 30 * 86400.0, 400 * 86400.0)
"""How far back to look for a run of unknown time: the steps grow until its start is found."""
MAX_SERIES = 1 << 19
"""Maximum number of series of all names, the same as for a file."""
NAMES_PER_QUERY = 24
"""Names whose series are listed at once, because servers limit how many series they list."""


@dataclass(frozen=True, slots=True)
class RunSources:
    """What a server holds of the run. ``parts``: id of our series -> the rows of sources that form it.

    ``unavailable``: our metric -> why it is unavailable.
    """

    sources: Sequence[MetricSource]
    series: Sequence[SeriesInfo]
    parts: Mapping[int, Sequence[tuple[MetricSource, int]]]
    unavailable: Mapping[str, SourceUnavailable]


def find_sources(api: Api, scope: RunScope) -> RunSources:
    """Find the run's series. Raises SourceUnavailable if none could be looked for."""
    now = time.time() - HIDDEN_S
    scope = replace(scope, end=min(now, scope.end) if scope.end is not None else None)
    start_ms, end_ms = _times(api, scope, now)
    if start_ms >= end_ms:
        return RunSources((), (), {}, {})
    return _SeriesLookup(api, scope, (start_ms, end_ms)).find(_names(api, start_ms, end_ms))


def has_series(api: Api, jobs: Sequence[str]) -> bool:
    """Whether any series has one of these jobs' ids, at any time: three small queries. Raises SourceUnavailable."""
    end_ms = math.ceil(time.time() * 1000)
    span = (end_ms - round(LOOK_BACK_S[-1] * 1000), end_ms)
    conditions = _conditions(api, RunScope(jobs=tuple(jobs)), _names(api, *span), span)
    selectors = [promql.selector("", (*api.matchers, *condition)) for condition in conditions]
    return bool(selectors and api.series(selectors, *span))


def _times(api: Api, scope: RunScope, now: float) -> tuple[int, int]:
    """The span to read, in ms."""
    end = min(scope.end + MARGIN_S, now) if scope.end is not None else now
    if scope.start is not None:
        return math.floor((scope.start - MARGIN_S) * 1000), math.ceil(end * 1000)
    job_scope = RunScope(jobs=scope.jobs) if scope.jobs else scope
    first = last = 0
    for back in LOOK_BACK_S:
        step_ms = coarse_step(round(back * 1000), COARSE_WINDOWS)
        end_ms = math.floor(end * 1000) // step_ms * step_ms  # the part cut off at the end was covered by finer steps
        begin_ms = end_ms - round(back * 1000) // step_ms * step_ms
        span = _sampled_span(api, job_scope, begin_ms, end_ms, step_ms)
        if span is not None:
            first, last = min(first or span[0], span[0]), max(last, span[1])
        if last and first > begin_ms:
            break
    return first - round(MARGIN_S * 1000), min(last + round(MARGIN_S * 1000), math.ceil(end * 1000))


def _sampled_span(api: Api, scope: RunScope, start_ms: int, end_ms: int, step_ms: int) -> tuple[int, int] | None:
    """The span in which anything of the scope was sampled, rounded to windows; None if never."""
    first, last = end_ms, 0
    names = _names(api, start_ms, end_ms)
    all_conditions = _conditions(api, scope, names, (start_ms, end_ms))
    for name in names:
        for conditions in all_conditions:
            selector = promql.selector(name, (*api.matchers, *conditions))
            query = f"sum({promql.rollup('count', selector, step_ms, api.is_closed)})"
            for page in api.rolled_up(query, start_ms, end_ms, step_ms, 1):
                for _, values in page.series:
                    sampled = [index for index, value in enumerate(values.tolist()) if value > 0]
                    if sampled:
                        first = min(first, page.start_ms + sampled[0] * step_ms)
                        last = max(last, page.start_ms + (sampled[-1] + 1) * step_ms)
    return (first, last) if last else None


def _names(api: Api, start_ms: int, end_ms: int) -> list[str]:
    """The server's metric names that a dialect knows."""
    return sorted(name for name in set(api.names(start_ms, end_ms)) if translate(name, {}) is not None)


def _conditions(api: Api, scope: RunScope, names: Sequence[str], span: tuple[int, int]) -> list[tuple[str, ...]]:
    """Alternative conditions: each selects a part of the scope's series. Empty if no label identifies any."""
    if not scope.nodes and not scope.jobs:
        return [()]
    labels = _labels(api, names, span) if names else []
    all_conditions: list[tuple[str, ...]] = []
    for ours, common, regexes in (
        ("node", MACHINE_LABELS, promql.hosts(scope.nodes)),
        ("job", JOB_LABELS, promql.jobs(scope.jobs)),
    ):
        their_labels = {label for label, rule in common.items() if rule.name == ours}
        matching = [
            label for label in labels if api.options.labels.get(label) == ours or plain_label(label) in their_labels
        ]
        all_conditions += [(api.matcher(label, "=~", regex),) for regex in regexes for label in matching]
    return all_conditions


def _labels(api: Api, names: Sequence[str], span: tuple[int, int]) -> Sequence[str]:
    """The labels of the series with these names, as the server spells them."""
    selectors = [promql.selector("", (promql.matcher("__name__", "=~", names_regex), *api.matchers))
                 for names_regex in promql.one_of(names)]  # fmt: skip
    try:
        return api.labels_of(selectors, *span)
    except SourceUnavailable as reason:
        if reason.kind not in ("refused", "unauthorized"):  # the server listed names, so only this endpoint is refused
            raise
        return list(dict.fromkeys([*api.options.labels, *MACHINE_LABELS, *JOB_LABELS, "Hostname"]))


class _SeriesLookup:
    """Turns the series of a scope into our series."""

    def __init__(self, api: Api, scope: RunScope, span: tuple[int, int]) -> None:
        self._api, self._scope, self._span = api, scope, span
        self._foreign = ForeignSeries()
        self._unavailable: dict[str, SourceUnavailable] = {}
        self._conditions: Sequence[tuple[str, ...]] = ()

    def find(self, names: Sequence[str]) -> RunSources:
        """All that the server holds under these names."""
        sources = list(self._sources(self._list_all(names)))
        inspected = self._inspect(sources)
        parts: dict[int, list[tuple[MetricSource, int]]] = {}
        for source in inspected:
            for row, id_ in enumerate(source.series_ids):
                if source.counts[row]:
                    parts.setdefault(id_, []).append((source, row))
        infos = [
            SeriesInfo(id_, series, *_extent(parts[id_]))
            for id_, series in enumerate(self._foreign.series)
            if id_ in parts
        ]
        infos.sort(
            key=lambda info: (info.series.metric, [(name, natural_key(value)) for name, value in info.series.labels])
        )
        return RunSources(inspected, infos, parts, self._unavailable)

    def _list_all(self, names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        """Name -> label sets."""
        self._conditions = _conditions(self._api, self._scope, names, self._span)
        pieces = [names[first : first + NAMES_PER_QUERY] for first in range(0, len(names), NAMES_PER_QUERY)]
        futures = [self._api.pool.submit(self._list, piece) for piece in pieces]
        series: dict[str, list[dict[str, str]]] = {}
        for labels in chain.from_iterable(future.result() for future in futures):
            series.setdefault(labels.pop("__name__", ""), []).append(labels)
        if sum(map(len, series.values())) > MAX_SERIES:
            raise SourceUnavailable(
                "too_large",
                f"{self._api.name} holds more than {MAX_SERIES:,} series of the run; give its nodes or its job, or"
                " narrow the search with match",
            )
        return series

    def _list(self, names: Sequence[str]) -> list[dict[str, str]]:
        by_name = promql.matcher("__name__", "=~", "|".join(promql.one_of(names)))
        selectors = [promql.selector("", (by_name, *self._api.matchers, *conditions))
                     for conditions in self._conditions]  # fmt: skip
        return self._api.series(selectors, *self._span) if selectors else []

    def _sources(self, listed: Mapping[str, Sequence[dict[str, str]]]) -> Iterator[MetricSource]:
        """One source for each name, or for each metric of ours if a label decides which it is."""
        scoped = bool(self._scope.nodes or self._scope.jobs)
        for name, sets in sorted(listed.items()):
            by_metric: dict[str, list[tuple[dict[str, str], Translation]]] = {}
            for labels in sets:
                translation = self._translate(name, labels)
                if translation is not None:
                    by_metric.setdefault(translation.metric, []).append((labels, translation))
            for metric, translated_sets in by_metric.items():
                position = Position(self._api.name, 0)
                rows_added = [self._foreign.add(name, translation, position) for _, translation in translated_sets]
                rows = self._foreign.rows[rows_added]
                yield MetricSource(
                    self._api, name, metric, translated_sets[0][1].guess, self._span, scoped or len(by_metric) > 1,
                    [labels for labels, _ in translated_sets], rows["ours"].tolist(), rows["scale"].tolist(),
                )  # fmt: skip

    def _translate(self, name: str, labels: Mapping[str, str]) -> Translation | None:
        translation = translate(name, labels)
        rules = {
            site_label: _LABEL_RULES.get(ours, Label(ours)) for site_label, ours in self._api.options.labels.items()
        }
        return (
            translation
            if translation is None or not rules
            else with_further_labels(translation, labels, rules, override=True)
        )

    def _inspect(self, sources: Sequence[MetricSource]) -> list[MetricSource]:
        """The sources whose content is known. Raises SourceUnavailable if there is none."""
        futures = [self._api.pool.submit(source.inspect) for source in sources]
        inspected = []
        for source, future in zip(sources, futures, strict=True):
            try:
                future.result()
                inspected.append(source)
            except SourceUnavailable as reason:
                self._unavailable[source.metric] = reason
        if sources and not inspected:
            raise next(iter(self._unavailable.values()))
        return [
            source for source in inspected if source.metric not in self._unavailable
        ]  # a metric that is only partly known counts as unavailable


def _extent(parts: Sequence[tuple[MetricSource, int]]) -> tuple[int, int, int]:
    """First and last time, and the number of samples."""
    return (
        min(int(source.first_ms[row]) for source, row in parts),
        max(int(source.last_ms[row]) for source, row in parts),
        sum(int(source.counts[row]) for source, row in parts),
    )


_LABEL_RULES: Mapping[str, Label] = {
    label.name: label for label in (*MACHINE_LABELS.values(), *JOB_LABELS.values(), *GPU_LABELS.values())
}
