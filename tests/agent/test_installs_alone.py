"""The agent needs the standard library and a few small packages, and none of those for diagnosing and serving."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS = ("msgspec", "hyperscan", "nvidia-ml-py", "urllib3")


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=400, check=False, **options
    )  # type: ignore[call-overload]
    assert isinstance(result.stdout, str)
    return result


@pytest.mark.service
def test_the_agent_runs_with_a_wheel_and_four_packages(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TRACKSIDE_", "PYTHON"))}
    built = run(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist", cwd=ROOT, env=environ
    )
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    created = run(sys.executable, "-m", "venv", tmp_path / "venv", env=environ)
    assert created.returncode == 0, created.stderr
    python = tmp_path / "venv/bin/python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in NEEDS]
    installed = run(*pip, wheel, *versions, env=environ)
    assert installed.returncode == 0, installed.stderr
    agent = (python, "-m", "trackside.agent")
    environ |= {"STATE_DIRECTORY": str(tmp_path / "state")}

    printed = run(*agent, "run", "--once", "--print", "--only", "cpu", "memory", env=environ, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "host_cpu_seconds_total{" in printed.stdout

    check_result = run(*agent, "check", "--listen", "", "--json", env=environ, cwd=tmp_path)
    report = json.loads(check_result.stdout)
    lines = {line["id"]: line for line in report["sources"] + report["surroundings"]}
    assert not [line for line in report["sources"] if line["state"] in ("fails", "hangs")], check_result.stdout
    assert lines["cpu"]["state"] == "works"
    assert lines["nvidia-ml-py"]["state"] == lines["hyperscan"]["state"] == "works"
    assert lines["cramjam"]["state"] == "unavailable"

    package_list = run(python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check", env=environ)
    names = {package["name"] for package in json.loads(package_list.stdout)} - {"pip", "setuptools"}
    assert names == {"trackside", *NEEDS}
