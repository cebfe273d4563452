"""GPUs that a script plays, in this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from lab import nvml

LIBRARY = Path(__file__).parents[3] / ".cache/nvml"
HERE = Path(__file__).parent


def played(monkeypatch: pytest.MonkeyPatch, folder: Path, **node: str | int) -> nvml.Script:
    """A script that NVML plays from now on. The library is loaded under its name before nvidia-ml-py asks for it."""
    ctypes.CDLL(str(nvml.build(LIBRARY)))
    script = nvml.Script(folder / "script", **node)
    monkeypatch.setenv(nvml.SCRIPT, str(script.path))
    return script
