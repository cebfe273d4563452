"""Stands in for a GPU in a CPU run: one file per process, touched after each step."""

from __future__ import annotations

import os
from pathlib import Path

BOARD = os.environ.get("STANDIN_GPU_BOARD", "")


def mark_step_done() -> None:
    """Mark a step for the simulated GPUs (lab/demo/gpus.py); does nothing without them."""
    if BOARD:
        (Path(BOARD) / str(os.getpid())).touch()
