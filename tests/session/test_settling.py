"""When a verdict is final: what Slurm says, what has just arrived, and files that are still being written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from trackside.catalog.job_states import Stage
from trackside.cli import main
from trackside.session import PathsRequest, open_session
from trackside.session.settling import PATIENCE_S, SETTLE_S, by_arrival, by_stage
from trackside.show import brief, heading
from trackside.show.document import VerdictDoc, document
from trackside.stores.metric_server import HIDDEN_S

END = 1_772_439_000.0


@pytest.mark.parametrize(
    ("stage", "end", "now", "until"),
    [
        ("unknown", END, END, False),
        ("going", None, END, None),
        ("ended", END, END + PATIENCE_S - 1, END + PATIENCE_S),
        ("ended", END, END + PATIENCE_S, False),
        ("settled", END, END + 1, END + SETTLE_S),
        ("settled", END, END + SETTLE_S, False),
        ("settled", None, END, False),
    ],
)
def test_slurm_says_how_long_a_verdict_is_not_final(
    stage: Stage, end: float | None, now: float, until: float | bool | None
) -> None:
    """``until``: False if it is final."""
    unsettled = by_stage(stage, end, now)
    assert (False if unsettled is None else unsettled.until) == until


def test_samples_that_servers_hide_have_a_minute_to_arrive() -> None:
    assert SETTLE_S >= HIDDEN_S + 60


def test_data_that_has_just_arrived_may_be_followed_by_more() -> None:
    assert by_arrival(None, END) is None
    assert by_arrival(END, END + SETTLE_S) is None
    unsettled = by_arrival(END, END + 5)
    assert unsettled is not None
    assert unsettled.until == END + SETTLE_S


def test_a_clock_that_is_ahead_does_not_delay_the_end_of_the_waiting() -> None:
    unsettled = by_arrival(END + 3600, END)
    assert unsettled is not None
    assert unsettled.until == END + SETTLE_S


def finished_log(folder: Path) -> Path:
    """The log of a training that ended well."""
    log = folder / "train.log"
    steps = [f"step {step} loss {4 - step / 50:.3f} lr 0.0001" for step in range(1, 101)]
    log.write_text("\n".join(["Training started", *steps, "Training complete."]) + "\n")
    return log


def diagnosed(log: Path, grows: bool, now: str | None = None) -> VerdictDoc:
    with open_session(PathsRequest([log], as_of=float(now) if now else None)) as session:
        if grows:
            with log.open("a") as file:
                file.write("step 101 loss 2.0 lr 0.0001\n")
            os.utime(log, (time.time() + 1, time.time() + 1))
        return document(session.verdict(), [str(log)])


def test_a_log_that_grows_while_it_is_read_is_not_healthy_yet(tmp_path: Path) -> None:
    log = finished_log(tmp_path)
    final = diagnosed(log, grows=False)
    assert (final.primary.family, final.primary.certainty, final.unsettled) == ("G1", "supported", None)
    growing = diagnosed(log, grows=True)
    assert (growing.primary.family, growing.primary.certainty) == ("G1", "possible")
    assert heading.unsettled(growing).startswith("Not settled yet: train.log is still being written; ask again after ")
    assert heading.unsettled(growing) in brief.paragraph(growing)


def test_a_time_given_as_the_present_is_final(tmp_path: Path) -> None:
    log = finished_log(tmp_path)
    assert diagnosed(log, grows=True, now="1772439000").unsettled is None


def test_wait_prints_the_final_verdict(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["diagnose", "--wait", "--exit-code", str(finished_log(tmp_path))])
    assert result.exit_code == 0
    assert "Not settled" not in result.output


@pytest.mark.parametrize("other", [["--watch", "--slurm", "auto"], ["--now", "1772439000"]])
def test_wait_refuses_options_that_contradict_it(tmp_path: Path, other: list[str]) -> None:
    result = CliRunner().invoke(main, ["diagnose", "--wait", *other, "--job", "42", str(tmp_path)])
    assert result.exit_code == 2
