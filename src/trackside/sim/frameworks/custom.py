"""A custom loop that logs times of day and a log level."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.progress import points
from trackside.sim.simulation import Simulation


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """Set-up, steps and checkpoints."""
    home = attempt.placements[0].node

    def entry(time: float, text: str) -> PrintedText:
        return PrintedText(time, f"{sim.wall_clock(time, home):%Y-%m-%d %H:%M:%S} | INFO | {text}", 0)

    ranks = len(attempt.placements)
    if "rendezvous" in attempt.phases:
        yield entry(
            attempt.phases["rendezvous"][0],
            f"Initializing distributed: world_size={ranks}" if ranks > 1 else "device cuda:0",
        )
    if "load" in attempt.phases:
        begin, end = attempt.phases["load"]
        yield entry(
            begin,
            f"resuming from {attempt.loaded_checkpoint} at step {attempt.first_step}"
            if attempt.loaded_checkpoint
            else "building model",
        )
        if "train" in attempt.phases:
            yield entry(end, "model on device, starting training")
    if "train" not in attempt.phases:
        return
    total = sim.scenario.job.planned_steps or attempt.last_step
    for point in points(attempt, sim.scenario.job.log_every, with_first=True):
        loss = "nan" if point.loss != point.loss else f"{point.loss:.4f}"
        yield entry(
            point.time,
            f"step {point.step}/{total} | loss {loss} | grad_norm {point.norm:.4f} | lr {point.rate:.3e} | {point.pace:.2f} s/step",
        )
    for interruption in attempt.interruptions:
        if interruption.kind == "checkpoint":
            yield entry(interruption.start, f"saving checkpoint ckpt/step_{interruption.step}.pt")
        elif interruption.kind == "eval":
            yield entry(
                interruption.end,
                f"evaluation after step {interruption.step} done in {interruption.end - interruption.start:.1f} s",
            )
    if "end" in attempt.phases:
        yield entry(attempt.phases["end"][0], "training finished")
