"""Standard input and pipes as inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

LOG = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 3, in <module>\n'
    "    main()\n"
    "ModuleNotFoundError: No module named 'flash_attn'\n"
)
COMMAND = [sys.executable, "-m", "trackside"]


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_standard_input_is_diagnosed_and_verified(tmp_path: Path) -> None:
    result = run("diagnose", "-", "--json", stdin=LOG)
    verdict = json.loads(result.stdout)
    assert verdict["primary"]["family"] == "A1"
    assert verdict["paths"] == ["-"]
    saved = tmp_path / "verdict.json"
    saved.write_text(result.stdout)
    assert run("verify", str(saved), "-", stdin=LOG).returncode == 0


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "slurm-41.out"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(LOG,))
    writer.start()
    result = run("inputs", str(pipe))
    writer.join(10)
    assert "slurm-41.out" in result.stdout
    assert result.returncode == 0


def test_empty_standard_input_is_no_verdict() -> None:
    result = run("diagnose", "-", stdin="")
    assert result.returncode == 3
    assert "stdin" in result.stderr


def test_standard_input_is_read_once() -> None:
    result = run("diagnose", "-", "-", stdin=LOG)
    assert (result.returncode, result.stderr) == (
        2,
        "trackside: '-' is standard input, which can be read only once\n",
    )
