"""The job's output: what its code, its launcher, NCCL and Slurm print, in one file or in many."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path

from trackside.sim.act import Act, Entry
from trackside.sim.frameworks import frameworks
from trackside.sim.records import nccl, torchrun
from trackside.sim.stage import Stage


def write(stage: Stage, folder: Path) -> None:
    """All output of all starts of the job."""
    texts: dict[Path, list[str]] = defaultdict(list)
    for act in stage.acts:
        out = Path(f"slurm-{act.job}.out")
        texts[out]  # a job that prints nothing leaves an empty file
        for entry in _entries(stage, act):
            texts[_file(stage, act, entry, out)].append(_printed(stage, entry) + entry.end)
    for path, pieces in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)


def _entries(stage: Stage, act: Act) -> list[Entry]:
    made = [*frameworks()[stage.scenario.job.framework](stage, act), *act.entries]
    if stage.scenario.job.launcher == "torchrun":
        made += torchrun.banner(stage, act)
    for name, value in stage.environment.items():
        made.append(Entry(act.start + 0.5, f"+ export {name}={value}\n+ {name}={value}"))
    if stage.scenario.job.nccl_debug:
        made += nccl.lines(stage, act)
    return sorted((entry for entry in made if entry.time <= act.end + 30), key=lambda entry: entry.time)


def _file(stage: Stage, act: Act, entry: Entry, out: Path) -> Path:
    layout = stage.scenario.job.layout
    if layout == "slurm" or entry.rank is None:
        return out
    place = act.places[entry.rank]
    stream = "stderr" if entry.error or entry.marked else "stdout"
    if layout == "ranks":
        return Path("logs") / f"rank{entry.rank}.{'err' if stream == 'stderr' else 'out'}"
    run = hashlib.sha256(f"{act.job}/{place.node}".encode()).hexdigest()[:8]
    return Path("logs") / f"{act.job}_{run}" / f"attempt_{act.restarts}" / str(place.local) / f"{stream}.log"


def _printed(stage: Stage, entry: Entry) -> str:
    if (
        entry.rank is None
        or entry.marked
        or stage.scenario.job.launcher != "srun"
        or stage.scenario.job.layout != "slurm"
    ):
        return entry.text
    lead = f"{entry.rank}: "
    return "\n".join(lead + line if line.strip("\r") else line for line in entry.text.split("\n"))
