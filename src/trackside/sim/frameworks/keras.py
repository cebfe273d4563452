"""Keras' fit with verbose=2: a line an epoch; an epoch is ``log_every`` steps."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.act import Act, Entry
from trackside.sim.progress import points
from trackside.sim.stage import Stage


def lines(stage: Stage, act: Act) -> Iterator[Entry]:
    """Epochs, and where weights are saved."""
    if "train" not in act.phases:
        return
    each = stage.scenario.job.log_every
    epochs = max(1, act.last_step // each)
    yield Entry(act.phases["train"][0], f"Epoch {act.first_step // each + 1}/{epochs}", 0)
    for point in points(act, each):
        number = point.step // each
        loss = "nan" if point.loss != point.loss else f"{point.loss:.4f}"
        text = f"{each}/{each} - {point.pace * each:.0f}s - {point.pace:.3g}s/step - accuracy: {min(0.99, 0.9 / max(point.loss, 1)):.4f} - loss: {loss}"
        yield Entry(
            point.time,
            text if point.pace >= 1 else text.replace(f"{point.pace:.3g}s/step", f"{point.pace * 1000:.0f}ms/step"),
            0,
        )
        if number < epochs:
            yield Entry(point.time + 0.01, f"Epoch {number + 1}/{epochs}", 0)
