"""H1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import pytest

from tests.families.rows import (
    ABSENT,
    FALLING,
    FOUND,
    Row,
    curve,
    event,
    exception,
    judge,
    judge_store,
    keys,
    notice,
    primary,
    root,
    short_job,
    store,
)
from trackside.families import families
from trackside.logs.scan import scan_text
from trackside.model import Event, EventRole, Run
from trackside.verdict import engine
from trackside.verdict.arbiter import arbitrate


def test_h1_counts_a_user_cancellation_despite_unkillable_processes() -> None:
    """Slurm's notice about processes that survive a cancellation is no separate end."""
    notices = [notice("cancelled"), notice("unkillable", 801)]
    assert judge_store("H1", store(*notices, short_job("CANCELLED", cancelled_by="1000"))).outcome is FOUND
    assert judge_store("H1", store(*notices, short_job("CANCELLED"))).outcome is FOUND
    assert judge_store("H1", store(*notices[1:], short_job("CANCELLED"))).outcome is ABSENT


KILLED = "srun: error: n1: task 1: Killed"
TERMINATED = "srun: error: n2: task 0: Terminated"
ENDS = ("srun: Terminating StepId=3.0", "srun: launch/slurm: _step_signal: Terminating StepId=3.0")
STEP, JOB = (
    f"slurmstepd-n1: error: *** {what} ON n1 CANCELLED AT 2026-11-22T03:20:00 ***" for what in ("STEP 3.0", "JOB 3")
)


@pytest.mark.parametrize(
    ("lines", "family"),
    [
        *(((KILLED, *rest), "A2") for end in ENDS for rest in ((STEP, end, TERMINATED), (end, STEP, TERMINATED))),
        ((KILLED, ENDS[0], TERMINATED, STEP), "A2"),
        ((KILLED, ENDS[0].replace("3.0", "3.1"), STEP), "H1"),
        ((STEP, TERMINATED), "H1"),
        ((TERMINATED, ENDS[0], STEP), "H1"),
        ((JOB, ENDS[0], KILLED), "H1"),
        ((STEP, JOB, ENDS[0], KILLED), "H1"),
    ],
)
def test_h1_ignores_a_step_that_srun_ended_after_a_task_was_killed(lines: tuple[str, ...], family: str) -> None:
    text = "\n".join((*(f"step {step}0 loss {3 - step / 10}" for step in range(1, 9)), *lines))
    rows: list[Row] = [row for row in scan_text(text) if isinstance(row, Event)]
    chosen = list(families())
    assert arbitrate(engine.judge_all(store(rows, planes=("log",)), Run(), chosen), chosen).primary.family == family


def test_h1_names_a_cancelled_job() -> None:
    cancelled = notice("cancelled", text="slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    finding = primary(store(curve(FALLING), cancelled, short_job("CANCELLED", cancelled_by="1000")))
    assert (finding.family, finding.culprit) == ("H1", "none")
    assert judge_store("H1", store(curve(FALLING), cancelled)).outcome is FOUND
    assert judge_store("H1", store(cancelled, short_job("TIMEOUT"))).outcome is ABSENT
    assert judge_store("H1", store(notice("time_limit"))).outcome is ABSENT
    step = notice("cancelled", text="slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    failed = event("process_exit", 700, EventRole.ROOT, exit_code=1, source="srun")
    assert judge_store("H1", store(step, failed)).outcome is ABSENT


def test_h1_counts_a_keyboard_interrupt() -> None:
    stop = exception("KeyboardInterrupt", "", about="interrupt")
    assert primary(store(curve(FALLING), stop)).variant == "interrupt"


def test_h1_ignores_a_cancelled_step_if_the_job_failed() -> None:
    step = notice("cancelled", text="STEP 7.0 ON n1 CANCELLED AT 2026-01-01")
    assert judge("H1", step).outcome is FOUND
    assert judge("H1", step, root("process_exit", 50, exit_code=1)).outcome is ABSENT
    assert judge("H1", step, exception("ValueError", "no")).outcome is ABSENT


def test_h1_distinguishes_the_owner_from_another_user() -> None:
    own = judge("H1", short_job("CANCELLED", cancelled_by="1000", uid="1000"))
    other = judge("H1", short_job("CANCELLED", cancelled_by="0", uid="1000"))
    assert (keys(own), keys(other)) == (["recorded", "canceled_by_owner"], ["recorded", "canceled_by", "submitted_by"])
    assert judge("H1", short_job("FAILED", cancelled_by="0", uid="1000")).outcome is ABSENT


@pytest.mark.parametrize(
    ("frames", "is_saved"),
    [
        ("/w/train.py:9 in <module>;/w/train.py:4 in main", True),
        ("/w/train.py:9 in <module>;/w/net.py:3 in <module>", False),
    ],
)
def test_a_run_interrupted_in_its_imports_has_no_checkpoint(frames: str, is_saved: bool) -> None:
    (advice,) = judge("H1", exception("KeyboardInterrupt", "", about="interrupt", frames=frames)).actions
    assert ("checkpoint" in advice.sentence.text) is is_saved
