"""A stand-in ``libnvidia-ml.so.1``: GPUs that a script simulates (README.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT = "TRACKSIDE_NVML_SCRIPT"
"""The environment variable that names the script."""
Value = str | int | float


def build(folder: Path) -> Path:
    """Build the library in a folder unless it is newer than its source. Returns its path."""
    library = folder / "libnvidia-ml.so.1"
    sources = sorted(HERE.glob("*.[ch]"))
    if library.exists() and library.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return library
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".libnvidia-ml.{os.getpid()}"  # several processes may build at once
    command = [
        *_compiler(),
        "-O2",
        "-std=gnu11",
        "-fvisibility=hidden",
        "-fPIC",
        "-shared",
        "-Wl,-soname,libnvidia-ml.so.1",
        "-o",
        str(temporary),
    ]
    command += [str(source) for source in sources if source.suffix == ".c"]
    result = subprocess.run([*command, "-lm", "-lpthread"], capture_output=True, text=True, timeout=300, check=False)
    if result.returncode:
        raise RuntimeError(f"the stand-in NVML does not build:\n{result.stderr}")
    temporary.rename(library)
    return library


def _compiler() -> list[str]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    return [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]


def environment(library: Path, script: Path | None, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a new process finds this library in place of the driver's."""
    variables = dict(os.environ if base is None else base)
    search_path = variables.get("LD_LIBRARY_PATH")
    variables["LD_LIBRARY_PATH"] = f"{library.parent}:{search_path}" if search_path else str(library.parent)
    if script is not None:
        variables[SCRIPT] = str(script)
    return variables


class Script:
    """Writes a script. Each call adds its line at once, so the GPUs can be changed while an agent reads them."""

    def __init__(self, path: Path, **node: Value) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        head = " ".join(f"{key}={value}" for key, value in node.items())
        path.write_text(f"node {head}\n" if head else "", "utf-8")

    def at(self, when: float, gpus: str | int = "*", /, **settings: Value | Iterable[Value]) -> None:
        """These GPUs report the settings from ``when`` on (seconds since the library was loaded)."""
        self._add(f"{when:g}", gpus, settings)

    def now(self, gpus: str | int = "*", /, **settings: Value | Iterable[Value]) -> None:
        """These GPUs report the settings from now on."""
        self._add(f"@{time.time():.6f}", gpus, settings)

    def _add(self, when: str, gpus: str | int, settings: Mapping[str, Value | Iterable[Value]]) -> None:
        assignments = [
            f"{key}={item}"
            for key, value in settings.items()
            for item in ((value,) if isinstance(value, str | int | float) else value)
        ]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{when} {gpus} {' '.join(assignments)}\n")
