"""Completion in a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed(shell: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "trackside", "completion", shell], capture_output=True, text=True, check=True, timeout=60
    )
    assert "_TRACKSIDE_COMPLETE" in result.stdout


@pytest.mark.slow
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    assert shutil.which("bash")
    command = tmp_path / "trackside"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trackside "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(trackside completion bash)"\n'
        "COMP_WORDS=(trackside {words}) COMP_CWORD={index}\n_trackside_completion trackside\n"
        'printf "%s\\n" "${{COMPREPLY[@]}}"\n'
    )
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for words, index, expected in (("dia", 1, "diagnose"), ("diagnose --mark", 2, "--markdown")):
        text = script.format(words=words, index=index)
        result = subprocess.run(["bash", "-c", text], env=environ, capture_output=True, text=True, timeout=60)
        assert result.stdout.split() == [expected], result.stderr
