#!/usr/bin/env python3
"""Builds wheel and sdist into ``dist/``: twice, the second time from the unpacked sdist in another folder, and compares
them byte by byte; checks their metadata with twine; and tries the wheel in a clean environment, as a new user would.

Run it with ``make dist``, which installs build, twine, hatchling and ziglang. Needs a package index for the trial.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LOG = """step 1 loss 2.31
step 2 loss 2.20
step 3 loss 2.11
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of \
which 1.20 GiB is free.
"""
SACCT = """JobID|JobName|State|ExitCode|Submit|Start|End|NodeList
41|lm|FAILED|1:0|2026-03-02T08:00:00|2026-03-02T08:00:10|2026-03-02T08:10:00|gpu017
"""


def build(source: Path, target: Path) -> dict[str, bytes]:
    """Build sdist and wheel of a source tree; returns file name -> content."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1577836800"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return {path.name: path.read_bytes() for path in sorted(target.iterdir())}


def rebuild(sdist: Path) -> dict[str, bytes]:
    """Build again from an unpacked sdist, in another folder."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(Path(folder) / "source", filter="data")
        (source,) = (Path(folder) / "source").iterdir()
        return build(source, Path(folder) / "built")


class CleanEnvironment:
    """A new virtual environment with nothing but the wheel, and a folder with a failed run."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin, self.folder = folder / "venv" / "bin", folder
        venv.create(folder / "venv", with_pip=True)
        self.run("pip install", [str(self.bin / "pip"), "install", "--quiet", str(wheel)])
        (folder / "run").mkdir()
        (folder / "run" / "slurm-41.out").write_text(LOG)
        (folder / "run" / "sacct.txt").write_text(SACCT)

    def run(self, what: str, command: Sequence[str], status: int = 0, expected: str = "", text: str = "") -> str:
        """Run a command; ends this program if its status or output is another one. Returns its output."""
        environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRACKSIDE_CONFIG")
        }
        result = subprocess.run(
            command, cwd=self.folder, env=environment, input=text, capture_output=True, text=True, check=False
        )
        output = result.stdout + result.stderr
        if result.returncode != status or expected not in output:
            sys.exit(f"{what}: exit status {result.returncode}, expected {status} and {expected!r}:\n{output}")
        print(f"ok  {what}", flush=True)
        return output

    def trackside(self, arguments: str, status: int = 0, expected: str = "", text: str = "") -> str:
        """Run ``trackside`` as installed."""
        command = [str(self.bin / "trackside"), *arguments.split()]
        return self.run(f"trackside {arguments}", command, status, expected, text)


def try_wheel(wheel: Path) -> None:
    """What a new user does first, with nothing but the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        environment = CleanEnvironment(Path(folder), wheel)
        environment.trackside("--version", expected=wheel.name.split("-")[1])
        environment.trackside("diagnose run/slurm-41.out", expected="B1")
        environment.trackside("diagnose -", expected="B1", text=LOG)
        environment.trackside("diagnose run --job 41 --exit-code", 10, "B1")
        environment.trackside("diagnose run --json", expected='"trackside.verdict/1"')
        environment.trackside("ingest run --store site", expected="2 inputs read")
        environment.trackside("runs --store site", expected="41")
        environment.trackside("diagnose --store site --job 41", expected="B1")
        environment.trackside("check --store site", expected="intact")
        environment.trackside("bundle run -o run.tsb", expected="run.tsb")
        environment.trackside("diagnose run.tsb", expected="B1")
        environment.trackside("agent check", expected="nvidia-ml-py is not installed")
        for arguments, extra in (("diagnose run --html run.html", "report"), ("serve --store site", "serve")):
            output = environment.trackside(arguments, 2, "-m pip install")
            environment.run(
                f"what it says: install {extra}", ["sh", "-c", output.partition(": ")[2].partition(": ")[2]]
            )
        environment.trackside("diagnose run --html run.html", expected="B1")
        environment.trackside("serve --store site --listen 192.0.2.1:1", 2, "trackside: ")


def main() -> None:
    for old in DIST.glob("trackside-*") if DIST.is_dir() else ():
        old.unlink()
    files = build(ROOT, DIST)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    if changed := [name for name, content in rebuild(sdist).items() if files.get(name) != content]:
        sys.exit(f"not reproducible: {', '.join(changed)}")
    print(f"ok  the same bytes when built again: {', '.join(files)}", flush=True)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, (sdist, wheel))], check=True)
    try_wheel(wheel)


if __name__ == "__main__":
    main()
