"""NVML in this process, with GPUs that a script simulates."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from lab import nvml

LIBRARY = Path(__file__).parents[3] / ".cache/nvml"
HERE = Path(__file__).parent


def scripted_gpus(monkeypatch: pytest.MonkeyPatch, folder: Path, **node: str | int) -> nvml.Script:
    """The script that NVML follows from now on. Loads the stand-in library under NVML's name, before nvidia-ml-py does."""
    ctypes.CDLL(str(nvml.build(LIBRARY)))
    script = nvml.Script(folder / "script", **node)
    monkeypatch.setenv(nvml.SCRIPT, str(script.path))
    return script
