from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.evidence import Cite, Frame, MissingAnswer, Value, derived, reduce_answer, reduce_rows
from trackside.model import Event, Position, Record, Samples, Series
from trackside.query import Query, QueryError, events, metric, record
from trackside.stores.memory import MemoryStore
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import RunMetrics, Timing

scalars = st.one_of(
    st.text(max_size=30), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)


@given(
    st.dictionaries(st.sampled_from(["path", "rank", "type", "state"]), scalars),
    st.sampled_from(["count", "first", "max"]),
)
def test_text_form_round_trips(filters: dict[str, object], reducer: str) -> None:
    query = events("exception").where(**filters).reduce(reducer, None if reducer == "count" else "rank")  # type: ignore[arg-type]
    assert Query.parse(str(query)) == query


def test_two_values_of_one_label_round_trip() -> None:
    query = metric("gpu_sm_active_ratio").where(gpu="1").where(gpu="2")
    assert Query.parse(str(query)) == query
    with pytest.raises(QueryError):
        Query.parse("metric(gpu_sm_active_ratio).where(gpu='1', gpu='2')")


def test_metric_queries_round_trip() -> None:
    query = metric("gpu_sm_active_ratio").where(job="42").rollup(15, "avg").by("gpu", "node", how="max")
    assert Query.parse(str(query)) == query


def event(line: int, **fields: object) -> Event:
    return Event("progress", Position("log", line, line * 10), "log", fields=fields)  # type: ignore[arg-type]


def small_store() -> MemoryStore:
    """Two points, a job, and ten minutes of two GPUs."""
    job = Record("job", Position("sacct", 1), "scheduler", {"id": "7", "state": "FAILED"})
    store = MemoryStore([event(1, loss=5.0), event(2, loss=2.0)], [job], ["log", "scheduler", "metric"])
    curves = MemoryBackend()
    for gpu in ("0", "1"):
        series = Series("gpu_sm_active_ratio", (("gpu", gpu), ("node", "n1")), Position("n1.prom", 1))
        times = np.arange(0, 601_000, 15_000, dtype=np.int64)
        curves.add(Samples([series], np.zeros(len(times), np.int32), times, np.linspace(0.0, 1.0, len(times))))
    store.metrics = RunMetrics(curves, tuple(curves.series()), Timing(0.0, 600.0, 15.0))
    return store


SMALL = small_store()

literals = st.one_of(
    scalars.map(repr),
    st.sampled_from(["'avg'", "'run'", "'node'", "15", "600.0", "-5", "0.001", "1e12", "1e999", "-1e999", "1e-300"]),
    st.sampled_from(
        ["None", "{}", "['0']", "{'a'}", "b'x'", "1j", "2**9", "x", "'\\ud800'", "0x" + "f" * 5000, "9" * 5000]
    ),
    st.text(max_size=10),
)
arguments = st.lists(
    st.tuples(st.sampled_from(["", "", "", "how=", "gpu=", "state=", "**", "step="]), literals).map("".join), max_size=3
)
names = st.sampled_from(["where", "during", "rollup", "over", "by", "count", "first", "max", "avg", "distinct", "no"])
steps = st.lists(st.tuples(names, arguments).map(lambda step: f".{step[0]}({', '.join(step[1])})"), max_size=4)
sources = st.sampled_from(["events(progress)", "record(job)", "metric(gpu_sm_active_ratio)", "metric(none)"])
likely = st.lists(
    st.sampled_from([
        ".during(0, 600)", ".during(600, 0)", ".during(5, 5)", ".rollup(15, 'avg')", ".rollup(0.001, 'increase')",
        ".rollup(9e12, 'max')", ".over('tail', 'onset')", ".by('node', how='min')", ".by(how='median')",
        ".by('', how='sum')", ".where(gpu='0')", ".where(loss=5.0)", ".count()", ".max()", ".first('loss')", ".distinct()",
    ]),
    max_size=4,
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.one_of(st.text(max_size=200), st.tuples(sources, steps | likely).map(lambda text: text[0] + "".join(text[1])))
)
def test_any_text_is_an_error_or_gets_an_answer(text: str) -> None:
    """Any query text of a document is parsed, run on a small store and reduced."""
    for candidate in (text, f"events(exception){text}", f"record(job).where({text})"):
        with contextlib.suppress(QueryError):
            query = Query.parse(candidate)
            assert Query.parse(str(query)) == query
            answer = SMALL.ask(query)
            if not isinstance(answer, MissingAnswer):
                reduce_answer(answer, query)


@pytest.mark.parametrize(
    "text",
    [
        "events(nonsense)",
        "record(exception)",
        "events(exception).where(__import__('os'))",
        "events(exception).where(a=open('x'))",
        "drop table",
        "",
    ],
)
def test_invalid_queries_are_refused(text: str) -> None:
    with pytest.raises(QueryError):
        Query.parse(text)


def test_a_value_needs_a_citation() -> None:
    with pytest.raises(ValueError, match="uncited"):
        Value(3, ())


def test_cited_values_can_be_asked_again() -> None:
    store = MemoryStore([event(1, loss=5.0), event(2, loss=2.0), event(3, loss=math.nan)])
    frame = store.ask(events("progress"))
    assert isinstance(frame, Frame)
    for value in (frame.reduce("count"), frame.reduce("min", "loss"), frame.value(frame.rows[1], "loss")):
        query = Query.parse(str(value.cites[0].query))
        again = store.ask(query.rows)
        assert isinstance(again, Frame)
        assert query.reducer is not None
        assert reduce_rows(again.rows, query.reducer, query.reduced) == value.value


def test_filtered_rows_cite_the_unfiltered_query() -> None:
    store = MemoryStore([event(1, loss=5.0), event(2, loss=2.0), event(3, loss=9.0)])
    frame = store.ask(events("progress"))
    assert isinstance(frame, Frame)
    left = frame.filtered(lambda row: row.get("loss") != 2.0).filtered(lambda row: row.get("loss") == 9.0)
    assert len(left) == 1
    values = [left.reduce("count"), left.reduce("min", "loss"), left.filtered(lambda row: False).reduce("count")]
    assert [value.value for value in values] == [3, 2.0, 3]
    for value in values:
        query = Query.parse(str(value.cites[0].query))
        assert reduce_answer(frame, query) == value.value


def test_unmeasured_is_distinct_from_empty() -> None:
    store = MemoryStore([event(1)])
    assert isinstance(store.ask(record("job")), MissingAnswer)
    assert isinstance(store.ask(metric("gpu_sm_active_ratio")), MissingAnswer)
    answer = store.ask(events("exception"))
    assert isinstance(answer, Frame)
    assert len(answer) == 0


def test_derived_carries_all_citations() -> None:
    cites = [Cite("log", "files", f"events(progress).count({i})", "log:1", 1) for i in range(2)]
    value = derived(2, Value(1, (cites[0],)), Value(1, tuple(cites)))
    assert value.cites == tuple(cites)
