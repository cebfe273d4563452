"""A loop that prints nothing that shows progress."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.simulation import Simulation


def lines(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """One line at the beginning and one at the end."""
    if "load" in attempt.phases:
        yield PrintedText(attempt.phases["load"][0], "using configuration conf/base.yaml", 0)
    if "end" in attempt.phases:
        yield PrintedText(attempt.phases["end"][0], "done.", 0)
