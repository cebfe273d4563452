"""Measure ``diagnose`` of jobs in the embedded store on this machine: seconds, memory, and how both grow with the job.

    python bench/store.py [--sizes 8,64,512] [--hours 24] [--repeat 3] [--folder DIR] [--plot FILE.svg]

Each job is simulated (30 series a GPU at 15 s, 64 rank logs, Slurm's records), ingested into a store of its own, and
diagnosed by ``trackside diagnose --store`` in a fresh process. Healthy ones, and ones with a GPU that runs too hot; a
wrong verdict ends the bench. Stores are kept in DIR and reused: 512 GPUs take about four minutes to build and
250 MB, 4,096 half an hour and 2 GB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.plot import loglog
from bench.processes import ProcessResult, folder_bytes, run_measured

KINDS = ("healthy", "throttled")
TARGET_S, TARGET_MIB = 5.0, 2000.0
"""For 512 GPUs, 24 hours, on two cores."""


def built(folder: Path, gpus: int, hours: float, kind: str) -> tuple[Path, Mapping[str, Any]]:
    """A store that holds the job, made unless it exists, and the expected verdict."""
    store = folder / f"{kind}-{gpus}-{hours:g}h"
    note = store.with_suffix(".json")
    if not note.is_file():
        shutil.rmtree(store, ignore_errors=True)
        run = folder / "run"
        made = run_measured(
            [sys.executable, str(ROOT / "bench/jobs.py"), str(run), str(gpus), str(hours), kind, "parquet"]
        )
        ingested = run_measured([sys.executable, "-m", "trackside", "ingest", str(run), "--store", str(store)])
        summary = json.loads(made.out) | {
            "simulate_s": made.wall_s,
            "ingest_s": ingested.wall_s,
            "ingest_mib": ingested.peak_mib,
        }
        shutil.rmtree(run)
        note.write_text(json.dumps(summary))
    truth: Mapping[str, Any] = json.loads(note.read_text())
    return store, truth


def diagnose_repeatedly(store: Path, truth: Mapping[str, Any], repeat: int) -> Sequence[ProcessResult]:
    """Diagnose it repeatedly. Raises RuntimeError for a wrong verdict."""
    command = [sys.executable, "-m", "trackside", "diagnose", "--store", str(store), "--job", truth["job"], "--json"]
    runs = [run_measured(command) for _ in range(repeat)]
    for result in runs:
        primary = json.loads(result.out)["primary"]
        if primary["family"] != truth["family"] or (truth["gpus"] and primary["gpus"] != truth["gpus"]):
            raise RuntimeError(f"{store}: {primary['family']} {primary['gpus']} found, {truth['family']} simulated")
    return runs


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,64,512", metavar="N,N", help="GPUs of the jobs, in multiples of 8")
    parser.add_argument("--jobs", default=",".join(KINDS), metavar="KIND,KIND", help="healthy, throttled or both")
    parser.add_argument("--hours", type=float, default=24.0, help="length of the jobs")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each; the least of them counts")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where stores are kept")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="SVG of how time grows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = [int(size) for size in options.sizes.split(",")]
        measure(folder, sizes, options.jobs.split(","), options.hours, options.repeat, options.plot)


def measure(
    folder: Path, sizes: Sequence[int], kinds: Sequence[str], hours: float, repeat: int, plot: Path | None
) -> None:
    """Print the table and draw the plot."""
    print("| GPUs | job | samples | store, MB | wall s | CPU s | peak MiB | wall ms a GPU | CPU s a 100 M samples |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    lines: dict[str, list[tuple[float, float]]] = {}
    for gpus in sizes:
        for kind in kinds:
            store, truth = built(folder, gpus, hours, kind)
            runs = diagnose_repeatedly(store, truth, repeat)
            wall, cpu, peak = (min(getattr(item, name) for item in runs) for name in ("wall_s", "cpu_s", "peak_mib"))
            samples = truth["samples"]
            print(
                f"| {gpus:,} | {kind} | {samples:,} | {folder_bytes(store) / 1e6:,.0f} | {wall:.2f} | {cpu:.2f} "
                f"| {peak:,.0f} | {1000 * wall / gpus:.2f} | {cpu / samples * 1e8:.2f} |", flush=True,
            )  # fmt: skip
            if kind == kinds[0]:
                lines.setdefault("on the clock", []).append((gpus, wall))
                lines.setdefault("CPU", []).append((gpus, cpu))
            if gpus == 512 and hours == 24 and (wall > TARGET_S or peak > TARGET_MIB):
                print(f"over the target of {TARGET_S:g} s and {TARGET_MIB:g} MiB", file=sys.stderr)
    if plot is not None:
        last, seconds = lines["CPU"][-1]
        guide = {"as the GPUs": [(item, seconds * item / last) for item in sizes]}
        title = f"diagnose --store: a job of {hours:g} h, 30 series a GPU at 15 s"
        plot.write_text(loglog(title, "GPUs of the job", "seconds", lines, guide))


if __name__ == "__main__":
    main()
