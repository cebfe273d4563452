"""Transformers' Trainer: dicts written through the bar."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.act import Act, Entry
from trackside.sim.progress import Point, bar, clock, points
from trackside.sim.stage import Stage


def lines(stage: Stage, act: Act) -> Iterator[Entry]:
    """Banner, dicts, evaluations, saves and the summary."""
    job = stage.scenario.job
    total = job.planned_steps or act.last_step
    if act.loads and "load" in act.phases:
        yield Entry(act.phases["load"][0] + 2, f"Loading model from {act.loads}.", 0)
    if "train" not in act.phases:
        return
    begin = act.phases["train"][0]
    yield from _banner(stage, act, begin, total)
    marks = {(mark.kind, mark.step): mark for mark in act.marks}
    done = act.first_step
    for point in points(act, job.log_every):
        for step in range(done + 1, point.step + 1):
            for kind in ("eval", "checkpoint"):
                if step < point.step and (mark := marks.pop((kind, step), None)):
                    yield _mark(kind, step, mark.start, mark.end, point)
        done = point.step
        yield _dict(act, point, total, job.epochs)
        for kind in ("eval", "checkpoint"):
            if mark := marks.pop((kind, point.step), None):
                yield _mark(kind, point.step, mark.start, mark.end, point)
    if "end" in act.phases and act.phases["end"][1] - act.phases["end"][0] > 1:
        yield from _summary(act, act.phases["end"][0], begin, total, stage)


def _banner(stage: Stage, act: Act, begin: float, total: int) -> Iterator[Entry]:
    job, ranks = stage.scenario.job, len(act.places)
    each = 4
    head = [
        "***** Running training *****",
        f"  Num examples = {total * ranks * each:,}",
        f"  Num Epochs = {job.epochs:,}",
        f"  Instantaneous batch size per device = {each:,}",
        f"  Total train batch size (w. parallel, distributed & accumulation) = {ranks * each:,}",
        "  Gradient Accumulation steps = 1",
        f"  Total optimization steps = {total:,}",
        "  Number of trainable parameters = 8,030,261,248",
    ]
    yield Entry(begin, "\n".join(head), 0)
    if act.first_step and act.loads:
        resumed = [
            "  Continuing training from checkpoint, will skip to saved global_step",
            "  Continuing training from epoch 0",
            f"  Continuing training from global step {act.first_step}",
            f"  Will skip the first 0 epochs then the first {act.first_step} batches in the first epoch.",
        ]
        yield Entry(begin + 0.01, "\n".join(resumed), 0)
    drawn = bar(act.first_step, total, 0, 1).partition("<")[0]
    yield Entry(begin + 0.02, f"\r{drawn}<?, ?it/s]", 0, end="")


def _dict(act: Act, point: Point, total: int, epochs: int) -> Entry:
    drawn = bar(point.step, total, point.elapsed, point.pace)
    values = {
        "loss": _short(point.loss),
        "grad_norm": repr(round(point.norm, 6)) if point.norm == point.norm else "nan",
        "learning_rate": f"{point.rate:.6g}",
        "epoch": f"{point.step / total * epochs:.2f}",
    }
    inside = ", ".join(f"'{name}': {value}" for name, value in values.items())
    return Entry(point.time, f"\r{drawn}\r{' ' * 50}\r{{{inside}}}\n\r{drawn}", 0, error=True, end="")


def _short(loss: float) -> str:
    return "nan" if loss != loss else f"{loss:.4f}"


def _mark(kind: str, step: int, start: float, end: float, point: Point) -> Entry:
    if kind == "checkpoint":
        return Entry(start, f"\nSaving model checkpoint to output/checkpoint-{step}", 0, error=True)
    loss = _short(point.loss * 1.04)
    text = f"{{'eval_loss': {loss}, 'eval_runtime': {end - start:.4f}, 'eval_samples_per_second': 61.2, 'eval_steps_per_second': 1.92, 'epoch': 0.5}}"
    return Entry(end, f"\r{' ' * 50}\r{text}", 0, error=True)


def _summary(act: Act, now: float, begin: float, total: int, stage: Stage) -> Iterator[Entry]:
    runtime = now - begin
    mean = next((point.loss for point in points(act, max(1, len(act.step_ends) // 2))), float("nan"))
    done = len(act.step_ends)
    text = (
        f"{{'train_runtime': {runtime:.4f}, 'train_samples_per_second': {done * 4 * len(act.places) / runtime:.3f}, "
        f"'train_steps_per_second': {done / runtime:.3f}, 'train_loss': {_short(mean)}, 'epoch': {stage.scenario.job.epochs}.0}}"
    )
    drawn = bar(total, total, runtime, runtime / max(done, 1))
    yield Entry(now, f"\r{' ' * 50}\r{text}\n\r{drawn}\r{drawn}", 0, error=True)
    table = [
        "***** train metrics *****",
        f"  train_loss               = {_short(mean):>10}",
        f"  train_runtime            = {clock(runtime):>10}",
    ]
    yield Entry(now + 1, "\n".join(table), 0)
