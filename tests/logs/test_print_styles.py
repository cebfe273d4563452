"""Seven logged steps in many print styles, whose loss falls from 2.3 to 0.8693: each step is read, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trackside import diagnose

STYLES = json.loads((Path(__file__).parent / "print_styles.json").read_text("utf-8"))


@pytest.mark.parametrize("style", STYLES)
def test_each_step_is_read_once(style: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"Using device: cuda\n{STYLES[style]}Training finished\n", "utf-8")
    progress = diagnose(log).progress
    assert progress is not None
    assert progress.points == 7
    assert progress.first[1] == pytest.approx(2.3, rel=6e-3)
    assert progress.last[1] == pytest.approx(0.8693, rel=6e-3)
