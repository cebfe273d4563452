"""Every store gives the answers of every case in ``cases``. A further case is one more file there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.case import Answer, Case, difference, read, same, to_answer
from tests.contract.stores import SERVERS, STORES, StoreContents
from trackside.evidence import Frame, Grid, MissingAnswer, reduce_answer
from trackside.query import AGGREGATES, ROLLUPS, SPANS, Query
from trackside.runs.metrics import run_metrics
from trackside.session.site import MAX_ZONE_OFFSET_S
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import MetricBackend
from trackside.stores.metric_server import RunScope

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


def contents_of(case: Case, folder: Path) -> StoreContents:
    """The samples of a case as files in ``folder``, with its scope and labels."""
    folder.mkdir()
    for name, samples in case.files.items():
        (folder / name).write_text(exposition(samples))
    run = case.run
    start, end = (
        run.start and run.start - MAX_ZONE_OFFSET_S,
        run.end and run.end + MAX_ZONE_OFFSET_S,
    )  # as for records from files
    scope = RunScope(start, end, run.nodes, (run.id,) if run.id else ())
    return StoreContents(sorted(folder.iterdir()), scope, exposition(case.unrelated), case.match, case.relabel)


def exposition(samples: dict[str, list[tuple[int, str]]]) -> str:
    """Prometheus text."""
    return "".join(f"{series} {value} {time}\n" for series, points in samples.items() for time, value in points)


def answers_of(case: Case, backend: MetricBackend) -> list[Answer]:
    """The answers of a store to each query; queried together, as families do, and one by one, they must agree."""
    rows = MemoryStore(planes=("metric",))
    _, rows.metrics = run_metrics(backend, case.run, rows)
    queries = [ask.query for ask in case.asks]
    rows.expect(query.rows for query in queries)
    together = [
        answer_to(query, answer)
        for query, answer in zip(queries, rows.ask_many([query.rows for query in queries]), strict=True)
    ]
    singly = [answer_to(query, rows.ask(query.rows)) for query in queries]
    for ask, batch_answer, single_answer in zip(case.asks, together, singly, strict=True):
        assert same(batch_answer, single_answer), difference(
            "same, queried alone,", replace(ask, expected=batch_answer), single_answer
        )
    return together


def answer_to(query: Query, answer: Frame | Grid | MissingAnswer) -> Answer:
    """A grid, or the value that the query reduces it to."""
    assert not isinstance(answer, Frame)
    return (
        to_answer(answer)
        if query.reducer is None or isinstance(answer, MissingAnswer)
        else reduce_answer(answer, query)
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
@pytest.mark.parametrize("store", [pytest.param(s, marks=pytest.mark.service if s in SERVERS else ()) for s in STORES])
def test_every_store_gives_the_answers_of_the_case(path: Path, store: str, tmp_path: Path, rewrite: bool) -> None:
    case = read(path)
    with STORES[store](contents_of(case, tmp_path / "files"), tmp_path / "store") as open_backend:
        answers = answers_of(case, open_backend())
    if rewrite and store == "memory":  # the other stores are compared with it
        path.write_text(case.expecting(answers))
        return
    mismatches = [
        difference(store, ask, actual)
        for ask, actual in zip(case.asks, answers, strict=True)
        if not same(ask.expected, actual)
    ]
    if reason := case.excepted.get(store):
        assert mismatches, f"the {store} store gives the same answer as the others, although {reason}"
        return
    assert not mismatches, "\n" + "\n".join(mismatches)


def test_the_cases_use_every_rollup_and_span() -> None:
    """In all cases together."""
    queries = [ask.query for path in CASES for ask in read(path).asks]
    assert {query.rollup_how for query in queries} >= set(ROLLUPS)
    assert {query.span for query in queries} >= set(SPANS)
    assert {query.group_how for query in queries} >= set(AGGREGATES)
