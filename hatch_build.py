"""Compiles the agent's BPF programs when a package or an editable install is made: ``src/trackside/agent/trace``.

``python hatch_build.py`` does the same in a checkout. Where there is no compiler the package is made without tracing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object  # type: ignore[assignment, misc]

TRACE = Path("src/trackside/agent/trace")
MACHINES = ("x86_64", "aarch64")
"""Whose conventions of a call the programs are compiled for; the objects themselves run on any."""
FLAGS = ("-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fdebug-compilation-dir=.")


def compilers() -> list[list[str]]:
    """Commands that compile for BPF, the first one preferred."""
    found = []
    if importlib.util.find_spec("ziglang") is not None:
        found.append([sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"])
    named = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))
    found += [[path, "-target", "bpfel"] for name in named if (path := shutil.which(name))]
    return found


def compile_programs(root: Path) -> str:
    """Compile all programs into ``objects``; why not, where that failed, and then none is left from before."""
    sources, objects = sorted((root / TRACE / "programs").glob("*.bpf.c")), root / TRACE / "objects"
    objects.mkdir(exist_ok=True)
    why = "neither the Python package ziglang nor clang is installed"
    for compiler in compilers():
        with tempfile.TemporaryDirectory(dir=objects) as made:
            why = _compiled(compiler, sources, Path(made))
            if not why:
                for each in Path(made).glob("*.o"):
                    each.replace(objects / each.name)
                return ""
    for old in objects.glob("*.o"):  # of other sources than these
        old.unlink()
    return why


def _compiled(compiler: list[str], sources: list[Path], into: Path) -> str:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        for source in sources:
            for machine in MACHINES:
                target = into / f"{source.name.partition('.')[0]}.{machine}.o"
                command = [*compiler, *FLAGS, f"-DTRACKSIDE_{machine.upper()}", "-c", source.name, "-o", str(target)]
                try:
                    done = subprocess.run(
                        command,
                        cwd=source.parent,
                        capture_output=True,
                        text=True,
                        timeout=300,
                        env=environment,
                        check=False,
                    )
                except (OSError, subprocess.TimeoutExpired) as error:
                    return f"{compiler[0]}: {error}"
                if done.returncode:
                    return f"{' '.join(compiler)} fails on {source.name}: {done.stderr.strip()[-1000:]}"
    return ""


class ProgramsHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Runs for wheels, editable ones too."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say so loudly where that can't be done."""
        if self.target_name != "wheel":
            return
        why = compile_programs(Path(self.root))
        if why:
            self.app.display_warning(f"trackside is built WITHOUT tracing (agent --trace): {why}")
        build_data["artifacts"].append(f"/{TRACE}/objects/*.o")


if __name__ == "__main__":
    sys.exit(compile_programs(Path(__file__).parent) or 0)
