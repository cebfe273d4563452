"""The examples of docs/exit-codes.md, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/exit-codes.md"
EXAMPLES = [
    pytest.param(command, int(code), id=command)
    for command, code in re.findall(r"^\| `trackside (.+)` \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
]
COMMAND = [sys.executable, "-m", "trackside"]
LOG = (
    "step 1 loss 2.0\nstep 2 loss 1.5\nTraceback (most recent call last):\n"
    '  File "train.py", line 3, in <module>\n    main()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of"
    " which 1.00 GiB is free.\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the page describes it."""
    path = tmp_path_factory.mktemp("examples")
    (path / "train.log").write_text(LOG)
    (path / "note.txt").write_text("hello\n")
    (path / "empty.log").write_text("")
    with (path / "verdict.json").open("w") as verdict:
        subprocess.run([*COMMAND, "diagnose", "train.log", "--json"], cwd=path, stdout=verdict, timeout=60, check=True)
    return path


@pytest.mark.parametrize(("command", "code"), EXAMPLES)
def test_an_example_of_the_page_exits_as_it_says(command: str, code: int, folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *command.split()], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    if code == 2:
        assert re.fullmatch(r"trackside: .+\n", done.stderr)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) > 10


def test_ctrl_c_leaves_a_sentence(tmp_path: Path) -> None:
    pipe = tmp_path / "train.log"
    os.mkfifo(pipe)
    # A process that runs in the background may ignore SIGINT, and so would its children.
    code = "import signal, trackside.cli as cli; signal.signal(signal.SIGINT, signal.default_int_handler); cli.main()"
    command = [sys.executable, "-c", code, "diagnose", str(pipe)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        pipe.open("w"),  # opened once the command reads the pipe
    ):
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (output, errors.decode().strip(), process.returncode) == (b"", "trackside: stopped by Ctrl-C", 130)
