from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.model import Cite, Event, Position, Value
from trackside.query import Frame, Missing, Query, QueryError, derived, events, metric, record, reduce_rows
from trackside.stores.memory import MemoryStore

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


def test_metric_queries_round_trip() -> None:
    query = metric("gpu_sm_active_ratio").where(job="42").rollup(15, "avg").by("gpu", "node", how="max")
    assert Query.parse(str(query)) == query


@given(st.text(max_size=200))
def test_any_text_is_a_query_or_an_error(text: str) -> None:
    for each in (text, f"events(exception){text}", f"record(job).where({text})"):
        with contextlib.suppress(QueryError):
            Query.parse(each)


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
def test_refused(text: str) -> None:
    with pytest.raises(QueryError):
        Query.parse(text)


def event(line: int, **fields: object) -> Event:
    return Event("progress", Position("log", line, line * 10), "log", fields=fields)  # type: ignore[arg-type]


def test_a_value_needs_a_citation() -> None:
    with pytest.raises(ValueError, match="uncited"):
        Value(3, ())


def test_cited_values_can_be_asked_again() -> None:
    store = MemoryStore([event(1, loss=5.0), event(2, loss=2.0), event(3, loss=math.nan)])
    frame = store.ask(events("progress"))
    assert isinstance(frame, Frame)
    for value in (frame.reduce("count"), frame.reduce("min", "loss"), frame.value(frame.rows[1], "loss")):
        query = Query.parse(value.cites[0].query)
        again = store.ask(query.rows)
        assert isinstance(again, Frame)
        assert query.reducer is not None
        assert reduce_rows(again.rows, query.reducer, query.reduced) == value.value


def test_not_measured_is_not_none() -> None:
    store = MemoryStore([event(1)])
    assert isinstance(store.ask(record("job")), Missing)
    assert isinstance(store.ask(metric("gpu_sm_active_ratio")), Missing)
    answer = store.ask(events("exception"))
    assert isinstance(answer, Frame)
    assert len(answer) == 0


def test_derived_carries_all_citations() -> None:
    cites = [Cite("log", "files", f"events(progress).count({i})", "log:1", 1) for i in range(2)]
    value = derived(2, Value(1, (cites[0],)), Value(1, tuple(cites)))
    assert value.cites == tuple(cites)
