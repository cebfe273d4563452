"""The points at which a training loop prints, and what it prints there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trackside.sim.act import Act


@dataclass(frozen=True, slots=True)
class Point:
    """A completed step. ``pace``: mean seconds a step since the point before."""

    step: int
    time: float
    loss: float
    norm: float
    rate: float
    pace: float
    elapsed: float
    """Since training began."""


def points(act: Act, every: int, first: bool = False) -> Iterator[Point]:
    """Every ``every``-th completed step, and the first one where ``first``."""
    if not len(act.step_ends):
        return
    steps = np.arange(act.first_step + 1, act.first_step + 1 + len(act.step_ends))
    loss, norm, rate = act.curve.at(steps)
    begin = act.phases["train"][0]
    picked = steps % every == 0
    if first:
        picked[0] = True
    before, last = begin, act.first_step
    for i in np.flatnonzero(picked).tolist():
        step, time = int(steps[i]), float(act.step_ends[i])
        pace = (time - before) / (step - last)
        yield Point(step, time, float(loss[i]), float(norm[i]), float(rate[i]), pace, time - begin)
        before, last = time, step


def clock(seconds: float) -> str:
    """As progress bars write lengths: 01:05 or 2:01:05."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def bar(done: int, total: int, elapsed: float, pace: float) -> str:
    """A tqdm bar of ten cells."""
    share = done / max(total, 1)
    full, part = divmod(int(share * 80), 8)
    cells = "█" * full + (" ▏▎▍▌▋▊▉"[part] if full < 10 and part else "")
    rate = f"{pace:5.2f}s/it" if pace >= 1 else f"{1 / max(pace, 1e-9):5.2f}it/s"
    left = clock(max(0, total - done) * pace)
    return f"{share:4.0%}|{cells:<10}| {done}/{total} [{clock(elapsed)}<{left}, {rate}]"
