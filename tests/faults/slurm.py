"""Slurm's commands on a site; they print what the simulator wrote about a run."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from pathlib import Path

from tests.faults.runs import JOB, ServedRun, metrics_at, site
from tests.site.test_slurm import Bin
from trackside.site.config import Site

RECORDED = Path(__file__).parent.parent / "slurm" / "22.05.8"
UNKNOWN = "slurm_load_jobs error: Invalid job id specified"


def commands(folder: Path, rest: Path | None) -> Bin:
    """Commands that know the run of these files; None: no run at all."""
    folder.mkdir(parents=True, exist_ok=True)
    bin_ = Bin(folder)
    header = (RECORDED / "6.sacct").read_text("utf-8").split("\n")[0] + "\n"
    bin_.say("sacct", header)
    bin_.say("sacct --version", "slurm 22.05.8\n")
    bin_.say("sacct --helpformat", RECORDED / "sacct.helpformat")
    bin_.say("scontrol", "", 1, UNKNOWN)
    bin_.say("squeue", "", 1, UNKNOWN)
    if rest is not None:
        bin_.say(f"sacct -D -j {JOB}", accounted(rest / "sacct.txt"))
    return bin_


def accounted(path: Path) -> str:
    """A table of sacct with the separator and the time format that Trackside asks for."""
    text = path.read_text("utf-8").replace("|", "\x1f")
    return re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", lambda match: f"{_seconds(match[0])}", text)


def _seconds(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp())


def slurm_at(bin_: Path) -> str:
    """The section of trackside.toml for Slurm's commands."""
    return f'[slurm]\nmode = "commands"\nbin = "{bin_}"\ntimeout_s = 5\n'


def slurm_of(run: ServedRun, bin_: Path, folder: Path, *more: str) -> Site:
    """A site whose Slurm and metrics server know a run."""
    commands(bin_, run.rest)
    for name in ("sacct.txt", "scontrol-job.txt", "scontrol-node.txt"):
        (run.rest / name).unlink(missing_ok=True)  # Slurm itself is asked
    return site(folder, metrics_at(run.url), *more, slurm=slurm_at(bin_))


def only_output(run: ServedRun, folder: Path) -> Path:
    """The run's output and kernel logs, without the scheduler's records."""
    shutil.copytree(run.rest, folder, ignore=shutil.ignore_patterns("sacct.txt", "scontrol-*.txt"))
    return folder
