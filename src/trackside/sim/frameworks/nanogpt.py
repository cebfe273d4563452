"""A loop like nanoGPT's: one line per iteration, without times of day."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.progress import points
from trackside.sim.simulation import Simulation


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """Iterations, evaluations and saves."""
    if "load" in attempt.phases:
        now = attempt.phases["load"][0] + 1
        yield PrintedText(now, f"tokens per iteration will be: {sim.scenario.job.tokens_per_step:,}", 0)
        yield PrintedText(
            now,
            f"Resuming training from {attempt.loaded_checkpoint}"
            if attempt.loaded_checkpoint
            else "Initializing a new model from scratch",
            0,
        )
    if "train" not in attempt.phases:
        return
    for point in points(attempt, sim.scenario.job.log_every, with_first=True):
        loss = "nan" if point.loss != point.loss else f"{point.loss:.4f}"
        yield PrintedText(
            point.time,
            f"iter {point.step}: loss {loss}, time {point.pace * 1000:.2f}ms, mfu {min(41.3, 120 / point.pace):.2f}%",
            0,
        )
    for interruption in attempt.interruptions:
        if interruption.kind == "eval":
            value = attempt.curve.loss_of(interruption.step)
            yield PrintedText(
                interruption.end, f"step {interruption.step}: train loss {value:.4f}, val loss {value * 1.03:.4f}", 0
            )
        elif interruption.kind == "checkpoint":
            yield PrintedText(interruption.start, "saving checkpoint to out", 0)
