"""What a utilization dashboard shows of a run: the figures most people look at, and no verdict.

    python tools/dashboard.py RUN_FOLDER

The demo prints it before Trackside's verdict on the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trackside.evidence import Grid
from trackside.query import metric
from trackside.session.choice import choose_run
from trackside.session.paths import load

PANELS = (
    ("GPU utilization", "gpu_utilization_ratio", 100.0, "%"),
    ("memory in use", "gpu_memory_used_bytes", 1 / (1 << 30), "GiB"),
    ("temperature", "gpu_temperature_celsius", 1.0, "C"),
)
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 30


def main() -> int:
    """Command line."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    render(sys.argv[1], Console(highlight=False))
    return 0


def render(folder: str, console: Console) -> None:
    """Print the panels of the run in a folder."""
    _, store = choose_run(load([folder]))
    table = Table(title="What a utilization dashboard shows", title_justify="left", box=None, pad_edge=False)
    for heading in ("panel", "GPUs", "mean over the run", "over time, mean of all GPUs"):
        table.add_column(heading)
    for title, name, factor, unit in PANELS:
        answer = store.ask(metric(name).over("run", "avg"))
        if not isinstance(answer, Grid):
            continue
        mean = answer.value("avg").number * factor
        table.add_row(
            title,
            str(len(answer)),
            f"{mean:.0f}{unit}" if unit == "%" else f"{mean:.0f} {unit}",
            curve(answer, 1.0 if unit == "%" else None),
        )
    console.print(table)


def curve(grid: Grid, full: float | None) -> str:
    """The mean of all series as bars; ``full`` is the value of a whole bar, else the highest mean."""
    import numpy as np

    means = np.nanmean(grid.values, axis=0)
    groups = [part for part in np.array_split(means, WIDTH) if len(part) and not np.isnan(part).all()]
    heights = np.array([np.nanmean(part) for part in groups])
    top = full or float(heights.max()) or 1.0
    return "".join(BARS[round(min(1.0, max(0.0, height / top)) * (len(BARS) - 1))] for height in heights)


if __name__ == "__main__":
    sys.exit(main())
