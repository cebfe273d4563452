"""Which part of a Prometheus-compatible server concerns a run: its nodes, its job, its time.

Only names that a dialect knows are asked for, and only on the run's nodes or under its job's label, where either is
known: a cluster has a thousand times as many series.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from trackside.catalog.dialect import Translation, relabeled, translate
from trackside.catalog.labels import DEVICE, OWNER, PLACE, Label
from trackside.catalog.natural import natural
from trackside.catalog.settling import ForeignSeries
from trackside.http.unanswered import Unanswered
from trackside.model import Position
from trackside.stores.curves import Held
from trackside.stores.metric_store import HIDDEN_S, Scope
from trackside.stores.prometheus import promql
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.series import COARSE, Source, coarse_step, plain_label

AROUND_S = 1800.0
"""What is looked at before and after the run."""
LOOK_BACK_S = (3600.0, 86400.0, 30 * 86400.0, 400 * 86400.0)
"""How far back a run is looked for whose time nothing tells: as far as it takes to see its beginning."""
MOST_SERIES = 1 << 19
"""Series of all names, as of a file."""
NAMES = 24
"""Names whose series are listed at once: servers limit how many series they list."""


@dataclass(frozen=True, slots=True)
class Concerned:
    """What a server holds of the run. ``parts``: id of a curve -> the rows of sources that make it.

    ``failed``: our metric -> why it could not be looked at.
    """

    sources: Sequence[Source]
    held: Sequence[Held]
    parts: Mapping[int, Sequence[tuple[Source, int]]]
    failed: Mapping[str, Unanswered]


def concerned(api: Api, scope: Scope) -> Concerned:
    """Find the run's curves. Raises Unanswered where none could be looked for."""
    now = time.time() - HIDDEN_S
    scope = replace(scope, end=min(now, scope.end) if scope.end is not None else None)
    start_ms, end_ms = _times(api, scope, now)
    if start_ms >= end_ms:
        return Concerned((), (), {}, {})
    return _Finding(api, scope, (start_ms, end_ms)).concerned(_names(api, start_ms, end_ms))


def anything_of(api: Api, jobs: Sequence[str]) -> bool:
    """Whether any series bears one of these jobs' ids, however long ago: three small questions. Raises Unanswered."""
    end_ms = math.ceil(time.time() * 1000)
    span = (end_ms - round(LOOK_BACK_S[-1] * 1000), end_ms)
    conditions = _conditions(api, Scope(jobs=tuple(jobs)), _names(api, *span), span)
    selectors = [promql.selector("", (*api.matchers, *each)) for each in conditions]
    return bool(selectors and api.series(selectors, *span))


def _times(api: Api, scope: Scope, now: float) -> tuple[int, int]:
    """The span to look at, ms."""
    end = min(scope.end + AROUND_S, now) if scope.end is not None else now
    if scope.start is not None:
        return math.floor((scope.start - AROUND_S) * 1000), math.ceil(end * 1000)
    known = Scope(jobs=scope.jobs) if scope.jobs else scope
    first = last = 0
    for back in LOOK_BACK_S:
        step_ms = coarse_step(round(back * 1000), COARSE)
        end_ms = math.floor(end * 1000) // step_ms * step_ms  # what it leaves out at the end was seen in finer steps
        begin_ms = end_ms - round(back * 1000) // step_ms * step_ms
        seen = _seen(api, known, begin_ms, end_ms, step_ms)
        if seen is not None:
            first, last = min(first or seen[0], seen[0]), max(last, seen[1])
        if last and first > begin_ms:
            break
    return first - round(AROUND_S * 1000), min(last + round(AROUND_S * 1000), math.ceil(end * 1000))


def _seen(api: Api, scope: Scope, start_ms: int, end_ms: int, step_ms: int) -> tuple[int, int] | None:
    """From and to when anything of the scope was sampled, to a window; None if never."""
    first, last = end_ms, 0
    names = _names(api, start_ms, end_ms)
    told = _conditions(api, scope, names, (start_ms, end_ms))
    for name in names:
        for conditions in told:
            chosen = promql.selector(name, (*api.matchers, *conditions))
            query = f"sum({promql.rollup('count', chosen, step_ms, api.closed)})"
            for page in api.rolled(query, start_ms, end_ms, step_ms, 1):
                for _, values in page.series:
                    there = [place for place, value in enumerate(values.tolist()) if value > 0]
                    if there:
                        first = min(first, page.start_ms + there[0] * step_ms)
                        last = max(last, page.start_ms + (there[-1] + 1) * step_ms)
    return (first, last) if last else None


def _names(api: Api, start_ms: int, end_ms: int) -> list[str]:
    """The names there that a dialect knows."""
    return sorted(name for name in set(api.names(start_ms, end_ms)) if translate(name, {}) is not None)


def _conditions(api: Api, scope: Scope, names: Sequence[str], span: tuple[int, int]) -> list[tuple[str, ...]]:
    """Each tells a part of the scope's series: any of them may choose a series. Empty where no label could tell any."""
    if not scope.nodes and not scope.jobs:
        return [()]
    labels = _labels(api, names, span) if names else []
    found: list[tuple[str, ...]] = []
    for ours, common, regexes in (
        ("node", PLACE, promql.hosts(scope.nodes)),
        ("job", OWNER, promql.jobs(scope.jobs)),
    ):
        theirs = {label for label, told in common.items() if told.name == ours}
        telling = [each for each in labels if api.options.labels.get(each) == ours or plain_label(each) in theirs]
        found += [(api.matcher(label, "=~", regex),) for regex in regexes for label in telling]
    return found


def _labels(api: Api, names: Sequence[str], span: tuple[int, int]) -> Sequence[str]:
    """The labels that series of these names have there, as they are spelt there."""
    selectors = [promql.selector("", (promql.matcher("__name__", "=~", some), *api.matchers))
                 for some in promql.one_of(names)]  # fmt: skip
    try:
        return api.labels_of(selectors, *span)
    except Unanswered as reason:
        if reason.kind not in ("refused", "unauthorized"):  # names were given: it is only this that it won't tell
            raise
        return list(dict.fromkeys([*api.options.labels, *PLACE, *OWNER, "Hostname"]))


class _Finding:
    """The series of a scope on their way to our curves."""

    def __init__(self, api: Api, scope: Scope, span: tuple[int, int]) -> None:
        self._api, self._scope, self._span = api, scope, span
        self._foreign = ForeignSeries()
        self._failed: dict[str, Unanswered] = {}
        self._conditions: Sequence[tuple[str, ...]] = ()

    def concerned(self, names: Sequence[str]) -> Concerned:
        """All that is held of these names."""
        sources = list(self._sources(self._listed(names)))
        looked = self._looked(sources)
        parts: dict[int, list[tuple[Source, int]]] = {}
        for source in looked:
            for row, id_ in enumerate(source.curves):
                if source.counts[row]:
                    parts.setdefault(id_, []).append((source, row))
        held = [
            Held(id_, series, *_extent(parts[id_])) for id_, series in enumerate(self._foreign.series) if id_ in parts
        ]
        held.sort(key=lambda each: (each.series.metric, [(name, natural(value)) for name, value in each.series.labels]))
        return Concerned(looked, held, parts, self._failed)

    def _listed(self, names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        """Name -> label sets."""
        self._conditions = _conditions(self._api, self._scope, names, self._span)
        pieces = [names[place : place + NAMES] for place in range(0, len(names), NAMES)]
        coming = [self._api.pool.submit(self._list, piece) for piece in pieces]
        series: dict[str, list[dict[str, str]]] = {}
        for labels in chain.from_iterable(each.result() for each in coming):
            series.setdefault(labels.pop("__name__", ""), []).append(labels)
        if sum(map(len, series.values())) > MOST_SERIES:
            raise Unanswered("too_large", f"{self._api.name} holds more than {MOST_SERIES:,} series of the run; tell "
                             "its nodes or its job, or narrow them with match")  # fmt: skip
        return series

    def _list(self, names: Sequence[str]) -> list[dict[str, str]]:
        chosen = promql.matcher("__name__", "=~", "|".join(promql.one_of(names)))
        selectors = [promql.selector("", (chosen, *self._api.matchers, *conditions))
                     for conditions in self._conditions]  # fmt: skip
        return self._api.series(selectors, *self._span) if selectors else []

    def _sources(self, listed: Mapping[str, Sequence[dict[str, str]]]) -> Iterator[Source]:
        """One for each name, and for each metric of ours where a label decides which it is."""
        scoped = bool(self._scope.nodes or self._scope.jobs)
        for name, sets in sorted(listed.items()):
            by_metric: dict[str, list[tuple[dict[str, str], Translation]]] = {}
            for labels in sets:
                known = self._translated(name, labels)
                if known is not None:
                    by_metric.setdefault(known.metric, []).append((labels, known))
            for metric, found in by_metric.items():
                at = Position(self._api.name, 0)
                numbers = [self._foreign.add(name, known, at) for _, known in found]
                rows = self._foreign.rows[numbers]
                yield Source(
                    self._api, name, metric, found[0][1].guess, self._span, scoped or len(by_metric) > 1,
                    [labels for labels, _ in found], rows["ours"].tolist(), rows["scale"].tolist(),
                )  # fmt: skip

    def _translated(self, name: str, labels: Mapping[str, str]) -> Translation | None:
        known = translate(name, labels)
        rules = {theirs: _FORMS.get(ours, Label(ours)) for theirs, ours in self._api.options.labels.items()}
        return known if known is None or not rules else relabeled(known, labels, rules, override=True)

    def _looked(self, sources: Sequence[Source]) -> list[Source]:
        """Those of which it is known what they hold. Raises Unanswered where it is of none."""
        coming = [self._api.pool.submit(source.look) for source in sources]
        looked = []
        for source, each in zip(sources, coming, strict=True):
            try:
                each.result()
                looked.append(source)
            except Unanswered as reason:
                self._failed[source.metric] = reason
        if sources and not looked:
            raise next(iter(self._failed.values()))
        return [source for source in looked if source.metric not in self._failed]  # a part of a metric is none of it


def _extent(parts: Sequence[tuple[Source, int]]) -> tuple[int, int, int]:
    """First and last time, and how many samples."""
    return (
        min(int(source.first_ms[row]) for source, row in parts),
        max(int(source.last_ms[row]) for source, row in parts),
        sum(int(source.counts[row]) for source, row in parts),
    )


_FORMS: Mapping[str, Label] = {label.name: label for label in (*PLACE.values(), *OWNER.values(), *DEVICE.values())}
