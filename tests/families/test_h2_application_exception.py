"""H2 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import pytest

from tests.families.grids import (
    Cluster,
    later,
    restarted,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    FALLING,
    FOUND,
    curve,
    event,
    exception,
    judge_store,
    keys,
    primary,
    root,
    short_job,
    store,
    text_of,
)
from trackside.families.h2_application_exception import CRASHED_AFTER
from trackside.model import EventRole, Plane


def test_h2_needs_steps_before_the_exception() -> None:
    bad = exception("ValueError", "substring not found", rank=1, frames="t.py:3 in encode")
    finding = primary(store(curve(FALLING), bad, short_job("FAILED")))
    assert (finding.family, finding.fault_class, finding.ranks) == ("H2", "data", (1,))
    assert judge_store("H2", store(bad)).outcome is ABSENT
    assert judge_store("H2", store(exception("ValueError", "x", line=1), curve(FALLING))).outcome is ABSENT
    lost = event("exception", 500, EventRole.CASCADE, type="RuntimeError", message="gloo", about="collective")
    assert judge_store("H2", store(curve(FALLING), lost)).outcome is ABSENT


@pytest.mark.parametrize(
    ("message", "planes", "culprit"),
    [
        ("CUDA error: unspecified launch failure", ("log",), "unknown"),
        ("CUDA error: unspecified launch failure", ("log", "kernel"), "job"),
        ("CUDA error: device-side assert triggered", ("log",), "job"),
    ],
)
def test_h2_culprit_is_unknown_if_a_lost_gpu_raises_the_same_error(
    message: str, planes: tuple[Plane, ...], culprit: str
) -> None:
    rows = store(curve(FALLING), exception("RuntimeError", message, about="cuda"), planes=planes)
    finding = judge_store("H2", rows)
    assert (finding.outcome, finding.culprit) == (FOUND, culprit)


def test_an_exception_that_a_restart_survived_is_a_warning() -> None:
    cluster = Cluster().per_gpu("gpu_sm_active_ratio", 0.8)
    error = event(
        "exception", 20, role=EventRole.ROOT, type="ValueError", message="no", about="application", time=2000.0
    )
    finding = cluster.judge("H2", error, restarted(), later(), COMPLETED)
    assert (finding.outcome, finding.latent) == (FOUND, True)
    assert {"workers_restarted", "training_continued"} <= set(keys(finding))
    assert keys(cluster.judge("H2", error, later(), COMPLETED)) == ["completed_in_spite"]


def test_the_families_that_an_error_rules_out_name_the_same_error() -> None:
    early = root("exception", 20, type="TypeError", message="unexpected keyword", about="application")
    memory = {"type": "OutOfMemoryError", "message": "CUDA out of memory", "about": "oom"}
    last = root("exception", 90, type="ValueError", message="sample", about="application")
    rows = store(early, root("exception", 60, **memory), root("cuda_oom", 60), last)
    assert "about GPU memory" in text_of(judge_store("H2", rows))
    assert "OutOfMemoryError: CUDA out of memory" in text_of(judge_store("C3", rows))


def test_a_crash_below_a_closing_line_came_after_the_training() -> None:
    end = event("training_end", 480, status="success")
    crash = exception("ModuleNotFoundError", "No module named 'pyrender'", line=490)
    finding = judge_store("H2", store(curve(FALLING), end, crash))
    assert finding.outcome is FOUND
    assert {"training_was_over"} <= set(keys(finding))
    assert "resume" not in finding.actions[0].sentence.text


def test_a_summary_of_the_training_shows_that_it_was_over() -> None:
    error = exception("KeyError", "'validation'", line=500)
    summary = event("training_end", 400, status="success", train_loss=1.07, seconds=3214.7)
    finding = primary(store(summary, error))
    assert (finding.family, finding.headline.sentence) == ("H2", CRASHED_AFTER)
    assert judge_store("A1", store(summary, error)).outcome is ABSENT
    bare_end = event("training_end", 400, status="success")  # "Done." of whatever came before
    assert primary(store(bare_end, error)).family == "A1"


def test_an_error_of_a_shell_command_is_not_said_to_be_in_a_thread() -> None:
    text = "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'."
    error = event("exception", 5, EventRole.CONFIRMATION, type="CommandNotFoundError", about="application", text=text)
    assert keys(judge_store("H2", store(error, curve(FALLING)))) == ["command_failed"]
    thread = event("exception", 5, EventRole.CONFIRMATION, type="OSError", about="application", text="OSError: x")
    assert keys(judge_store("H2", store(thread, curve(FALLING)))) == ["not_fatal"]
