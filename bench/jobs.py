"""Jobs of any size for the other benches: simulated, 30 series per GPU, Slurm's records, kernel logs and 64 rank logs."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trackside.sim import load_scenario
from trackside.sim.exporters import dcgm
from trackside.sim.exposition import Array, Exposition, Style
from trackside.sim.parquet import ParquetTable
from trackside.sim.simulate import play_scenario, truth_of, write
from trackside.sim.simulation import Simulation
from trackside.sim.truth import Truth

SERIES = 30
"""Metrics of each GPU, among those that dcgm-exporter serves."""
LEFT_OUT = frozenset(
    f"DCGM_FI_{name}"
    for name in (
        "DEV_MEM_CLOCK", "DEV_ENC_UTIL", "DEV_DEC_UTIL", "DEV_FB_RESERVED", "DEV_FB_TOTAL", "DEV_ECC_DBE_AGG_TOTAL",
        "DEV_ROW_REMAP_PENDING", "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DEV_VGPU_LICENSE_STATUS",
        "DEV_POWER_MGMT_LIMIT", "DEV_PSTATE",
    )
)  # fmt: skip
RANK_LOGS, CHATTER = 64, 48
"""Number of rank logs, and irrelevant lines per printed step: about 4 MB per log and day."""
JOB = "48213"
FAULTS = {
    "healthy": ("healthy", 1.0),
    "throttled": ("throttled-gpu-straggler", 0.70),
}
"""Kind of job -> scenario, and the share of the requested time that it would take without a fault."""


class Chosen:
    """Passes the chosen metrics on."""

    def __init__(self, sink: ParquetTable | Exposition) -> None:
        self._sink, self._is_included = sink, False

    def begin_metric(self, name: str, kind: str, help_text: str) -> None:
        """A new metric begins."""
        self._is_included = name not in LEFT_OUT
        if self._is_included:
            self._sink.begin_metric(name, kind, help_text)

    def series(self, labels: Mapping[str, str], times_ms: NDArray[np.int64], values: Array, style: Style) -> None:
        """One series of it."""
        if self._is_included:
            self._sink.series(labels, times_ms, values, style)


def make(folder: Path, gpus: int, hours: float, kind: str = "healthy", metrics: str = "parquet") -> tuple[Truth, int]:
    """Write a run of ``gpus`` GPUs on nodes of 8 below ``folder``; the expected verdict and the number of samples."""
    assert len(dcgm.FIELDS) - len(LEFT_OUT) == SERIES
    name, share = FAULTS[kind]
    seconds = hours * 3600
    changes = (
        f"cluster.nodes={max(1, gpus // 8)}", "cluster.digits=4", f"job.duration_s={seconds * share}",
        "job.log_every=20", "job.checkpoint_every=600", "job.framework=megatron",
        "telemetry.planes=['logs', 'scheduler', 'kernel']", *(["fault.0.at=57%", "fault.0.node='0'"] if share < 1 else []),
    )  # fmt: skip
    sim = play_scenario(load_scenario(name, changes))
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "metrics").mkdir(parents=True)
    write(sim, folder)
    rank_logs(sim, folder / "logs", min(RANK_LOGS, gpus))
    jobs = [(folder / "metrics", node, metrics) for node in sim.nodes]
    _Node.sim = sim
    with multiprocessing.get_context("fork").Pool() as pool:
        samples = sum(pool.imap_unordered(_Node.written, jobs))
    return truth_of(sim), samples


class _Node:
    """One node's metrics, written by a process that inherits the stage from its parent."""

    sim: Simulation

    @classmethod
    def written(cls, job: tuple[Path, str, str]) -> int:
        folder, name, metrics = job
        file_of = ParquetTable if metrics == "parquet" else Exposition
        suffix = "parquet" if metrics == "parquet" else "prom"
        with file_of(folder / f"{name}.dcgm.{suffix}") as sink:
            dcgm.write(cls.sim, name, Chosen(sink))
            return sink.samples


def rank_logs(sim: Simulation, folder: Path, count: int) -> None:
    """A log for some of the ranks: the steps as that rank printed them, among irrelevant lines."""
    from trackside.sim.frameworks import frameworks

    folder.mkdir()
    attempt = sim.attempt
    for rank in range(count):
        with (folder / f"rank_{rank}.log").open("w") as file:
            for number, entry in enumerate(frameworks()["custom"](sim, attempt)):
                stamp = entry.text[:19]
                file.write(entry.text + "\n")
                for turn in range(CHATTER):
                    file.write(f"{stamp} | DEBUG | rank {rank} bucket {number % 97} prefetch queue {turn} deep\n")


def main() -> None:
    """FOLDER GPUS HOURS KIND METRICS: make one and print the expected verdict as JSON."""
    folder, gpus, hours, kind, metrics = sys.argv[1:]
    truth, samples = make(Path(folder), int(gpus), float(hours), kind, metrics)
    summary = {"job": truth.job, "family": truth.family, "nodes": truth.nodes, "gpus": truth.gpus, "samples": samples}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
