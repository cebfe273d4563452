"""Megatron-LM: one line per interval, printed by the last rank."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.progress import points
from trackside.sim.simulation import Simulation

BATCH = 512


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """Set-up, iterations, validation and checkpoints."""
    job, last = sim.scenario.job, len(attempt.placements) - 1
    if "import" in attempt.phases:
        now = attempt.phases["import"][0] + 4
        yield PrintedText(
            now,
            f"using world size: {last + 1}, data-parallel size: {last + 1}, tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
            0,
        )
    if "rendezvous" in attempt.phases:
        yield PrintedText(attempt.phases["rendezvous"][0], "> initializing torch distributed ...", 0)
    if "load" in attempt.phases:
        now = attempt.phases["load"][0]
        yield PrintedText(now + 1, "building GPT model ...", 0)
        yield from _checkpoint_in(attempt, now + 3)
    if "train" not in attempt.phases:
        return
    stamp = sim.wall_clock(attempt.phases["train"][0], attempt.placements[0].node)
    yield PrintedText(
        attempt.phases["train"][0], f"[before the start of training step] datetime: {stamp:%Y-%m-%d %H:%M:%S} ", 0
    )
    total = job.planned_steps or attempt.last_step
    home = attempt.placements[last].node
    nans = 0
    for point in points(attempt, job.log_every):
        stamp = sim.wall_clock(point.time, home)
        is_nan = not math.isfinite(point.loss)
        nans = job.log_every if is_nan else 0
        loss = "" if is_nan else f" lm loss: {point.loss:.6E} |"
        norm = "nan" if not math.isfinite(point.norm) else f"{point.norm:.3f}"
        yield PrintedText(
            point.time,
            f" [{stamp:%Y-%m-%d %H:%M:%S}] iteration {point.step:8d}/{total:8d} | consumed samples: {point.step * BATCH:12d} |"
            f" elapsed time per iteration (ms): {point.pace * 1000:.1f} | learning rate: {point.rate:.6E} |"
            f" global batch size: {BATCH:5d} |{loss} loss scale: 1.0 | grad norm: {norm} |"
            f" number of skipped iterations: {0:3d} | number of nan iterations: {nans:3d} |",
            last,
        )
    for interruption in attempt.interruptions:
        if interruption.kind == "checkpoint":
            yield PrintedText(
                interruption.start,
                f"saving checkpoint at iteration {interruption.step:7d} to /scratch/user/gpt/ckpt in torch_dist format",
                0,
            )
            if interruption.end <= attempt.end:
                yield PrintedText(
                    interruption.end,
                    f"  successfully saved checkpoint from iteration {interruption.step:7d} to /scratch/user/gpt/ckpt [ t 1/8, p 1/1 ]",
                    0,
                )
        elif interruption.kind == "eval":
            value = attempt.curve.loss_of(interruption.step) * 1.03
            yield PrintedText(
                interruption.end,
                f" validation loss at iteration {interruption.step} | lm loss value: {value:.6E} | lm loss PPL: {math.exp(min(value, 50)):.6E} | ",
                last,
            )
    if "end" in attempt.phases:
        stamp = sim.wall_clock(attempt.phases["end"][0], attempt.placements[0].node)
        yield PrintedText(attempt.phases["end"][0], f"[after training is done] datetime: {stamp:%Y-%m-%d %H:%M:%S} ", 0)


def _checkpoint_in(attempt: JobAttempt, now: float) -> Iterator[PrintedText]:
    if attempt.loaded_checkpoint:
        yield PrintedText(now, f" loading checkpoint from /scratch/user/gpt/ckpt at iteration {attempt.first_step}", 0)
        yield PrintedText(
            now + 20,
            f"  successfully loaded checkpoint from /scratch/user/gpt/ckpt [ t 1/1, p 1/1 ] at iteration {attempt.first_step}",
            0,
        )
    else:
        yield PrintedText(
            now, "WARNING: could not find the metadata file /scratch/user/gpt/ckpt/latest_checkpointed_iteration.txt", 0
        )
        yield PrintedText(now, "    will not load any checkpoints and will start from random", 0)
