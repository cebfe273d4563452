"""Compiles the agent's BPF programs for a package or an editable install: ``src/trackside/agent/trace``.

``python hatch_build.py`` does the same in a checkout. Without a compiler the package is built without tracing.
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
"""Architectures whose calling conventions the programs are compiled for; the objects themselves run on any."""
FLAGS = ("-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fdebug-compilation-dir=.")


def compilers() -> list[list[str]]:
    """Commands that compile for BPF, the first one preferred."""
    commands = []
    if importlib.util.find_spec("ziglang") is not None:
        commands.append([sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"])
    names = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))
    commands += [[path, "-target", "bpfel"] for name in names if (path := shutil.which(name))]
    return commands


def compile_programs(root: Path) -> str:
    """Compile all programs into ``objects``. Returns why it failed, or an empty text; a failure removes old ones."""
    sources, objects = sorted((root / TRACE / "programs").glob("*.bpf.c")), root / TRACE / "objects"
    objects.mkdir(exist_ok=True)
    why = "neither the Python package ziglang nor clang is installed"
    for compiler in compilers():
        with tempfile.TemporaryDirectory(dir=objects) as folder:
            why = _compiled(compiler, sources, Path(folder))
            if not why:
                for compiled in Path(folder).glob("*.o"):
                    compiled.replace(objects / compiled.name)
                return ""
    for old in objects.glob("*.o"):  # compiled from other sources
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
        """Compile; warn if that fails."""
        if self.target_name != "wheel":
            return
        why = compile_programs(Path(self.root))
        if why:
            self.app.display_warning(f"trackside is built WITHOUT CUDA and NCCL tracing: {why}")
        build_data["artifacts"].append(f"/{TRACE}/objects/*.o")


if __name__ == "__main__":
    sys.exit(compile_programs(Path(__file__).parent) or 0)
