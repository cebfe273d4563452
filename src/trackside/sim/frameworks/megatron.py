"""Megatron-LM: one line an interval, printed by the last rank."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trackside.sim.act import Act, Entry
from trackside.sim.progress import points
from trackside.sim.stage import Stage

BATCH = 512


def lines(stage: Stage, act: Act) -> Iterator[Entry]:
    """Set-up, iterations, validation and checkpoints."""
    job, last = stage.scenario.job, len(act.places) - 1
    if "import" in act.phases:
        now = act.phases["import"][0] + 4
        yield Entry(
            now,
            f"using world size: {last + 1}, data-parallel size: {last + 1}, tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
            0,
        )
    if "rendezvous" in act.phases:
        yield Entry(act.phases["rendezvous"][0], "> initializing torch distributed ...", 0)
    if "load" in act.phases:
        now = act.phases["load"][0]
        yield Entry(now + 1, "building GPT model ...", 0)
        yield from _checkpoint_in(act, now + 3)
    if "train" not in act.phases:
        return
    stamp = stage.wall(act.phases["train"][0], act.places[0].node)
    yield Entry(act.phases["train"][0], f"[before the start of training step] datetime: {stamp:%Y-%m-%d %H:%M:%S} ", 0)
    total = job.planned_steps or act.last_step
    home = act.places[last].node
    nans = 0
    for point in points(act, job.log_every):
        stamp = stage.wall(point.time, home)
        lost = not math.isfinite(point.loss)
        nans = job.log_every if lost else 0
        loss = "" if lost else f" lm loss: {point.loss:.6E} |"
        norm = "nan" if not math.isfinite(point.norm) else f"{point.norm:.3f}"
        yield Entry(
            point.time,
            f" [{stamp:%Y-%m-%d %H:%M:%S}] iteration {point.step:8d}/{total:8d} | consumed samples: {point.step * BATCH:12d} |"
            f" elapsed time per iteration (ms): {point.pace * 1000:.1f} | learning rate: {point.rate:.6E} |"
            f" global batch size: {BATCH:5d} |{loss} loss scale: 1.0 | grad norm: {norm} |"
            f" number of skipped iterations: {0:3d} | number of nan iterations: {nans:3d} |",
            last,
        )
    for mark in act.marks:
        if mark.kind == "checkpoint":
            yield Entry(
                mark.start,
                f"saving checkpoint at iteration {mark.step:7d} to /scratch/user/gpt/ckpt in torch_dist format",
                0,
            )
            if mark.end <= act.end:
                yield Entry(
                    mark.end,
                    f"  successfully saved checkpoint from iteration {mark.step:7d} to /scratch/user/gpt/ckpt [ t 1/8, p 1/1 ]",
                    0,
                )
        elif mark.kind == "eval":
            value = act.curve.loss_of(mark.step) * 1.03
            yield Entry(
                mark.end,
                f" validation loss at iteration {mark.step} | lm loss value: {value:.6E} | lm loss PPL: {math.exp(min(value, 50)):.6E} | ",
                last,
            )
    if "end" in act.phases:
        stamp = stage.wall(act.phases["end"][0], act.places[0].node)
        yield Entry(act.phases["end"][0], f"[after training is done] datetime: {stamp:%Y-%m-%d %H:%M:%S} ", 0)


def _checkpoint_in(act: Act, now: float) -> Iterator[Entry]:
    if act.loads:
        yield Entry(now, f" loading checkpoint from /scratch/user/gpt/ckpt at iteration {act.first_step}", 0)
        yield Entry(
            now + 20,
            f"  successfully loaded checkpoint from /scratch/user/gpt/ckpt [ t 1/1, p 1/1 ] at iteration {act.first_step}",
            0,
        )
    else:
        yield Entry(
            now, "WARNING: could not find the metadata file /scratch/user/gpt/ckpt/latest_checkpointed_iteration.txt", 0
        )
        yield Entry(now, "    will not load any checkpoints and will start from random", 0)
