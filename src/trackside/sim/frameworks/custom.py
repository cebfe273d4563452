"""A home-made loop with times of day and a log level."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.act import Act, Entry
from trackside.sim.progress import points
from trackside.sim.stage import Stage


def lines(stage: Stage, act: Act) -> Iterator[Entry]:
    """Set-up, steps and checkpoints."""
    home = act.places[0].node

    def say(time: float, text: str) -> Entry:
        return Entry(time, f"{stage.wall(time, home):%Y-%m-%d %H:%M:%S} | INFO | {text}", 0)

    ranks = len(act.places)
    if "rendezvous" in act.phases:
        yield say(
            act.phases["rendezvous"][0],
            f"Initializing distributed: world_size={ranks}" if ranks > 1 else "device cuda:0",
        )
    if "load" in act.phases:
        begin, end = act.phases["load"]
        yield say(begin, f"resuming from {act.loads} at step {act.first_step}" if act.loads else "building model")
        if "train" in act.phases:
            yield say(end, "model on device, starting training")
    if "train" not in act.phases:
        return
    total = stage.scenario.job.planned_steps or act.last_step
    for point in points(act, stage.scenario.job.log_every, first=True):
        loss = "nan" if point.loss != point.loss else f"{point.loss:.4f}"
        yield say(
            point.time,
            f"step {point.step}/{total} | loss {loss} | grad_norm {point.norm:.4f} | lr {point.rate:.3e} | {point.pace:.2f} s/step",
        )
    for mark in act.marks:
        if mark.kind == "checkpoint":
            yield say(mark.start, f"saving checkpoint ckpt/step_{mark.step}.pt")
        elif mark.kind == "eval":
            yield say(mark.end, f"evaluation after step {mark.step} done in {mark.end - mark.start:.1f} s")
    if "end" in act.phases:
        yield say(act.phases["end"][0], "training finished")
