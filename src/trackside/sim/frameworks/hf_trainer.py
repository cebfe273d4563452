"""Transformers' Trainer: dicts that are printed through the progress bar."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.progress import ProgressPoint, bar, clock, points
from trackside.sim.simulation import Simulation


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """Banner, dicts, evaluations, saves and the summary."""
    job = sim.scenario.job
    total = job.planned_steps or attempt.last_step
    if attempt.loaded_checkpoint and "load" in attempt.phases:
        yield PrintedText(attempt.phases["load"][0] + 2, f"Loading model from {attempt.loaded_checkpoint}.", 0)
    if "train" not in attempt.phases:
        return
    begin = attempt.phases["train"][0]
    yield from _banner(sim, attempt, begin, total)
    interruptions = {(interruption.kind, interruption.step): interruption for interruption in attempt.interruptions}
    done = attempt.first_step
    for point in points(attempt, job.log_every):
        for step in range(done + 1, point.step + 1):
            for kind in ("eval", "checkpoint"):
                if step < point.step and (interruption := interruptions.pop((kind, step), None)):
                    yield _mark(kind, step, interruption.start, interruption.end, point)
        done = point.step
        yield _dict(attempt, point, total, job.epochs)
        for kind in ("eval", "checkpoint"):
            if interruption := interruptions.pop((kind, point.step), None):
                yield _mark(kind, point.step, interruption.start, interruption.end, point)
    if "end" in attempt.phases and attempt.phases["end"][1] - attempt.phases["end"][0] > 1:
        yield from _summary(attempt, attempt.phases["end"][0], begin, total, sim)


def _banner(sim: Simulation, attempt: JobAttempt, begin: float, total: int) -> Iterator[PrintedText]:
    job, ranks = sim.scenario.job, len(attempt.placements)
    batch_per_device = 4
    head = [
        "***** Running training *****",
        f"  Num examples = {total * ranks * batch_per_device:,}",
        f"  Num Epochs = {job.epochs:,}",
        f"  Instantaneous batch size per device = {batch_per_device:,}",
        f"  Total train batch size (w. parallel, distributed & accumulation) = {ranks * batch_per_device:,}",
        "  Gradient Accumulation steps = 1",
        f"  Total optimization steps = {total:,}",
        "  Number of trainable parameters = 8,030,261,248",
    ]
    yield PrintedText(begin, "\n".join(head), 0)
    if attempt.first_step and attempt.loaded_checkpoint:
        resumed = [
            "  Continuing training from checkpoint, will skip to saved global_step",
            "  Continuing training from epoch 0",
            f"  Continuing training from global step {attempt.first_step}",
            f"  Will skip the first 0 epochs then the first {attempt.first_step} batches in the first epoch.",
        ]
        yield PrintedText(begin + 0.01, "\n".join(resumed), 0)
    drawn = bar(attempt.first_step, total, 0, 1).partition("<")[0]
    yield PrintedText(begin + 0.02, f"\r{drawn}<?, ?it/s]", 0, end="")


def _dict(attempt: JobAttempt, point: ProgressPoint, total: int, epochs: int) -> PrintedText:
    drawn = bar(point.step, total, point.elapsed, point.pace)
    values = {
        "loss": _short(point.loss),
        "grad_norm": repr(round(point.norm, 6)) if point.norm == point.norm else "nan",
        "learning_rate": f"{point.rate:.6g}",
        "epoch": f"{point.step / total * epochs:.2f}",
    }
    items = ", ".join(f"'{name}': {value}" for name, value in values.items())
    return PrintedText(point.time, f"\r{drawn}\r{' ' * 50}\r{{{items}}}\n\r{drawn}", 0, error=True, end="")


def _short(loss: float) -> str:
    return "nan" if loss != loss else f"{loss:.4f}"


def _mark(kind: str, step: int, start: float, end: float, point: ProgressPoint) -> PrintedText:
    if kind == "checkpoint":
        return PrintedText(start, f"\nSaving model checkpoint to output/checkpoint-{step}", 0, error=True)
    loss = _short(point.loss * 1.04)
    text = f"{{'eval_loss': {loss}, 'eval_runtime': {end - start:.4f}, 'eval_samples_per_second': 61.2, 'eval_steps_per_second': 1.92, 'epoch': 0.5}}"
    return PrintedText(end, f"\r{' ' * 50}\r{text}", 0, error=True)


def _summary(attempt: JobAttempt, now: float, begin: float, total: int, sim: Simulation) -> Iterator[PrintedText]:
    runtime = now - begin
    # stands for the mean of all steps
    middle_loss = next((point.loss for point in points(attempt, max(1, len(attempt.step_ends) // 2))), float("nan"))
    done = len(attempt.step_ends)
    text = (
        f"{{'train_runtime': {runtime:.4f}, 'train_samples_per_second': {done * 4 * len(attempt.placements) / runtime:.3f}, "
        f"'train_steps_per_second': {done / runtime:.3f}, 'train_loss': {_short(middle_loss)}, 'epoch': {sim.scenario.job.epochs}.0}}"
    )
    drawn = bar(total, total, runtime, runtime / max(done, 1))
    yield PrintedText(now, f"\r{' ' * 50}\r{text}\n\r{drawn}\r{drawn}", 0, error=True)
    table = [
        "***** train metrics *****",
        f"  train_loss               = {_short(middle_loss):>10}",
        f"  train_runtime            = {clock(runtime):>10}",
    ]
    yield PrintedText(now + 1, "\n".join(table), 0)
