"""How long each rank waited in collectives, as the tracer counted it.

The rank that the others wait for spends least of its time there. Without the tracer it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Grid
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import GpuActivity, Matrix, counts_by_gpu, gpu_of, summed
from trackside.facts.gpus import of_gpu
from trackside.model import Run


@dataclass(frozen=True, eq=False)
class CollectiveWaits:
    """Seconds in collectives."""

    grid: Grid
    run: Run

    def shares(self, activity: GpuActivity) -> Matrix:
        """(G, T) Share of each window that a GPU's rank spent in collectives."""
        placed = [gpu_of(series, self.run.gpus, self.run.n_ranks) for series in self.grid.series]
        return summed(self.grid, placed, activity.gpus, activity.times) / activity.step


@fact({"waits": counts_by_gpu("trackside_nccl_collective_seconds_total", "increase")}, needs=("waits",))
def collective_waits(evidence: Evidence, run: Run) -> CollectiveWaits:
    """Of what was traced; missing if nothing was."""
    grid = evidence.grid("waits")
    assert grid is not None
    return CollectiveWaits(grid, run)


def of_rank(part: Grid, run: Run, gpu: str) -> Grid:
    """What a tracer's grid, which may know ranks alone, holds of one GPU."""
    placed = [gpu_of(series, run.gpus, run.n_ranks) for series in part.series]
    return part.one(placed.index(gpu)) if gpu in placed else of_gpu(part, gpu)
