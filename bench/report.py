"""Measure what the page of a large job costs in addition to its verdict: seconds, memory, and bytes of the file.

    python bench/report.py [--sizes 8,64,512] [--hours 24] [--kind throttled] [--repeat 3] [--folder DIR]

Jobs as ``bench/store.py`` makes them (30 series a GPU at 15 s, 64 rank logs, Slurm's records), in an embedded store, kept
in DIR and reused. ``trackside diagnose`` is run with ``--html`` and without, each in a fresh process; the minimum of
the runs counts. The page's own seconds are the difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.processes import run_measured
from bench.store import KINDS, built

TARGET_S, TARGET_MB = 5.0, 3.0
"""Of the page, for 512 GPUs and 24 hours, on two cores."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,64,512", metavar="N,N", help="GPUs of the jobs, in multiples of 8")
    parser.add_argument("--hours", type=float, default=24.0, help="length of the jobs")
    parser.add_argument("--kind", default="throttled", choices=KINDS)
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each; the least of them counts")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where stores are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure(folder, [int(size) for size in options.sizes.split(",")], options.hours, options.kind, options.repeat)


def measure(folder: Path, sizes: Sequence[int], hours: float, kind: str, repeat: int) -> None:
    """Print the table."""
    print(
        "| GPUs | samples | verdict: wall s | with the page: wall s | the page: wall s | CPU s | peak MiB | page, MB |"
    )
    print("| ---: " * 8 + "|")
    page = folder / "report.html"
    for gpus in sizes:
        store, truth = built(folder, gpus, hours, kind)
        command = [sys.executable, "-m", "trackside", "diagnose", "--store", str(store), "--job", truth["job"]]
        run_measured([*command, "--html", str(page)])  # what is kept between runs is there from now on
        alone = [run_measured(command) for _ in range(repeat)]
        both = [run_measured([*command, "--html", str(page)]) for _ in range(repeat)]
        (verdict, cpu), (whole, whole_cpu) = (
            (min(result.wall_s for result in runs), min(result.cpu_s for result in runs)) for runs in (alone, both)
        )
        size = page.stat().st_size / 1e6
        print(
            f"| {gpus:,} | {truth['samples']:,} | {verdict:.2f} | {whole:.2f} | {whole - verdict:.2f} "
            f"| {whole_cpu - cpu:.2f} | {min(result.peak_mib for result in both):,.0f} | {size:.2f} |", flush=True,
        )  # fmt: skip
        if (gpus, hours) == (512, 24) and (whole - verdict > TARGET_S or size > TARGET_MB):
            print(f"over the target of {TARGET_S:g} s and {TARGET_MB:g} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
