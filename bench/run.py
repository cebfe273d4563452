"""Measure Trackside and comparable tools on this machine, in one run.

    python bench/run.py [--size MB] [--repeat N]

- a log scanned end to end (read, match, parse, events), compared with ripgrep counting 80 literals in the same file, each
  pinned to one core, alternating; CPU seconds (for a shared machine), the minimum of N runs
- `diagnose` of a folder of 64 rank logs of 5 MB
- startup of `trackside --help`

Further benchmarks: bench/ingest.py (metrics into the store, compared with VictoriaMetrics), bench/store.py (`diagnose` of jobs of any
size from the store), bench/simulate.py (the simulator). They take minutes and gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.logs import LITERALS, write

SCAN = """
import json, resource, sys, time
from trackside.logs.line import FileContext
from trackside.logs.scan import pattern_set, scan
from trackside.logs.trajectory import Trajectories
pattern_set("log", sys.argv[2] or None)
kept, trajectories = [], Trajectories()
def sink(event):
    (trajectories.add if event.kind == "progress" else kept.append)(event)
begin = time.process_time()
with open(sys.argv[1], "rb", buffering=0) as stream:
    done = scan(stream, sink, FileContext("log"), engine=sys.argv[2] or None)
points = trajectories.points()
print(json.dumps({"s": time.process_time() - begin, "events": done.events, "points": len(points),
                  "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
CORE = {0}


def run_scan(path: Path, engine: str = "") -> dict[str, float]:
    """One scan in its own process, on one core."""
    command = [sys.executable, "-c", SCAN, str(path), engine]
    out = subprocess.run(command, check=True, capture_output=True, preexec_fn=_pin)
    result: dict[str, float] = json.loads(out.stdout)
    return result


def ripgrep(path: Path, literals: Path) -> float:
    """CPU seconds of rg counting the lines with a literal, on one core."""
    cpu_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["rg", "--text", "--count", "--fixed-strings", "--threads", "1", "--file", str(literals), str(path)]
    subprocess.run(command, check=True, capture_output=True, preexec_fn=_pin)
    cpu_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cpu_after.ru_utime + cpu_after.ru_stime - cpu_before.ru_utime - cpu_before.ru_stime


def _pin() -> None:
    os.sched_setaffinity(0, CORE)


def elapsed_seconds(command: list[str]) -> float:
    """Seconds of one command."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def compare_with_ripgrep(folder: Path, megabytes: int, repeat: int) -> None:
    """Print the scan's rate, the peer's, and their ratio."""
    log, literals = folder / "train.log", folder / "literals"
    write(log, megabytes * 1_000_000)
    literals.write_text("\n".join(LITERALS) + "\n")
    log.read_bytes()[:1]  # into the page cache
    have_rg = shutil.which("rg") is not None
    ours, fallback, ripgrep_times = [], [], []
    for _ in range(repeat):
        ours.append(run_scan(log))
        fallback.append(run_scan(log, "re2"))
        if have_rg:
            ripgrep_times.append(ripgrep(log, literals))
    best = min(ours, key=lambda result: result["s"])
    rate = megabytes / best["s"]
    print(f"scan, end to end   {rate:7.0f} MB/CPU-s  {best['events']:,} events, {best['points']:,} points, "
          f"{best['rss_mib']:.0f} MiB peak")  # fmt: skip
    print(f"scan with RE2      {megabytes / min(result['s'] for result in fallback):7.0f} MB/CPU-s")
    if have_rg:
        peer = megabytes / min(ripgrep_times)
        print(f"rg -c, {len(LITERALS)} literals {peer:7.0f} MB/CPU-s\nratio scan : rg     {rate / peer:7.2f}")
    else:
        print("rg is not installed (apt-get install ripgrep): no peer in this run")


def folder_of_ranks(folder: Path, repeat: int) -> None:
    """Print the time of a diagnose of 64 rank logs of 5 MB."""
    ranks = folder / "ranks"
    for rank in range(64):
        path = ranks / "attempt_0" / str(rank) / "stdout.log"
        path.parent.mkdir(parents=True)
        write(path, 5_000_000, ranks=1)
    command = [sys.executable, "-m", "trackside", "diagnose", str(ranks)]
    print(f"diagnose 64 x 5 MB {min(elapsed_seconds(command) for _ in range(repeat)):7.2f} s")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="size of the log")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        compare_with_ripgrep(Path(temporary), arguments.size, arguments.repeat)
        folder_of_ranks(Path(temporary), arguments.repeat)
    command = [sys.executable, "-m", "trackside", "--help"]
    print(f"trackside --help   {min(elapsed_seconds(command) for _ in range(arguments.repeat + 2)):7.2f} s")


if __name__ == "__main__":
    main()
