"""PyTorch Lightning: a bar that is drawn over itself, with the loss at its end."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.progress import clock, points
from trackside.sim.simulation import Simulation


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """Set-up, the bar, checkpoints and the stop reason."""
    ranks = len(attempt.placements)
    if "import" in attempt.phases:
        now = attempt.phases["import"][0] + 6
        yield PrintedText(
            now,
            "Seed set to 0\nGPU available: True (cuda), used: True\nTPU available: False, using: 0 TPU cores",
            0,
            error=True,
        )
    if "rendezvous" in attempt.phases and ranks > 1:
        begin, end = attempt.phases["rendezvous"]
        for placement in attempt.placements:
            now = begin + 0.01 * placement.rank
            yield PrintedText(
                now,
                f"Initializing distributed: GLOBAL_RANK: {placement.rank}, MEMBER: {placement.rank + 1}/{ranks}",
                placement.rank,
                error=True,
            )
        rule = "-" * 100
        if "load" in attempt.phases:
            text = f"{rule}\ndistributed_backend=nccl\nAll distributed processes registered. Starting with {ranks} processes\n{rule}\n"
            yield PrintedText(end, text, 0, error=True)
    if "load" in attempt.phases and attempt.loaded_checkpoint:
        yield PrintedText(
            attempt.phases["load"][0] + 1,
            f"Restoring states from the checkpoint path at {attempt.loaded_checkpoint}",
            0,
            error=True,
        )
        if "train" in attempt.phases:
            yield PrintedText(
                attempt.phases["load"][1],
                f"Restored all states from the checkpoint at {attempt.loaded_checkpoint}",
                0,
                error=True,
            )
    if "train" not in attempt.phases:
        return
    total = sim.scenario.job.planned_steps or attempt.last_step
    for point in points(attempt, sim.scenario.job.log_every, with_first=True):
        share = point.step / total
        time_left = clock((total - point.step) * point.pace)
        loss = "nan.0" if point.loss != point.loss else f"{point.loss:.3f}"
        cells = "█" * int(10 * share)
        yield PrintedText(
            point.time,
            f"\rEpoch 0: {share:4.0%}|{cells:<10}| {point.step}/{total} [{clock(point.elapsed)}<{time_left}, "
            f"{1 / point.pace:5.2f}it/s, v_num=0, train_loss={loss}]",
            0,
            error=True,
            end="",
        )
    if "end" in attempt.phases:
        yield PrintedText(
            attempt.phases["end"][0], f"\n`Trainer.fit` stopped: `max_steps={total}` reached.", 0, error=True
        )
