"""The folder in which a lab run happens, with the training scripts, and the running job."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

TRAIN = Path(__file__).parent / "train"
POLL = 0.05


class RunFailed(Exception):
    """The run did not behave as the case needs."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RunningJob:
    """A job script that was started, with its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def wait_for(self, pattern: str, timeout: float = 120) -> None:
        end = time.monotonic() + timeout
        while not re.search(pattern, self.log.read_text(errors="replace")):
            if time.monotonic() > end or self.process.poll() is not None:
                raise RunFailed(f"{pattern!r} never appeared in {self.log.name}")
            time.sleep(POLL)

    def wait_for_file(self, glob: str, pattern: str, timeout: float = 120) -> None:
        """Wait until a file that the run writes contains a pattern."""
        end = time.monotonic() + timeout
        while True:
            texts = [path.read_text(errors="replace") for path in self.log.parent.glob(glob)]
            if any(re.search(pattern, text) for text in texts):
                return
            if time.monotonic() > end or self.process.poll() is not None:
                raise RunFailed(f"{pattern!r} never appeared in {glob}")
            time.sleep(POLL)

    def descendants(self) -> list[int]:
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                parents.setdefault(_parent_pid(entry), []).append(int(entry.name))
        pids, todo = [], [self.process.pid]
        while todo:
            children = parents.get(todo.pop(), [])
            pids += children
            todo += children
        return pids

    def rank_pid(self, rank: int) -> int:
        """The process that a launcher started as this rank (not its children)."""
        pids = [pid for pid in self.descendants() if f"RANK={rank}" in process_environ(pid)]
        if not pids:
            raise RunFailed(f"no process of rank {rank}")
        return min(pids)

    def worker_pid(self, parent: int) -> int:
        """A data loader worker of this process."""
        pids = [pid for pid in self.descendants() if _parent_pid(Path(f"/proc/{pid}")) == parent]
        if not pids:
            raise RunFailed(f"process {parent} has no child")
        return min(pids)

    def child_pid(self, name: str) -> int:
        """The first process of the job whose command line holds this text."""
        for pid in sorted(self.descendants()):
            if name in _command(pid):
                return pid
        raise RunFailed(f"no process runs {name}")

    def send_group(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def finish(self, timeout: float = 240) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise RunFailed(f"still running after {timeout:.0f} s") from None

    def stop(self) -> None:
        for pid in self.descendants():
            _kill(pid)
        _kill(self.process.pid)
        self.process.wait()


class Stage:
    """A fresh folder that looks like a user's training folder; `template` is one whose scripts and data are
    copied."""

    def __init__(self, work: Path, slurm_tools: Path | None = None, template: Stage | None = None) -> None:
        self.work = work
        self.slurm_tools = slurm_tools
        self.port = free_port()
        self.kept_files: list[Path] = []
        self.node = "gpu017"
        self.names: list[tuple[str, str]] = []
        self.results: dict[str, str] = {}
        if template is not None:
            shutil.copytree(template.work, work, dirs_exist_ok=True)
            return
        for script in TRAIN.glob("*.py"):
            shutil.copy(script, work)
        self.write_corpus()

    def write_corpus(self, rows: int = 400, name: str = "data/train.jsonl", **options: str) -> None:
        arguments = "".join(f", {key}={value!r}" for key, value in options.items())
        code = f"import pathlib, tinylm; tinylm.write_corpus(pathlib.Path({name!r}), {rows}{arguments})"
        subprocess.run([sys.executable, "-c", code], cwd=self.work, check=True)

    def environment(self) -> dict[str, str]:
        variables = {key: os.environ[key] for key in ("LANG", "HOME") if key in os.environ}
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        fixed = {
            "PATH": path,
            "PORT": str(self.port),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "KERAS_BACKEND": "torch",
        }
        return {**variables, **fixed}

    def start(self, script: str, log: str = "train.log", env: Mapping[str, str] | None = None) -> RunningJob:
        """Run a bash job script with its output in one log, and keep that log."""
        number = len(self.kept_files)
        path = self.work / ("run.sh" if number == 0 else f"run{number}.sh")
        path.write_text("#!/bin/bash\n" + script.strip() + "\n")
        log_path = self.work / log
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as out:
            process = subprocess.Popen(
                ["bash", path.name],
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**self.environment(), **(env or {})},
                start_new_session=True,
            )
        self.keep(log_path)
        return RunningJob(process, log_path)

    def keep(self, *paths: Path) -> None:
        """Files that the scenario ships, under their paths in the work folder."""
        for path in paths:
            if path not in self.kept_files:
                self.kept_files.append(path)

    def keep_glob(self, pattern: str) -> None:
        paths = sorted(path for path in self.work.glob(pattern) if path.is_file())
        if not paths:
            raise RunFailed(f"the run left no {pattern}")
        self.keep(*paths)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _parent_pid(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def process_environ(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
