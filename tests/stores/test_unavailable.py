"""A source that does not answer is never reported as an absence; two metric backends act as one."""

from __future__ import annotations

import numpy as np
import pytest

from trackside.evidence import SOURCE_UNANSWERED, Cite, Frame, Grid, MissingAnswer
from trackside.finding import Verdict
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Position, Samples, Series
from trackside.query import events, metric
from trackside.session.choice import choose_run
from trackside.session.inputs import LoadedInputs
from trackside.show.document import document
from trackside.stores.joined import JoinedBackend
from trackside.stores.memory import MemoryStore
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import EngineRollup, RollupRequest, RollupResult
from trackside.verdict import engine
from trackside.verify import check

MINUTE = 60_000
REASON = "http://metrics:9090 did not answer within 30 s"


def gpu_backend(*gpus: tuple[str, list[tuple[int, float]]], metric: str = "gpu_utilization_ratio") -> MemoryBackend:
    """A backend with the GPUs of one node: (gpu, (minute, value) points) each."""
    backend = MemoryBackend()
    for gpu, points in gpus:
        labels = (("gpu", gpu), ("node", "n1"))
        series = [Series(metric, labels, Position("m.prom", 1))]
        times = np.array([minute * MINUTE for minute, _ in points], dtype=np.int64)
        backend.add(Samples(series, np.zeros(len(points), np.int32), times, np.array([value for _, value in points])))
    return backend


class RefusingBackend(MemoryBackend):
    """Lists its series, unless ``refuse_series``, and answers no rollup."""

    name = "prometheus http://metrics:9090"

    def __init__(self, refuse_series: bool = True) -> None:
        super().__init__()
        self._refuse_series = refuse_series
        self.add(Samples([Series("gpu_power_watts", (("gpu", "0"), ("node", "n1")), Position("", 0))],
                         np.zeros(20, np.int32), np.arange(20, dtype=np.int64) * MINUTE + 1000 * MINUTE,
                         np.full(20, 300.0)))  # fmt: skip

    def series(self):  # type: ignore[no-untyped-def]
        if self._refuse_series:
            raise SourceUnavailable("timeout", REASON)
        return super().series()

    @property
    def unavailable(self) -> dict[str, SourceUnavailable]:
        return {}

    def expect(self, requests: list[RollupRequest]) -> None:
        """Prefetch nothing."""

    def rollups(self, requests: list[RollupRequest]) -> list[RollupResult]:
        return [SourceUnavailable("timeout", REASON) for _ in requests]


def diagnose(live: RefusingBackend, files_backend: MemoryBackend | None = None) -> tuple[Verdict, MemoryStore]:
    run, store = choose_run(LoadedInputs(metric_backend=files_backend), live=lambda run, rows: live)
    return engine.verdict_of(engine.facts_of(store, run)), store


@pytest.mark.parametrize("refuse_series", [True, False], ids=["dead from the start", "dead at the first question"])
def test_an_unavailable_store_is_reported_and_rules_nothing_out(refuse_series: bool) -> None:
    live = RefusingBackend(refuse_series)
    verdict, store = diagnose(live)
    answer = store.ask(metric("gpu_power_watts").over("run", "avg"))
    assert isinstance(answer, MissingAnswer)
    assert (answer.reason, answer.source) == (f"unable to check: {REASON}", live.name)
    doc = document(verdict)
    sentence = next(claim for claim in doc.preflight if "metrics:9090" in claim.text)
    assert REASON in sentence.text
    assert doc.cites[sentence.cites[0]].query.startswith(f"events({SOURCE_UNANSWERED})")
    assert not any(claim.text.startswith("no GPU metrics were given") for claim in doc.preflight)
    assert doc.primary.outcome == "unknown"


def test_a_citation_that_cannot_be_checked_reports_the_reason() -> None:
    _, store = diagnose(RefusingBackend(refuse_series=False))
    cite = Cite(
        "metric", "m", "metric(gpu_power_watts).during(60000.0, 61000.0).rollup(60.0, 'avg').count()", "", 40, ""
    )
    [checked] = check({"c1": cite}, store)
    assert not checked.holds
    assert checked.problem == f"unable to check: {REASON}"


def test_files_are_diagnosed_if_the_store_is_unavailable() -> None:
    _, store = diagnose(RefusingBackend(), gpu_backend(("0", [(minute, 0.5) for minute in range(1000, 1030)])))
    assert isinstance(store.ask(metric("gpu_utilization_ratio").over("run", "avg")), Grid)
    silent = store.ask(events(SOURCE_UNANSWERED))
    assert isinstance(silent, Frame)
    assert [row.text for row in silent.events] == [REASON]


def test_a_partly_read_plane_gives_no_empty_answer() -> None:
    store = MemoryStore(planes=["log"])
    assert isinstance(store.ask(events("exception")), Frame)
    store.add_unavailable_source("log", "loki http://logs:3100", "the answer broke off")
    store.add_unavailable_source("log", "loki http://logs:3100", "and again")
    answer = store.ask(events("exception"))
    assert isinstance(answer, MissingAnswer)
    assert (answer.reason, answer.source) == ("unable to check: the answer broke off", "loki http://logs:3100")
    silent = store.ask(events(SOURCE_UNANSWERED))
    assert isinstance(silent, Frame)
    assert len(silent) == 1


def test_joined_backends_prefer_the_value_of_the_first() -> None:
    first = gpu_backend(("0", [(1, 0.1), (2, 0.2)]), ("1", [(1, 0.9)]))
    second = gpu_backend(("0", [(2, 0.7), (3, 0.3)]), ("2", [(3, 0.5)]))
    joined = JoinedBackend(first, second)
    ids = {(info.series.get("gpu"), info.last_ms): info.id for info in joined.series()}
    assert len(ids) == 4
    groups = [[ids["0", 2 * MINUTE], ids["0", 3 * MINUTE]], [ids["2", 3 * MINUTE]], [ids["1", MINUTE]]]
    values, used = joined.rollup(groups, 0, 3 * MINUTE, MINUTE, "avg")
    np.testing.assert_array_equal(values, [[0.1, 0.2, 0.3], [np.nan, np.nan, 0.5], [0.9, np.nan, np.nan]])
    assert used == 5, "a sample in both backends counts once"


class UnknownUnitBackend(MemoryBackend):
    """Has values of a metric of unknown unit."""

    name = "store"

    @property
    def unavailable(self) -> dict[str, SourceUnavailable]:
        return {"gpu_sm_active_ratio": SourceUnavailable("partial", "its unit is not known")}


class AnsweringBackend(MemoryBackend):
    """A server that answers everything."""

    name = "prometheus http://metrics:9090"

    @property
    def unavailable(self) -> dict[str, SourceUnavailable]:
        return {}


@pytest.mark.parametrize("elsewhere", [True, False], ids=["in the server", "in no backend"])
def test_a_metric_that_one_backend_cannot_read_is_not_reported_as_absent(elsewhere: bool) -> None:
    store, live = UnknownUnitBackend(), AnsweringBackend()
    for backend, name in ((store, "gpu_utilization_ratio"), (live, "gpu_power_watts"), (live, "gpu_sm_active_ratio")):
        if elsewhere or name != "gpu_sm_active_ratio":
            backend.add(next(gpu_backend(("0", [(minute, 0.5) for minute in range(9)]), metric=name).drain()))
    _, rows = choose_run(LoadedInputs(metric_backend=store), live=lambda run, rows: live)
    answer = rows.ask(metric("gpu_sm_active_ratio").over("run", "avg"))
    silent = rows.ask(events(SOURCE_UNANSWERED))
    if elsewhere:
        assert isinstance(answer, Grid)
        assert isinstance(silent, MissingAnswer), "every source answered"
    else:
        assert isinstance(silent, Frame)
        assert isinstance(answer, MissingAnswer)
        assert answer.reason == "unable to check: its unit is not known"
        assert [row.at.path for row in silent.events] == ["store: gpu_sm_active_ratio"]
    assert isinstance(rows.ask(metric("gpu_power_watts").over("run", "avg")), Grid)
    other = rows.ask(metric("gpu_memory_used_bytes").over("run", "avg"))
    assert isinstance(other, MissingAnswer)
    assert other.reason.startswith("gpu_memory_used_bytes was not measured")


@pytest.mark.parametrize("rollup", ["avg", "count"])
def test_samples_in_both_backends_are_counted_once(rollup: EngineRollup) -> None:
    """Windows of the first backend count, and those of the second where the first has none."""
    twice = [(minute, 0.5) for minute in range(1, 7)]
    first = gpu_backend(("0", [*twice, *twice][:10]))  # 2 of minutes 1 to 4, 1 of minutes 5 and 6
    second = gpu_backend(("0", [(minute, 0.7) for minute in range(4, 10)]), ("1", [(2, 0.1)]))
    joined = JoinedBackend(first, second)
    shared = [info.id for info in joined.series() if info.series.get("gpu") == "0"]
    (single,) = (info.id for info in joined.series() if info.series.get("gpu") == "1")
    spans = [
        (groups, start, end) for groups in ([shared], [shared, [single]]) for start, end in ((0, 9), (0, 3), (6, 9))
    ]
    by_minute = dict(zip(range(1, 10), [2, 2, 2, 2, 1, 1, 1, 1, 1], strict=True))
    for groups, start, end in spans:
        values, used = joined.rollup(groups, start * MINUTE, end * MINUTE, MINUTE, rollup)
        counts = [by_minute[minute] for minute in range(start + 1, end + 1)]
        assert used == sum(counts) + (len(groups) > 1 and start < 2)
        if rollup == "count":
            np.testing.assert_array_equal(values[0], counts)


def test_a_rollup_over_an_unavailable_backend_is_not_answered() -> None:
    joined = JoinedBackend(gpu_backend(("0", [(1000, 0.1)])), RefusingBackend(refuse_series=False))
    available, refused = (info.id for info in joined.series())
    both = joined.rollups([RollupRequest([[available]], 0, 60 * MINUTE, MINUTE, "avg"),
                           RollupRequest([[available], [refused]], 0, 60 * MINUTE, MINUTE, "avg")])  # fmt: skip
    assert isinstance(both[1], SourceUnavailable)
    assert not isinstance(both[0], SourceUnavailable)
    with pytest.raises(SourceUnavailable, match="30 s"):
        joined.rollup([[refused]], 0, 60 * MINUTE, MINUTE, "max")
