"""Measure the simulator on this machine: samples a second, bytes a second and peak memory.

    python bench/simulate.py [--nodes N] [--hours H]

- a run of N nodes with 8 GPUs each, sampled every 15 s, all fields, as text and as Parquet; CPU seconds of a process of
  its own (this is a shared machine)
- the small scenario that the tests simulate by the dozen: 16 GPUs, half an hour, every 30 s
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = """
import json, resource, sys, time
from pathlib import Path
from trackside.sim import Scenario, load_scenario, simulate
scenario = load_scenario("healthy", tuple(sys.argv[3:]))
begin = time.process_time()
simulate(scenario, Path(sys.argv[1]), metrics=sys.argv[2])
print(json.dumps({"s": time.process_time() - begin, "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def run_simulation(folder: Path, metrics: str, *changes: str) -> dict[str, float]:
    """One simulation in its own process."""
    command = [sys.executable, "-c", RUN, str(folder), metrics, *changes]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def samples_in(folder: Path) -> tuple[int, int]:
    """(samples, bytes) of the text metrics."""
    count = size = 0
    for path in (folder / "run" / "metrics").glob("*.prom"):
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                count += chunk.count(b"\n")
                size += len(chunk)
    return count, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--hours", type=float, default=6.0)
    options = parser.parse_args()
    changes = [f"cluster.nodes={options.nodes}", f"job.duration_s={options.hours * 3600}", "job.checkpoint_every=600"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = run_simulation(folder / "text", "text", *changes)
        count, size = samples_in(folder / "text")
        table = run_simulation(folder / "table", "parquet", *changes)
        written = sum(path.stat().st_size for path in (folder / "table/run/metrics").iterdir())
        small = min(run_simulation(folder / "small", "text", "telemetry.interval_s=30")["s"] for _ in range(3))
    print(f"{options.nodes * 8} GPUs, {options.hours:g} h at 15 s: {count / 1e6:.1f} M samples")
    for name, result, length in (("text", text, size), ("parquet", table, written)):
        print(
            f"{name:<8} {result['s']:6.2f} s  {count / result['s'] / 1e6:5.2f} M samples/s  "
            f"{length / 1e6:8.1f} MB  peak {result['rss_mib']:.0f} MiB"
        )
    print(f"16 GPUs, 30 min at 30 s: {small:.2f} s")


if __name__ == "__main__":
    main()
