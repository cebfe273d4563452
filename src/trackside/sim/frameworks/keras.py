"""Keras' fit with verbose=2: one line per epoch; an epoch is ``log_every`` steps."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.progress import points
from trackside.sim.simulation import Simulation


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """Epochs, with loss and accuracy."""
    if "train" not in attempt.phases:
        return
    epoch_steps = sim.scenario.job.log_every
    epochs = max(1, attempt.last_step // epoch_steps)
    yield PrintedText(attempt.phases["train"][0], f"Epoch {attempt.first_step // epoch_steps + 1}/{epochs}", 0)
    for point in points(attempt, epoch_steps):
        number = point.step // epoch_steps
        loss = "nan" if point.loss != point.loss else f"{point.loss:.4f}"
        text = f"{epoch_steps}/{epoch_steps} - {point.pace * epoch_steps:.0f}s - {point.pace:.3g}s/step - accuracy: {min(0.99, 0.9 / max(point.loss, 1)):.4f} - loss: {loss}"
        yield PrintedText(
            point.time,
            text if point.pace >= 1 else text.replace(f"{point.pace:.3g}s/step", f"{point.pace * 1000:.0f}ms/step"),
            0,
        )
        if number < epochs:
            yield PrintedText(point.time + 0.01, f"Epoch {number + 1}/{epochs}", 0)
