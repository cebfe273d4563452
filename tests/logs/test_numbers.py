"""What a printed name means."""

from __future__ import annotations

import pytest

from trackside.logs.numbers import field_meaning


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("train/loss", "loss"),
        ("val_loss", "eval_loss"),
        ("critic/score/mean", "reward"),
        ("critic/rewards/mean", "reward"),
        ("val-aux/aime/reward/mean@30", None),
        ("timing_s/reward", None),
        ("time/loss", None),
        ("timing_s/step", "step_time_s"),
        ("step_time", "step_time_s"),
        ("training/global_step", "step"),
    ],
)
def test_a_name_means_a_field(name: str, field: str | None) -> None:
    meaning = field_meaning(name)
    assert (meaning and meaning[0]) == field
