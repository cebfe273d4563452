"""PyTorch Lightning: a bar that is drawn over itself, with the loss behind it."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.act import Act, Entry
from trackside.sim.progress import clock, points
from trackside.sim.stage import Stage


def lines(stage: Stage, act: Act) -> Iterator[Entry]:
    """Set-up, the bar, checkpoints and the stop reason."""
    ranks = len(act.places)
    if "import" in act.phases:
        now = act.phases["import"][0] + 6
        yield Entry(
            now,
            "Seed set to 0\nGPU available: True (cuda), used: True\nTPU available: False, using: 0 TPU cores",
            0,
            error=True,
        )
    if "rendezvous" in act.phases and ranks > 1:
        begin, end = act.phases["rendezvous"]
        for place in act.places:
            now = begin + 0.01 * place.rank
            yield Entry(
                now,
                f"Initializing distributed: GLOBAL_RANK: {place.rank}, MEMBER: {place.rank + 1}/{ranks}",
                place.rank,
                error=True,
            )
        rule = "-" * 100
        if "load" in act.phases:
            text = f"{rule}\ndistributed_backend=nccl\nAll distributed processes registered. Starting with {ranks} processes\n{rule}\n"
            yield Entry(end, text, 0, error=True)
    if "load" in act.phases and act.loads:
        yield Entry(
            act.phases["load"][0] + 1, f"Restoring states from the checkpoint path at {act.loads}", 0, error=True
        )
        if "train" in act.phases:
            yield Entry(act.phases["load"][1], f"Restored all states from the checkpoint at {act.loads}", 0, error=True)
    if "train" not in act.phases:
        return
    total = stage.scenario.job.planned_steps or act.last_step
    for point in points(act, stage.scenario.job.log_every, first=True):
        share = point.step / total
        left = clock((total - point.step) * point.pace)
        loss = "nan.0" if point.loss != point.loss else f"{point.loss:.3f}"
        cells = "█" * int(10 * share)
        yield Entry(
            point.time,
            f"\rEpoch 0: {share:4.0%}|{cells:<10}| {point.step}/{total} [{clock(point.elapsed)}<{left}, "
            f"{1 / point.pace:5.2f}it/s, v_num=0, train_loss={loss}]",
            0,
            error=True,
            end="",
        )
    if "end" in act.phases:
        yield Entry(act.phases["end"][0], f"\n`Trainer.fit` stopped: `max_steps={total}` reached.", 0, error=True)
