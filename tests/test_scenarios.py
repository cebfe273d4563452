"""Every scenario replayed: the verdict, every citation checked again, the golden matrix, and each plane removed."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

import trackside
from tools.cases import Case, corpus, misses, scenarios
from trackside.errors import SeveralRuns
from trackside.finding import Certainty, Outcome, Verdict
from trackside.model import Event, Plane, Record
from trackside.session import Session
from trackside.session.inputs import LoadedInputs
from trackside.session.paths import load
from trackside.show.document import decode, document, encode
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine
from trackside.verify import check

CASES = scenarios()
MATRIX = Path(__file__).parent / "scenarios" / "matrix.json"


PLANES: tuple[Plane, ...] = ("log", "scheduler", "kernel", "collective", "metric")


@lru_cache(maxsize=2)
def loaded_of(name: str) -> LoadedInputs:
    """The loaded inputs of a case."""
    case = next(case for case in CASES if case.name == name)
    with case.inputs() as folder:
        return load([folder])


def verdict_of(name: str) -> Verdict:
    """The verdict on all of a case's inputs."""
    return Session.of(loaded_of(name)).verdict()


def without(case: Case, plane: Plane) -> Verdict | None:
    """The verdict without one plane's inputs; None if the case has none of them, or nothing else."""
    loaded = loaded_of(case.name)
    if plane not in loaded.store.planes or loaded.store.planes == {plane}:
        return None
    rows = [row for row in loaded.store.all_rows() if row.plane != plane]
    rest = MemoryStore(
        [row for row in rows if isinstance(row, Event)],
        [row for row in rows if isinstance(row, Record)],
        loaded.store.planes - {plane},
    )
    less = replace(loaded, store=rest)
    if plane == "metric":
        less.metric_backend = None
    if plane == "log":
        less.trajectories = type(loaded.trajectories)()
    try:
        session = Session.of(less)
    except SeveralRuns:
        return None
    return engine.verdict_of(engine.facts_of(session.store, session.run))


def families_of(verdict: Verdict) -> str:
    """The families found: the primary, +consequences, !warnings."""
    marks = [("", [verdict.primary]), ("+", verdict.consequences), ("!", verdict.warnings)]
    return " ".join(f"{mark}{finding.family}" for mark, findings in marks for finding in findings)


def broken_citations(verdict: Verdict, loaded: LoadedInputs) -> list[str]:
    """Citations of the verdict's JSON form that do not hold on the inputs."""
    doc = decode(encode(document(verdict)))
    assert doc.cites
    store = Session.of(replace(loaded, job=doc.run.id)).store
    return [
        f"{result.cite.query}: was {result.cite.value!r}, now {result.now!r} {result.problem}"
        for result in check(doc.cites, store)
        if not result.holds
    ]


def wrong_without(case: Case, plane: Plane) -> str:
    """The wrong but established verdict without a plane; empty if there is none, since less evidence may only weaken it.

    ``less`` names families that are right for the remaining inputs, such as the hang if its cause was in the removed ones.
    """
    verdict = without(case, plane)
    if verdict is None or verdict.primary.outcome is Outcome.UNKNOWN:
        return ""
    right = verdict.primary.family in {*case.accepted, *case.expected.get("less", ())}
    wrong = not right and verdict.primary.certainty is Certainty.ESTABLISHED
    return f"without {plane}: {verdict.primary}" if wrong else ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scenario(case: Case, rewrite: bool) -> None:
    verdict = verdict_of(case.name)
    assert not [row for row in verdict.inputs if "defect" in row.note]
    assert not misses(case, verdict)
    assert not broken_citations(verdict, loaded_of(case.name))
    if not rewrite:
        row = json.loads(MATRIX.read_text("utf-8")).get(case.name)
        assert families_of(verdict) == row, "the matrix changed: look at it, then pytest --rewrite"
    assert not [wrong for plane in PLANES if (wrong := wrong_without(case, plane))]


def test_matrix(rewrite: bool) -> None:
    """The matrix has a row for each scenario; each scenario's own test checks its row."""
    if rewrite:
        rows = {case.name: families_of(verdict_of(case.name)) for case in CASES}
        MATRIX.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", "utf-8")
    assert sorted(json.loads(MATRIX.read_text("utf-8"))) == sorted(case.name for case in CASES)


@pytest.mark.corpus
def test_corpus() -> None:
    """The labeled corpus: at least 95 % of the primary families are right, and no culprit is swapped."""
    judged = []
    for case in corpus():
        with case.inputs() as folder:
            judged.append((case, misses(case, trackside.diagnose(folder))))
    wrong = {case.name: miss["family"] for case, miss in judged if "family" in miss}
    assert len(wrong) <= 0.05 * len(judged), wrong
    blamed = {
        case.name: miss["culprit"]
        for case, miss in judged
        if "culprit" in miss and {"job", "infrastructure"} <= set(miss["culprit"].replace(",", "").split())
    }
    assert not blamed
