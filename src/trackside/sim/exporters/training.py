"""training_* gauges, as a job exports them that measures itself."""

from __future__ import annotations

import numpy as np

from trackside.sim.exposition import MetricSink
from trackside.sim.progress import points
from trackside.sim.simulation import Simulation
from trackside.sim.watch import scrapes


def write(sim: Simulation, sink: MetricSink) -> None:
    """Write the gauges of every attempt of the job, scraped on its first node."""
    times, is_answered = scrapes(sim, sim.attempt.nodes[0], "training")
    rows = []
    for attempt in sim.attempts:
        progress = list(points(attempt, 1))
        ends = np.array([point.time for point in progress])
        for time in times[is_answered]:
            if len(ends) and ends[0] <= time < attempt.end:
                rows.append((time, attempt.job, progress[int(np.searchsorted(ends, time, "right")) - 1]))  # noqa: PERF401
    if not rows:
        return
    tokens = float(sim.scenario.job.tokens_per_step)
    table = {
        "training_step": ("Steps done.", [float(p.step) for _, _, p in rows]),
        "training_loss": ("Current loss value.", [p.loss for _, _, p in rows]),
        "training_gradient_norm": ("Gradient norm.", [p.norm for _, _, p in rows]),
        "training_learning_rate": ("Learning rate.", [p.rate for _, _, p in rows]),
        "training_step_seconds": ("Wall time of a step.", [p.pace for _, _, p in rows]),
        "training_tokens_per_second": ("Throughput.", [tokens / p.pace for _, _, p in rows]),
    }
    times_ms = np.array([round(time * 1000) for time, _, _ in rows], dtype=np.int64)
    jobs = np.array([job for _, job, _ in rows])
    for name, (text, values) in table.items():
        sink.begin_metric(name, "gauge", text)
        for job in dict.fromkeys(jobs.tolist()):
            of_job = jobs == job
            sink.series({"job": job, "node": sim.attempt.nodes[0]}, times_ms[of_job], np.array(values)[of_job], "short")
