"""The points at which a training loop prints, and what it prints there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trackside.sim.attempt import JobAttempt


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """A completed step. ``pace``: mean seconds per step since the previous point."""

    step: int
    time: float
    loss: float
    norm: float
    rate: float
    pace: float
    elapsed: float
    """Seconds since training began."""


def points(attempt: JobAttempt, every: int, with_first: bool = False) -> Iterator[ProgressPoint]:
    """Every ``every``-th completed step, and also the first one if ``with_first``."""
    if not len(attempt.step_ends):
        return
    steps = np.arange(attempt.first_step + 1, attempt.first_step + 1 + len(attempt.step_ends))
    loss, norm, rate = attempt.curve.values_at(steps)
    begin = attempt.phases["train"][0]
    is_printed = steps % every == 0
    if with_first:
        is_printed[0] = True
    last_time, last_step = begin, attempt.first_step
    for i in np.flatnonzero(is_printed).tolist():
        step, time = int(steps[i]), float(attempt.step_ends[i])
        pace = (time - last_time) / (step - last_step)
        yield ProgressPoint(step, time, float(loss[i]), float(norm[i]), float(rate[i]), pace, time - begin)
        last_time, last_step = time, step


def clock(seconds: float) -> str:
    """A duration as progress bars print it: 01:05 or 2:01:05."""
    total = int(seconds)
    hours, minutes, remainder = total // 3600, total // 60 % 60, total % 60
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes:02d}:{remainder:02d}"


def bar(done: int, total: int, elapsed: float, pace: float) -> str:
    """A tqdm bar of ten cells."""
    share = done / max(total, 1)
    full, eighths = divmod(int(share * 80), 8)
    cells = "█" * full + (" ▏▎▍▌▋▊▉"[eighths] if full < 10 and eighths else "")
    rate = f"{pace:5.2f}s/it" if pace >= 1 else f"{1 / max(pace, 1e-9):5.2f}it/s"
    time_left = clock(max(0, total - done) * pace)
    return f"{share:4.0%}|{cells:<10}| {done}/{total} [{clock(elapsed)}<{time_left}, {rate}]"
