"""Runs a command in its own process and measures it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """``out``: what it printed. Elapsed seconds, CPU seconds of all cores, peak memory."""

    out: bytes
    wall_s: float
    cpu_s: float
    peak_mib: float


def run_measured(command: Sequence[str]) -> ProcessResult:
    """Run a command to its end. Raises RuntimeError with its last output if it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    begin = time.perf_counter()
    # Peak memory is counted from before the command replaces its parent's image: so this module imports little.
    with tempfile.TemporaryFile() as out_file, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=out_file, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {errors.read().decode('utf-8', 'replace')[-2000:]}")
        out_file.seek(0)
        out = out_file.read()
    return ProcessResult(out, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
