"""A loop in the manner of nanoGPT: an iteration a line, no times of day."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.act import Act, Entry
from trackside.sim.progress import points
from trackside.sim.stage import Stage


def lines(stage: Stage, act: Act) -> Iterator[Entry]:
    """Iterations, evaluations and saves."""
    if "load" in act.phases:
        now = act.phases["load"][0] + 1
        yield Entry(now, f"tokens per iteration will be: {stage.scenario.job.tokens_per_step:,}", 0)
        yield Entry(
            now, f"Resuming training from {act.loads}" if act.loads else "Initializing a new model from scratch", 0
        )
    if "train" not in act.phases:
        return
    for point in points(act, stage.scenario.job.log_every, first=True):
        loss = "nan" if point.loss != point.loss else f"{point.loss:.4f}"
        yield Entry(
            point.time,
            f"iter {point.step}: loss {loss}, time {point.pace * 1000:.2f}ms, mfu {min(41.3, 120 / point.pace):.2f}%",
            0,
        )
    for mark in act.marks:
        if mark.kind == "eval":
            value = act.curve.loss_of(mark.step)
            yield Entry(mark.end, f"step {mark.step}: train loss {value:.4f}, val loss {value * 1.03:.4f}", 0)
        elif mark.kind == "checkpoint":
            yield Entry(mark.start, "saving checkpoint to out", 0)
