"""The checkpoint that a run resumes from, and the training before it."""

from __future__ import annotations

import pytest

from tests.families.rows import curve, event, exception, short_job, store
from trackside.facts.fact import Facts
from trackside.facts.training.parent_run import ParentRun
from trackside.facts.training.resume import Resume, load_failure
from trackside.model import Run
from trackside.stores.memory import MemoryStore


def resume(evidence_store: MemoryStore, run: Run | None = None) -> Resume:
    fact = Facts(evidence_store, run or Run(), lambda query, answer: answer).get(Resume)
    assert isinstance(fact, Resume)
    return fact


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ("size mismatch for fc.weight", "mismatch"),
        ("failed finding central directory", "corrupt"),
        ("no such file: ckpt.pt", "absent"),
        ("weights only", "unreadable"),
    ],
)
def test_a_failed_load_is_classified_by_its_message(message: str, failure: str) -> None:
    row = exception("RuntimeError", message, about="checkpoint")
    assert load_failure(row) == failure
    assert resume(store(row)).failed_load is row


def test_a_failed_save_is_no_failed_load() -> None:
    for fields in ({"frame": "_save"}, {"frames": "x.py:1 in train;y.py:2 in save_checkpoint;"}):
        assert resume(store(exception("OSError", "it broke", about="checkpoint", **fields))).failed_load is None


def test_a_load_marker_contradicted_by_a_later_line_does_not_count() -> None:
    marker, missing = event("checkpoint_loaded", 5, text="loaded"), event("checkpoint_missing", 7, text="not there")
    loaded = resume(store(marker)).loaded
    assert loaded is not None
    assert loaded.value == "loaded"
    assert resume(store(marker, missing)).loaded is None


def test_an_argument_of_none_is_no_resume_request() -> None:
    none = event("resume_requested", 1, path="None", by="argument")
    named = event("resume_requested", 2, path="out/checkpoint-7", by="argument")
    assert resume(store(none)).request is None
    both = resume(store(none, named))
    assert (both.request, both.names_checkpoint, len(both.requested)) == (named, True, 1)


def test_history_comes_from_the_scheduler_and_the_launcher() -> None:
    again = resume(store(short_job("COMPLETED", restarts=2), event("launcher_restart", 9, text="restarting")))
    assert [set(claim.values) for claim in again.history] == [{"restarts"}, {"line"}]
    child = resume(store(short_job("COMPLETED", dependency="afterok:6")), Run(id="7", parent="6"))
    assert [set(claim.values) for claim in child.history] == [{"dependency"}]
    assert resume(store(short_job("COMPLETED"))).history == ()


def test_the_part_before_a_restart_is_the_parent_if_it_saved() -> None:
    lives = [*curve([4.0, 3.0, 2.0], run_part=0), *curve([4.0, 3.5], run_part=1)]
    rows = store(lives, event("launcher_restart", 20), event("checkpoint_saved", 19, step=30))
    parent = Facts(rows, Run(), lambda query, answer: answer).get(ParentRun)
    assert isinstance(parent, ParentRun)
    assert parent.curve is not None
    assert (parent.curve.finite, parent.has_learned) == ([4.0, 3.0, 2.0], True)
    unsaved = Facts(store(lives, event("launcher_restart", 20)), Run(), lambda query, answer: answer).get(ParentRun)
    assert isinstance(unsaved, ParentRun)
    assert (unsaved.curve, unsaved.has_learned) == (None, False)
