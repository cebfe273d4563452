"""The job's output: what its code, its launcher, NCCL and Slurm print, in one file or in many."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path

from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.frameworks import frameworks
from trackside.sim.records import nccl, torchrun
from trackside.sim.simulation import Simulation


def write(sim: Simulation, folder: Path) -> None:
    """Write the output of all attempts of the job."""
    texts: dict[Path, list[str]] = defaultdict(list)
    for attempt in sim.attempts:
        slurm_file = Path(f"slurm-{attempt.job}.out")
        texts[slurm_file]  # a job that prints nothing leaves an empty file
        for entry in _entries(sim, attempt):
            texts[_file(sim, attempt, entry, slurm_file)].append(_line_text(sim, entry) + entry.end)
    for path, pieces in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)


def _entries(sim: Simulation, attempt: JobAttempt) -> list[PrintedText]:
    entries = [*frameworks()[sim.scenario.job.framework](sim, attempt), *attempt.entries]
    if sim.scenario.job.launcher == "torchrun":
        entries += torchrun.banner(sim, attempt)
    for name, value in sim.environment.items():
        entries.append(PrintedText(attempt.start + 0.5, f"+ export {name}={value}\n+ {name}={value}"))
    if sim.scenario.job.nccl_debug:
        entries += nccl.lines(sim, attempt)
    return sorted((entry for entry in entries if entry.time <= attempt.end + 30), key=lambda entry: entry.time)


def _file(sim: Simulation, attempt: JobAttempt, entry: PrintedText, slurm_file: Path) -> Path:
    layout = sim.scenario.job.layout
    if layout == "slurm" or entry.rank is None:
        return slurm_file
    placement = attempt.placements[entry.rank]
    stream = "stderr" if entry.error or entry.marked else "stdout"
    if layout == "ranks":
        return Path("logs") / f"rank{entry.rank}.{'err' if stream == 'stderr' else 'out'}"
    run_id = hashlib.sha256(f"{attempt.job}/{placement.node}".encode()).hexdigest()[:8]
    return (
        Path("logs")
        / f"{attempt.job}_{run_id}"
        / f"attempt_{attempt.restarts}"
        / str(placement.local_rank)
        / f"{stream}.log"
    )


def _line_text(sim: Simulation, entry: PrintedText) -> str:
    if entry.rank is None or entry.marked or sim.scenario.job.launcher != "srun" or sim.scenario.job.layout != "slurm":
        return entry.text
    prefix = f"{entry.rank}: "
    return "\n".join(prefix + line if line.strip("\r") else line for line in entry.text.split("\n"))
